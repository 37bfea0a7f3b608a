//! `/files`: download, upload and compose.
//!
//! Files travel in constant memory, whatever their size. envd acts as root and gives what it creates to the user that
//! a request names, as E2B's does: inside one sandbox its users do not protect themselves from one another. Paths are
//! therefore not confined, and races with links that a program swaps meanwhile gain it nothing.

mod access;
mod compose;
mod conditional;
mod content_type;
mod download;
mod error;
pub(crate) mod metadata;
mod multipart;
mod negotiate;
mod range;
mod signature;
mod sink;
mod target;
mod upload;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};

use crate::state::State;

/// The routes `/files` and `/files/compose`.
pub fn router() -> Router<Arc<State>> {
    Router::new()
        .route("/files", get(download::get).post(upload::post))
        .route("/files/compose", post(compose::post))
}

/// Runs `work` where blocking is allowed. `None` when it panicked, which the panic hook has reported then.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
