//! `GET /envs`.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use http::{HeaderValue, header};

use crate::state::State;

/// The variables that every process of the sandbox gets.
pub(crate) async fn envs(
    Shared(state): Shared<Arc<State>>,
) -> ([(header::HeaderName, HeaderValue); 1], Json<BTreeMap<String, String>>) {
    ([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(state.env_vars()))
}
