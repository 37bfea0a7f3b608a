//! Request bodies whose server answered before it read them to the end.
//!
//! A server inside may refuse an upload half-way (disk full: 507). If the proxy then stopped reading, the client, still
//! sending, would meet a reset connection and might never see the answer. So the rest is read and thrown away, for a bounded
//! time, while the answer is on its way.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hutch_types::supervise::Supervisor;
use hyper::body::{Body, Frame, Incoming, SizeHint};

const LIMIT: Duration = Duration::from_secs(30);

/// A request body that drains itself when it is dropped early.
#[derive(Debug)]
pub struct Linger {
    body: Option<Incoming>,
    supervisor: Supervisor,
}

impl Linger {
    pub(crate) fn new(body: Incoming, supervisor: Supervisor) -> Self {
        Self { body: Some(body), supervisor }
    }
}

impl Body for Linger {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let Some(body) = self.body.as_mut() else { return Poll::Ready(None) };
        let frame = Pin::new(body).poll_frame(cx);
        if matches!(frame, Poll::Ready(None | Some(Err(_)))) {
            self.body = None;
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.body.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}

impl Drop for Linger {
    fn drop(&mut self) {
        let Some(mut body) = self.body.take().filter(|b| !b.is_end_stream()) else { return };
        self.supervisor.spawn("edge-linger", async move {
            let rest = async { while let Some(Ok(_)) = body.frame().await {} };
            if tokio::time::timeout(LIMIT, rest).await.is_err() {
                tracing::debug!("a client went on sending a request that was answered long ago");
            }
        });
    }
}
