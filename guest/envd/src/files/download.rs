//! `GET /files`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State as Shared};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures::{Stream, stream};
use http::{HeaderMap, HeaderValue, StatusCode, header};
use rustix::buffer::spare_capacity;
use rustix::fs::OFlags;
use serde_json::json;

use super::access::FileQuery;
use super::blocking;
use super::conditional::{self, Validators, Verdict};
use super::content_type;
use super::negotiate::{self, Coding};
use super::range::{self, Wanted};
use super::signature::Operation;
use crate::error::HttpError;
use crate::filesystem::fault::{Fault, reason};
use crate::logs::Level;
use crate::paths;
use crate::state::State;

/// Read at once when a file is opened. Files up to this size are answered from one consistent read.
const HEAD_BYTES: usize = 64 << 10;
/// Read at a time after that. Two of these are in memory per download.
const CHUNK_BYTES: usize = 256 << 10;

/// Answers with the content of a file.
pub(super) async fn get(Shared(state): Shared<Arc<State>>, request: Request) -> Response {
    match download(&state, request).await {
        Ok((path, response)) => {
            state.logs.add(Level::Info, "files", "file read", json!({"path": path.to_string_lossy()}));
            response
        }
        Err(error) => error.into_response(),
    }
}

async fn download(state: &Arc<State>, request: Request) -> Result<(PathBuf, Response), HttpError> {
    let query = FileQuery::of(request.uri())?;
    query.check(state, request.headers(), Operation::Read)?;
    let state = state.clone();
    let opened = blocking(move || {
        let user = query.user(&state)?;
        let path = paths::resolve(&user, &state, query.path.as_deref().unwrap_or(""));
        let path = path.map_err(|error| HttpError::bad_request(error.to_string()))?;
        Source::open(&path)
    });
    let source = opened.await.ok_or_else(|| HttpError::internal("the download failed unexpectedly"))??;
    let path = source.path.clone();
    Ok((path, answer(source, request.headers())?))
}

/// An open file and its beginning.
#[derive(Debug)]
struct Source {
    path: PathBuf,
    file: File,
    head: Bytes,
    /// How many bytes there are. Unknown for virtual files, which do not tell.
    size: Option<u64>,
    validators: Validators,
}

impl Source {
    fn open(path: &Path) -> Result<Self, HttpError> {
        let failed = |error: io::Error| match Fault::of(&error) {
            Fault::Missing | Fault::NotADirectory => {
                HttpError::not_found(format!("path '{}' does not exist", path.display()))
            }
            _ if error.raw_os_error() == Some(libc::ENXIO) => not_a_file(path),
            fault => HttpError::new(
                fault.status(),
                format!("opening file '{}': {}", path.display(), reason(&error)),
            ),
        };
        let file = open(path).map_err(failed)?;
        let found = file.metadata().map_err(failed)?;
        if found.is_dir() {
            return Err(HttpError::bad_request(format!("path '{}' is a directory", path.display())));
        }
        if !found.is_file() {
            return Err(not_a_file(path));
        }
        let (head, complete) = read_head(&file).map_err(failed)?;
        let in_head = u64::try_from(head.len()).unwrap_or(u64::MAX);
        let size = match found.len() {
            // Virtual files claim sizes that have nothing to do with what they contain.
            _ if complete => Some(in_head),
            claimed if claimed > in_head => Some(claimed),
            _ => None,
        };
        let nanos = u32::try_from(found.mtime_nsec()).unwrap_or(0);
        let validators = Validators::new(found.ino(), size.unwrap_or(0), found.mtime(), nanos);
        Ok(Self { path: path.to_owned(), file, head: head.into(), size, validators })
    }

    /// Whether there is more of it than its head.
    fn is_large(&self) -> bool {
        let in_head = u64::try_from(self.head.len()).unwrap_or(u64::MAX);
        self.size.is_none_or(|size| size > in_head)
    }

    /// The bytes from `start` to `end`, or to wherever the file ends.
    fn body(self, start: u64, end: Option<u64>) -> Body {
        let in_head = u64::try_from(self.head.len()).unwrap_or(u64::MAX);
        let cut = |at: u64| usize::try_from(at.min(in_head)).unwrap_or(self.head.len());
        let first = self.head.slice(cut(start)..cut(end.unwrap_or(u64::MAX)));
        if end.is_some_and(|end| end <= in_head) {
            return Body::from(first);
        }
        let rest = Chunks { file: Arc::new(self.file), at: start.max(in_head), end };
        let first = stream::iter((!first.is_empty()).then_some(Ok(first)));
        Body::from_stream(futures::StreamExt::chain(first, rest.into_stream()))
    }

    fn gzip_body(self) -> Body {
        let rest = Chunks { file: Arc::new(self.file), at: 0, end: None };
        Body::from_stream(rest.into_gzip_stream())
    }
}

fn not_a_file(path: &Path) -> HttpError {
    HttpError::bad_request(format!("path '{}' is not a regular file", path.display()))
}

/// Opens without waiting for the other end of a pipe. A link of another user in a directory like `/tmp`, which the
/// kernel refuses to follow even for root, is followed here.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed());
    match options.open(path) {
        Err(error) if Fault::of(&error) == Fault::Denied => {
            options.open(std::fs::canonicalize(path).map_err(|_| error)?)
        }
        other => other,
    }
}

/// The first bytes, and whether these are all.
fn read_head(file: &File) -> io::Result<(Vec<u8>, bool)> {
    let mut head = Vec::with_capacity(HEAD_BYTES);
    while head.len() < HEAD_BYTES {
        let at = u64::try_from(head.len()).unwrap_or(u64::MAX);
        let got = read_at(file, &mut head, at)?;
        if got == 0 {
            return Ok((head, true));
        }
    }
    Ok((head, false))
}

/// Reads into the room that `buffer` has left.
fn read_at(file: &File, buffer: &mut Vec<u8>, at: u64) -> io::Result<usize> {
    loop {
        match rustix::io::pread(file, spare_capacity(buffer), at) {
            Err(rustix::io::Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

fn answer(source: Source, headers: &HeaderMap) -> Result<Response, HttpError> {
    let large = source.is_large();
    let none =
        || HttpError::new(StatusCode::NOT_ACCEPTABLE, "no acceptable encoding: there are gzip and identity");
    let mut coding = negotiate::for_answer(headers, large).ok_or_else(none)?;
    if conditional::any(headers) {
        if !negotiate::takes_identity(headers) {
            let message = "parts of a file and conditions on it need the encoding identity to be acceptable";
            return Err(HttpError::new(StatusCode::NOT_ACCEPTABLE, message));
        }
        coding = Coding::Identity;
    }
    let mut response = Response::new(Body::empty());
    let out = response.headers_mut();
    out.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    set(out, header::LAST_MODIFIED, &source.validators.last_modified());
    let etag = match coding {
        Coding::Identity => source.validators.etag(),
        Coding::Gzip => source.validators.weak_etag(),
    };
    set(out, header::ETAG, &etag);
    match source.validators.judge(headers) {
        Verdict::Proceed => {}
        Verdict::NotModified => {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return Ok(response);
        }
        Verdict::Failed => {
            return Err(HttpError::new(
                StatusCode::PRECONDITION_FAILED,
                "the file does not meet the condition",
            ));
        }
    }
    set(out, header::CONTENT_DISPOSITION, &content_type::disposition(&source.path));
    set(out, header::CONTENT_TYPE, &content_type::of(&source.path, &source.head));
    if coding == Coding::Gzip {
        out.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        *response.body_mut() = source.gzip_body();
        return Ok(response);
    }

    let Some(size) = source.size else {
        *response.body_mut() = source.body(0, None);
        return Ok(response);
    };
    out.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    let wanted = headers.get(header::RANGE).and_then(|v| v.to_str().ok());
    let wanted = match wanted {
        Some(range) if source.validators.range_stands(headers) => range::parse(range, size),
        _ => Wanted::Whole,
    };
    let (start, len) = match wanted {
        Wanted::Whole => (0, size),
        Wanted::Part { start, len } => {
            set(out, header::CONTENT_RANGE, &format!("bytes {start}-{}/{size}", start + len - 1));
            *response.status_mut() = StatusCode::PARTIAL_CONTENT;
            (start, len)
        }
        Wanted::Unsatisfiable => {
            let message = format!("the file has {size} bytes, none of which is in this range");
            let mut refused = HttpError::new(StatusCode::RANGE_NOT_SATISFIABLE, message).into_response();
            set(refused.headers_mut(), header::CONTENT_RANGE, &format!("bytes */{size}"));
            return Ok(refused);
        }
    };
    response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(len));
    *response.body_mut() = source.body(start, Some(start + len));
    Ok(response)
}

/// Sets a header. The values are made of what headers may contain.
fn set(headers: &mut HeaderMap, name: header::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// The rest of a file, read piece by piece.
#[derive(Debug)]
struct Chunks {
    file: Arc<File>,
    at: u64,
    /// Where to stop. A file that ends before has been cut meanwhile: the download fails then, since a client
    /// would take what it got for the whole.
    end: Option<u64>,
}

impl Chunks {
    /// The next piece; empty at the end. Blocks.
    fn next(&mut self) -> io::Result<Vec<u8>> {
        let left = self.end.map_or(u64::MAX, |end| end.saturating_sub(self.at));
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(CHUNK_BYTES);
        let mut buffer = Vec::with_capacity(len);
        if len == 0 {
            return Ok(buffer);
        }
        read_at(&self.file, &mut buffer, self.at)?;
        // The allocator may have given more room than was asked for.
        buffer.truncate(len);
        if buffer.is_empty() && self.end.is_some() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file has become shorter"));
        }
        self.at = self.at.saturating_add(u64::try_from(buffer.len()).unwrap_or(u64::MAX));
        Ok(buffer)
    }

    /// Reads one piece ahead, while the one before it is sent.
    fn into_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        pieces(self, |mut chunks| {
            let piece = chunks.next()?;
            let more = (!piece.is_empty()).then_some(chunks);
            Ok((piece, more))
        })
    }

    fn into_gzip_stream(self) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
        // The processor is the user's programs', too.
        let encoder = GzEncoder::new(Vec::new(), Compression::fast());
        pieces((self, encoder), |(mut chunks, mut encoder)| {
            loop {
                let piece = chunks.next()?;
                if piece.is_empty() {
                    return Ok((encoder.finish()?, None));
                }
                encoder.write_all(&piece)?;
                let packed = std::mem::take(encoder.get_mut());
                if !packed.is_empty() {
                    return Ok((packed, Some((chunks, encoder))));
                }
            }
        })
    }
}

/// What `step` makes of `state` again and again, until it returns no state. The next step runs while the piece before
/// it is on its way.
fn pieces<S: Send + 'static>(
    state: S,
    step: impl Fn(S) -> io::Result<(Vec<u8>, Option<S>)> + Send + Sync + Copy + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    let ahead = move |state: S| tokio::task::spawn_blocking(move || step(state));
    stream::try_unfold(Some(ahead(state)), move |running| async move {
        let Some(running) = running else { return Ok(None) };
        let (piece, more) = running.await.map_err(io::Error::other)??;
        if piece.is_empty() && more.is_none() {
            return Ok(None);
        }
        Ok(Some((Bytes::from(piece), more.map(ahead))))
    })
}
