//! Logs and metrics of sandboxes.

use axum::Json;
use axum::extract::State;
use hutch_app::{LogsQuery, MAX_LOG_LINES, MAX_METRICS_IDS, SortOrder};
use hutch_types::Timestamp;

use crate::ApiState;
use crate::auth::Auth;
use crate::dto::{LevelDto, LogEntryDto, SandboxLogs, SandboxLogsV2, SandboxMetric, SandboxesMetrics};
use crate::error::{ApiError, CommonErrors, NotFound};
use crate::path::{SandboxPath, parse_sandbox_id};
use crate::query::Query;

/// Log lines of a sandbox, oldest first; the operation that the command line uses.
#[utoipa::path(
    get, path = "/sandboxes/{sandboxID}/logs", tag = "sandboxes",
    params(
        ("sandboxID" = String, Path),
        ("start" = Option<i64>, Query, description = "Milliseconds since 1970: lines from then on."),
        ("limit" = Option<u32>, Query, description = "1 to 1000, the default."),
    ),
    responses((status = 200, description = "The lines.", body = SandboxLogs), NotFound, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn sandbox_logs_v1(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    query: Query,
) -> Result<Json<SandboxLogs>, ApiError> {
    let wanted = LogsQuery {
        cursor: query.moment("start")?.map(Timestamp),
        order: SortOrder::Asc,
        min_level: None,
        search: None,
        limit: query.limit(MAX_LOG_LINES)?,
    };
    Ok(Json(SandboxLogs::new(state.app.sandbox_logs(&caller, &id, wanted).await?)))
}

/// Log lines of a sandbox, filtered, in either direction.
#[utoipa::path(
    get, path = "/v2/sandboxes/{sandboxID}/logs", tag = "sandboxes",
    params(
        ("sandboxID" = String, Path),
        ("cursor" = Option<i64>, Query, description = "Milliseconds since 1970: lines from then on, or up to then."),
        ("limit" = Option<u32>, Query, description = "1 to 1000, the default."),
        ("direction" = Option<String>, Query, description = "`backward` (newest first, default) or `forward`."),
        ("level" = Option<String>, Query, description = "At least this level: `debug`, `info`, `warn` or `error`."),
        ("search" = Option<String>, Query, description = "Case-sensitive part of the message, at most 256 characters."),
    ),
    responses((status = 200, description = "The lines.", body = SandboxLogsV2), NotFound, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn sandbox_logs(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    query: Query,
) -> Result<Json<SandboxLogsV2>, ApiError> {
    let order = match query.text("direction") {
        None | Some("backward") => SortOrder::Desc,
        Some("forward") => SortOrder::Asc,
        Some(_) => {
            return Err(ApiError::bad_request("Invalid direction parameter: forward or backward is needed"));
        }
    };
    let min_level = query.text("level");
    if min_level.is_some_and(|level| LevelDto::parse(level).is_none()) {
        return Err(ApiError::bad_request("Invalid level parameter: debug, info, warn or error is needed"));
    }
    let wanted = LogsQuery {
        cursor: query.moment("cursor")?.map(Timestamp),
        order,
        min_level: min_level.map(str::to_owned),
        search: query.text("search").map(str::to_owned),
        limit: query.limit(MAX_LOG_LINES)?,
    };
    let logs = state.app.sandbox_logs(&caller, &id, wanted).await?;
    Ok(Json(SandboxLogsV2 { logs: logs.into_iter().map(LogEntryDto::from).collect() }))
}

/// What a sandbox used over time, with the peaks of each step.
#[utoipa::path(
    get, path = "/sandboxes/{sandboxID}/metrics", tag = "sandboxes",
    params(
        ("sandboxID" = String, Path),
        ("start" = Option<i64>, Query, description = "Seconds since 1970, inclusive."),
        ("end" = Option<i64>, Query, description = "Seconds since 1970, inclusive."),
    ),
    responses((status = 200, description = "Samples, oldest first: one for every 5 seconds of a range below an hour, fewer for longer ones, down to one for every 15 minutes.", body = Vec<SandboxMetric>), NotFound, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn sandbox_metrics(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    query: Query,
) -> Result<Json<Vec<SandboxMetric>>, ApiError> {
    let start = query.moment("start")?.map(|s| Timestamp(s.saturating_mul(1000)));
    // The whole second counts.
    let end = query.moment("end")?.map(|s| Timestamp(s.saturating_mul(1000).saturating_add(999)));
    let points = state.app.sandbox_metrics(&caller, &id, start, end).await?;
    Ok(Json(points.iter().map(SandboxMetric::from).collect()))
}

/// What several sandboxes use now; those that are not the caller's are left out.
#[utoipa::path(
    get, path = "/sandboxes/metrics", tag = "sandboxes",
    params(("sandbox_ids" = Vec<String>, Query, style = Form, explode = false, description = "At most 100.")),
    responses((status = 200, description = "The latest sample of each.", body = SandboxesMetrics), CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn latest_metrics(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    query: Query,
) -> Result<Json<SandboxesMetrics>, ApiError> {
    let texts = query.list("sandbox_ids");
    if texts.is_empty() {
        return Err(ApiError::bad_request(
            "Invalid sandbox_ids parameter: at least one sandbox ID is needed",
        ));
    }
    if texts.len() > MAX_METRICS_IDS {
        return Err(ApiError::bad_request(format!(
            "Too many sandboxes requested, maximum is {MAX_METRICS_IDS}"
        )));
    }
    let mut ids = Vec::with_capacity(texts.len());
    for text in texts {
        match parse_sandbox_id(text) {
            Ok(id) => ids.push(id),
            Err(error) if error.status() == http::StatusCode::NOT_FOUND => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Json(SandboxesMetrics::new(&state.app.latest_metrics(&caller, &ids).await?)))
}
