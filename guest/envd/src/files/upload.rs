//! `POST /files`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::FutureExt;
use http::{HeaderMap, header, request::Parts};
use http_body_util::BodyExt;
use serde_json::json;

use super::access::FileQuery;
use super::error::UploadError;
use super::negotiate::{self, Coding};
use super::signature::Operation;
use super::sink::{Form, Order, Sink, Written, form_of};
use super::{blocking, metadata};
use crate::logs::Level;
use crate::state::State;

/// Bytes handed over to be written at a time, about. Bounds the memory of an upload together with the buffers of
/// the connection.
const BATCH_BYTES: usize = 256 << 10;
/// A client may be silent for this long before its upload is given up.
const IDLE: Duration = Duration::from_secs(120);
/// After a refusal, this much more of the body is read and thrown away. Many clients read the answer only after
/// they have sent everything, and closing the connection before would take the answer away from them.
const DRAIN_BYTES: u64 = 8 << 30;
/// And for this long.
const DRAIN_TIME: Duration = Duration::from_secs(60);
/// What a form adds to its files, more than less.
const FORM_OVERHEAD: u64 = 64 << 10;

/// Writes the files of a request and answers with what was written.
pub(super) async fn post(Shared(state): Shared<Arc<State>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut body = Incoming { body, started: false };
    match upload(&state, &parts, &mut body).await {
        Ok(files) => {
            for file in &files {
                state.logs.add(
                    Level::Info,
                    "files",
                    "file written",
                    json!({"path": file.path(), "bytes": file.bytes}),
                );
            }
            Json(files).into_response()
        }
        Err(error) => {
            let text = error.to_string();
            state.logs.add(Level::Warn, "files", "upload failed", json!({"error": text}));
            if body.started || !parts.headers.contains_key(header::EXPECT) {
                let stop = state.tasks.clone();
                state.tasks.spawn("drain of a refused upload", async move {
                    tokio::select! {
                        () = body.drain() => {}
                        () = stop.stopping() => {}
                    }
                });
            }
            error.into_response()
        }
    }
}

async fn upload(state: &Arc<State>, parts: &Parts, body: &mut Incoming) -> Result<Vec<Written>, UploadError> {
    let query = FileQuery::of(&parts.uri)?;
    query.check(state, &parts.headers, Operation::Write)?;
    let coding = negotiate::of_body(&parts.headers).map_err(UploadError::ContentEncoding)?;
    let metadata = metadata::from_headers(&parts.headers)?;
    let form = form_of(text(&parts.headers, header::CONTENT_TYPE))?;
    let announced = announced(&parts.headers, coding, &form, query.path.is_some());

    let (shared, first) = (state.clone(), body.batch().await?);
    let opened = move || {
        let user = query.user(&shared)?;
        let order = Order { state: shared, user, metadata, path: query.path, announced };
        take(Sink::new(order, form, coding)?, &first)
    };
    let mut progress = blocking(opened).await.ok_or(UploadError::Crashed)??;
    loop {
        match progress {
            Progress::Done(files) => return Ok(files),
            Progress::More(sink) => {
                let batch = body.batch().await?;
                progress = blocking(move || take(sink, &batch)).await.ok_or(UploadError::Crashed)??;
            }
        }
    }
}

enum Progress {
    More(Sink),
    Done(Vec<Written>),
}

fn take(mut sink: Sink, batch: &Batch) -> Result<Progress, UploadError> {
    for chunk in &batch.chunks {
        sink.push(chunk)?;
    }
    Ok(if batch.last { Progress::Done(sink.finish()?) } else { Progress::More(sink) })
}

/// How many bytes the file will have at least, when the request says so and there is one file only.
fn announced(headers: &HeaderMap, coding: Coding, form: &Form, one: bool) -> Option<u64> {
    let length: u64 = text(headers, header::CONTENT_LENGTH).parse().ok()?;
    match (coding, form) {
        (Coding::Identity, Form::Raw) => Some(length),
        (Coding::Identity, Form::Multipart(_)) if one => Some(length.saturating_sub(FORM_OVERHEAD)),
        _ => None,
    }
}

fn text(headers: &HeaderMap, name: header::HeaderName) -> &str {
    headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or("")
}

/// A request's body.
struct Incoming {
    body: Body,
    /// Whether any of it has been asked for, so that a client that waits for that has been told to send.
    started: bool,
}

struct Batch {
    chunks: Vec<Bytes>,
    last: bool,
}

impl Incoming {
    /// The next bytes: at least one chunk, and what more is there already.
    async fn batch(&mut self) -> Result<Batch, UploadError> {
        self.started = true;
        let mut batch = Batch { chunks: Vec::new(), last: false };
        let mut size = 0;
        while size < BATCH_BYTES {
            let next = if batch.chunks.is_empty() {
                let next = tokio::time::timeout(IDLE, self.body.frame()).await;
                next.map_err(|_| UploadError::Idle(IDLE.as_secs()))?
            } else {
                match self.body.frame().now_or_never() {
                    Some(next) => next,
                    None => break,
                }
            };
            match next {
                // Trailers are of no interest.
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        size += data.len();
                        batch.chunks.push(data);
                    }
                }
                Some(Err(_)) => return Err(UploadError::Body),
                None => {
                    batch.last = true;
                    break;
                }
            }
        }
        Ok(batch)
    }

    /// Throws the rest away, within bounds. What comes after is cut off.
    async fn drain(mut self) {
        let start = Instant::now();
        let mut left = DRAIN_BYTES;
        while let Some(time) = DRAIN_TIME.checked_sub(start.elapsed()) {
            match tokio::time::timeout(time, self.body.frame()).await {
                Ok(Some(Ok(frame))) => {
                    let size = frame.data_ref().map_or(0, Bytes::len);
                    match left.checked_sub(u64::try_from(size).unwrap_or(u64::MAX)) {
                        Some(rest) => left = rest,
                        None => return,
                    }
                }
                _ => return,
            }
        }
    }
}
