//! `GET /logs` (internal).

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State as Shared};
use http::HeaderMap;
use serde::{Deserialize, Serialize};

use crate::auth;
use crate::error::HttpError;
use crate::logs::{Line, PageLimit};
use crate::state::State;

/// What one answer has at most. The host refuses larger ones than it expects and would then ask for the same page
/// for ever; this is well below.
const PAGE: PageLimit = PageLimit { lines: 1000, bytes: 512 << 10 };

/// The query of `GET /logs`.
#[derive(Debug, Deserialize)]
pub(crate) struct Params {
    /// Only lines with a higher number.
    #[serde(default)]
    after: u64,
}

/// A page of log lines.
#[derive(Debug, Serialize)]
pub(crate) struct Page {
    /// What to send as `after` next time.
    next: u64,
    lines: Vec<Line>,
}

/// What envd did since the host last asked.
pub(crate) async fn logs(
    Shared(state): Shared<Arc<State>>,
    headers: HeaderMap,
    Query(params): Query<Params>,
) -> Result<Json<Page>, HttpError> {
    auth::require_host(&state, &headers)?;
    let (next, lines) = state.logs.after(params.after, PAGE);
    Ok(Json(Page { next, lines }))
}
