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
use tokio::task::spawn_blocking;

use super::access::FileQuery;
use super::error::UploadError;
use super::metadata;
use super::negotiate::{self, Coding};
use super::signature::Operation;
use super::sink::{Form, Order, Sink, Written, form_of};
use crate::logs::Level;
use crate::state::State;

/// Bytes handed over to be written at a time, about. Twice as many, and the buffers of the connection, bound the memory
/// of an upload.
const BATCH_BYTES: usize = 512 << 10;
/// The same bound for bodies that come in tiny pieces, each of which costs more than its bytes.
const BATCH_CHUNKS: usize = 1024;
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

    let mut batch = Batch::default();
    body.read(&mut batch).await?;
    let (shared, first) = (state.clone(), std::mem::take(&mut batch));
    let mut last = first.last;
    let opened = move || {
        let user = query.user(&shared)?;
        let order = Order { state: shared, user, metadata, path: query.path, announced };
        take(Sink::new(order, form, coding)?, first)
    };
    let mut writing = spawn_blocking(opened);
    loop {
        // What comes while bytes are written is collected.
        let progress = loop {
            tokio::select! {
                biased;
                progress = &mut writing => break progress,
                read = body.read(&mut batch), if !last && !batch.is_full() => {
                    if let Err(error) = read {
                        // What is written must be taken away before the client learns that it failed.
                        drop(writing.await);
                        return Err(error);
                    }
                }
            }
        };
        match progress.map_err(|_| UploadError::Crashed)?? {
            Progress::Done(files) => return Ok(files),
            Progress::More(sink) => {
                while batch.is_empty() {
                    body.read(&mut batch).await?;
                }
                let next = std::mem::take(&mut batch);
                last = next.last;
                writing = spawn_blocking(move || take(sink, next));
            }
        }
    }
}

enum Progress {
    More(Sink),
    Done(Vec<Written>),
}

fn take(mut sink: Sink, batch: Batch) -> Result<Progress, UploadError> {
    for chunk in batch.chunks {
        sink.push(&chunk)?;
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

/// Bytes of a body that are written in one go.
#[derive(Default)]
struct Batch {
    chunks: Vec<Bytes>,
    size: usize,
    /// Whether the body ends with them.
    last: bool,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.chunks.is_empty() && !self.last
    }

    fn is_full(&self) -> bool {
        self.last || self.size >= BATCH_BYTES || self.chunks.len() >= BATCH_CHUNKS
    }

    fn add(&mut self, chunk: Bytes) {
        if !chunk.is_empty() {
            self.size += chunk.len();
            self.chunks.push(chunk);
        }
    }
}

impl Incoming {
    /// Waits for the next bytes, and adds them to `batch` with what more is there already, or notes that there are no
    /// more. Loses nothing when it is dropped while it waits.
    async fn read(&mut self, batch: &mut Batch) -> Result<(), UploadError> {
        self.started = true;
        let next = tokio::time::timeout(IDLE, self.body.frame()).await;
        let mut next = next.map_err(|_| UploadError::Idle(IDLE.as_secs()))?;
        loop {
            match next {
                // Trailers are of no interest.
                Some(Ok(frame)) => batch.add(frame.into_data().unwrap_or_default()),
                Some(Err(_)) => return Err(UploadError::Body),
                None => batch.last = true,
            }
            if batch.is_full() {
                return Ok(());
            }
            next = match self.body.frame().now_or_never() {
                Some(next) => next,
                None => return Ok(()),
            };
        }
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
