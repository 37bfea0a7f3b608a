//! `POST /files/compose`: puts files together that were uploaded in pieces.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State as Shared};
use axum::response::{IntoResponse, Response};
use http::StatusCode;
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::blocking;
use super::error::AccessError;
use crate::error::HttpError;
use crate::filesystem::dirs::{self, DirsError};
use crate::filesystem::fault::{Fault, reason};
use crate::logs::Level;
use crate::paths::{self, PathError};
use crate::state::State;
use crate::users::User;

/// A request may be this large: a million short paths.
const MAX_REQUEST_BYTES: usize = 16 << 20;

#[derive(Debug, Deserialize)]
struct Order {
    source_paths: Vec<String>,
    destination: String,
    username: Option<String>,
}

/// The file that was put together.
#[derive(Debug, Serialize)]
struct Entry {
    name: String,
    path: String,
    r#type: &'static str,
}

/// Why files cannot be put together.
#[derive(Debug, thiserror::Error)]
enum ComposeError {
    #[error("'source_paths' must not be empty")]
    NoSources,
    #[error("'destination' is required")]
    NoDestination,
    #[error("source path '{0}' is the destination")]
    Same(PathBuf),
    #[error("source file '{0}' does not exist")]
    Missing(PathBuf),
    #[error("source path '{0}' is not a regular file")]
    NotAFile(PathBuf),
    #[error("destination '{0}' is a directory")]
    Directory(PathBuf),
    #[error("not enough disk space available")]
    NoSpace,
    #[error(transparent)]
    Path(#[from] PathError),
    #[error(transparent)]
    Access(#[from] AccessError),
    #[error(transparent)]
    Dirs(#[from] DirsError),
    #[error("composing '{path}'")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

impl From<ComposeError> for HttpError {
    fn from(error: ComposeError) -> Self {
        let message = error.to_string();
        match error {
            ComposeError::Missing(_) => Self::not_found(message),
            ComposeError::NoSpace => Self::new(StatusCode::INSUFFICIENT_STORAGE, message),
            ComposeError::Access(access) => access.into(),
            ComposeError::Dirs(DirsError::Create { source, .. }) | ComposeError::Io { source, .. } => {
                Self::new(Fault::of(&source).status(), format!("{message}: {}", reason(&source)))
            }
            _ => Self::bad_request(message),
        }
    }
}

/// Concatenates the sources, in order, into the destination, and removes them.
pub(super) async fn post(Shared(state): Shared<Arc<State>>, request: Request) -> Response {
    match serve(&state, request).await {
        Ok(entry) => Json(entry).into_response(),
        Err(error) => error.into_response(),
    }
}

async fn serve(state: &Arc<State>, request: Request) -> Result<Entry, HttpError> {
    let body = axum::body::to_bytes(request.into_body(), MAX_REQUEST_BYTES).await;
    let body = body.map_err(|_| HttpError::bad_request("the request is too large or ended early"))?;
    let order: Order = serde_json::from_slice(&body)
        .map_err(|error| HttpError::bad_request(format!("invalid request body: {error}")))?;
    let state = state.clone();
    let done = blocking(move || compose(&state, &order)).await;
    Ok(done.ok_or_else(|| HttpError::internal("composing failed unexpectedly"))??)
}

fn compose(state: &State, order: &Order) -> Result<Entry, ComposeError> {
    if order.source_paths.is_empty() {
        return Err(ComposeError::NoSources);
    }
    if order.destination.is_empty() {
        return Err(ComposeError::NoDestination);
    }
    let name = order.username.as_deref().filter(|name| !name.is_empty());
    let user = state.user(name).map_err(AccessError::from)?;
    let destination = paths::resolve(&user, state, &order.destination)?;
    // The same file under another name (`//`, `..`, a link to its directory) would be removed with the sources.
    let there = std::fs::symlink_metadata(&destination).ok();
    let is_destination = |path: &Path| {
        let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
        there.as_ref().is_some_and(|d| std::fs::symlink_metadata(path).is_ok_and(|s| same(d, &s)))
    };
    let mut sources = Vec::with_capacity(order.source_paths.len());
    for source in &order.source_paths {
        let path = paths::resolve(&user, state, source)?;
        if path == destination || is_destination(&path) {
            return Err(ComposeError::Same(path));
        }
        match std::fs::metadata(&path) {
            Ok(found) if found.is_file() => sources.push(path),
            Ok(_) => return Err(ComposeError::NotAFile(path)),
            Err(_) => return Err(ComposeError::Missing(path)),
        }
    }
    if std::fs::metadata(&destination).is_ok_and(|d| d.is_dir()) {
        return Err(ComposeError::Directory(destination));
    }
    let bytes = concatenate(&sources, &destination, &user)?;
    for source in &sources {
        // The result is there; a source that stays is only in the way.
        std::fs::remove_file(source).ok();
    }
    let path = destination.to_string_lossy().into_owned();
    state.logs.add(
        Level::Info,
        "files",
        "files composed",
        json!({"path": path, "sources": sources.len(), "bytes": bytes}),
    );
    let name = destination.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Ok(Entry { name, path, r#type: "file" })
}

/// Writes to a temporary file next to the destination and renames it at the end, so that a failure leaves the
/// destination as it was.
fn concatenate(sources: &[PathBuf], destination: &Path, user: &User) -> Result<u64, ComposeError> {
    let parent = destination.parent().unwrap_or(Path::new("/"));
    dirs::ensure(parent, user)?;
    let random = hutch_types::Secret::random(8);
    let temporary = Temporary(Some(parent.join(format!(".hutch-compose.{}.tmp", random.expose()))));
    let path = temporary.0.as_deref().unwrap_or(parent);
    let failed = |path: &Path, source: io::Error| match Fault::of(&source) {
        Fault::NoSpace => ComposeError::NoSpace,
        _ => ComposeError::Io { path: path.to_owned(), source },
    };
    let made = OpenOptions::new().write(true).create_new(true).mode(0o644).open(path);
    let mut out = made.map_err(|e| failed(destination, e))?;
    if user.switch {
        let owned = std::os::unix::fs::fchown(&out, Some(user.uid), Some(user.gid));
        owned.map_err(|e| failed(destination, e))?;
    }
    let mut bytes: u64 = 0;
    for source in sources {
        let mut input = File::open(source).map_err(|e| failed(source, e))?;
        // The kernel copies, or shares the blocks where the file system can.
        let copied = io::copy(&mut input, &mut out).map_err(|e| failed(source, e))?;
        bytes = bytes.saturating_add(copied);
    }
    std::fs::rename(path, destination).map_err(|e| failed(destination, e))?;
    temporary.keep();
    Ok(bytes)
}

/// A file that is removed unless it is kept.
struct Temporary(Option<PathBuf>);

impl Temporary {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Some(path) = &self.0 {
            std::fs::remove_file(path).ok();
        }
    }
}
