//! Request bodies whose server answered before it read them to the end.
//!
//! A server inside may refuse an upload half-way (disk full: 507), and the API may answer without reading a body at all (wrong key: 401).
//! If the listener then stopped reading, the client, still sending, would meet a reset connection and might never see the
//! answer, or its next request on the kept connection would fail. So the rest is read and thrown away, bounded in time and
//! size, while the answer is on its way.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hutch_types::supervise::Supervisor;
use hyper::body::{Body, Frame, Incoming, SizeHint};

const TIME_LIMIT: Duration = Duration::from_secs(30);

/// The body of a request; it drains itself when it is dropped early.
#[derive(Debug)]
pub struct RequestBody {
    body: Option<(Incoming, Supervisor)>,
    most: u64,
}

impl RequestBody {
    /// A body of which at most `most` bytes are read and thrown away.
    pub(crate) fn new(body: Incoming, supervisor: Supervisor, most: u64) -> Self {
        Self { body: Some((body, supervisor)), most }
    }

    /// A body of nothing.
    pub(crate) fn empty() -> Self {
        Self { body: None, most: 0 }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some((body, _)) = self.body.as_mut() else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(|(body, _)| body.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), |(body, _)| body.size_hint())
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let Some((mut body, supervisor)) = self.body.take().filter(|(body, _)| !body.is_end_stream()) else {
            return;
        };
        let most = self.most;
        supervisor.spawn("edge-linger", async move {
            let rest = async {
                let mut left = most;
                while let Some(Ok(frame)) = body.frame().await {
                    let length = frame.data_ref().map_or(0, Bytes::len);
                    left = match left.checked_sub(u64::try_from(length).unwrap_or(u64::MAX)) {
                        Some(left) => left,
                        None => return,
                    };
                }
            };
            if tokio::time::timeout(TIME_LIMIT, rest).await.is_err() {
                tracing::debug!("a client went on sending a request that was answered long ago");
            }
        });
    }
}
