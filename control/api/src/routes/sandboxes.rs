//! Sandboxes: create, list, get, kill.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use hutch_app::{
    App, AppError, IdempotencyRecord, IdempotentCreate, ListSandboxes, Sandbox, SandboxPage, SortOrder,
};
use hutch_types::Timestamp;

use crate::ApiState;
use crate::auth::Auth;
use crate::body::JsonBody;
use crate::dto::{ListedSandbox, NewSandbox, SandboxDetail, SandboxDto};
use crate::error::{ApiError, CommonErrors, Conflict, ErrorBody, NotFound};
use crate::page::{NEXT_TOKEN, parse_sandbox_token, sandbox_token};
use crate::path::SandboxPath;
use crate::query::Query;

/// Seconds that a sandbox lives when the client does not say.
const DEFAULT_TIMEOUT: u32 = 300;
/// The same for the older operation.
const DEFAULT_TIMEOUT_V1: u32 = 15;
/// Rows of a page.
const PAGE: u32 = 100;
/// Most rows of the older list, which has no pages.
const MAX_UNPAGED: u32 = 5000;

const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const TOTAL_RUNNING: HeaderName = HeaderName::from_static("x-total-running");

/// Creates a sandbox; answers when it does.
#[utoipa::path(
    post, path = "/v2/sandboxes", tag = "sandboxes", request_body = NewSandbox,
    params(("Idempotency-Key" = Option<String>, Header,
        description = "1 to 255 of a-z, 0-9 and '-'. Within a day, the same key gets the same answer.")),
    responses(
        (status = 201, description = "It runs.", body = SandboxDto),
        (status = 422, description = "What became of a request with this key is not known.", body = ErrorBody),
        (status = 504, description = "It did not start in time; nothing is left of it.", body = ErrorBody),
        NotFound, Conflict, CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn create_sandbox(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    headers: HeaderMap,
    JsonBody(body): JsonBody<NewSandbox>,
) -> Result<Response, ApiError> {
    let request = body.into_request(DEFAULT_TIMEOUT)?;
    let Some(key) = idempotency_key(&headers)? else {
        let sandbox = state.app.create_sandbox(&caller, request).await?;
        return Ok(created(&state.app, &sandbox));
    };
    match state.app.create_sandbox_idempotent(&caller, request, key, record).await? {
        IdempotentCreate::Fresh(sandbox) => Ok(created(&state.app, &sandbox)),
        IdempotentCreate::Replayed(record) => {
            let status = StatusCode::from_u16(record.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
            Ok((status, [(CONTENT_TYPE, "application/json")], record.body).into_response())
        }
    }
}

/// Creates a sandbox; the operation of older clients.
#[utoipa::path(
    post, path = "/sandboxes", tag = "sandboxes", request_body = NewSandbox,
    responses(
        (status = 201, description = "It runs.", body = SandboxDto),
        (status = 504, description = "It did not start in time; nothing is left of it.", body = ErrorBody),
        NotFound, CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn create_sandbox_v1(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    JsonBody(body): JsonBody<NewSandbox>,
) -> Result<Response, ApiError> {
    let sandbox = state.app.create_sandbox(&caller, body.into_request(DEFAULT_TIMEOUT_V1)?).await?;
    Ok(created(&state.app, &sandbox))
}

fn created(app: &App, sandbox: &Sandbox) -> Response {
    (StatusCode::CREATED, Json(SandboxDto::new(app, sandbox))).into_response()
}

/// What is kept of a final answer, to be given again.
fn record(app: &App, answer: &Result<Sandbox, AppError>) -> IdempotencyRecord {
    let (status, body) = match answer {
        Ok(sandbox) => (StatusCode::CREATED, serde_json::to_string(&SandboxDto::new(app, sandbox))),
        Err(error) => {
            let error = ApiError::from_app(error);
            (error.status(), serde_json::to_string(&error.body()))
        }
    };
    match body {
        Ok(body) => IdempotencyRecord { status: status.as_u16(), body },
        Err(error) => {
            tracing::error!(%error, "an answer cannot be written");
            IdempotencyRecord {
                status: 500,
                body: r#"{"code":500,"message":"an internal error occurred"}"#.to_owned(),
            }
        }
    }
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    let is_valid = (1..=255).contains(&key.len())
        && key.as_bytes().iter().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-');
    match key.to_str() {
        Ok(key) if is_valid && keys.next().is_none() => Ok(Some(key.to_owned())),
        _ => Err(ApiError::bad_request(
            "Invalid Idempotency-Key header: exactly one with 1 to 255 of a-z, 0-9 and '-' is needed",
        )),
    }
}

/// Lists sandboxes, in pages.
#[utoipa::path(
    get, path = "/v2/sandboxes", tag = "sandboxes",
    params(
        ("metadata" = Option<String>, Query, description = "`k1=v1&k2=v2`, names and values percent-encoded, and the whole again."),
        ("state" = Option<Vec<String>>, Query, style = Form, explode = false, description = "`running`, `paused`; both unless said."),
        ("order" = Option<String>, Query, description = "By start time: `desc` (default) or `asc`."),
        ("startedAfter" = Option<String>, Query, description = "RFC 3339, inclusive."),
        ("template" = Option<String>, Query, description = "A template's id or name, without a tag."),
        ("nextToken" = Option<String>, Query, description = "What `x-next-token` said."),
        ("limit" = Option<u32>, Query, description = "1 to 100, the default."),
    ),
    responses(
        (status = 200, description = "A page.", body = Vec<ListedSandbox>, headers(
            ("x-next-token" = String, description = "Where the next page starts; absent on the last one."),
            ("x-total-running" = u64, description = "How many running ones match, when they were asked for."),
        )),
        CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn list_sandboxes(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    query: Query,
) -> Result<Response, ApiError> {
    let (mut running, mut paused) = (false, false);
    for name in query.list("state") {
        match name {
            "running" => running = true,
            "paused" => paused = true,
            _ => return Err(ApiError::bad_request("Invalid state parameter: running or paused is needed")),
        }
    }
    if !running && !paused {
        (running, paused) = (true, true);
    }
    let started_after = match query.text("startedAfter") {
        None => None,
        Some(text) => Some(Timestamp::parse_rfc3339(text).map_err(|_| {
            ApiError::bad_request("Invalid startedAfter parameter: a time as in RFC 3339 is needed")
        })?),
    };
    let list = ListSandboxes {
        running,
        paused,
        metadata: query.metadata()?,
        started_after,
        template: query.text("template").map(str::to_owned),
        order: query.order()?,
        after: query.text("nextToken").map(parse_sandbox_token).transpose()?,
        limit: query.limit(PAGE)?,
    };
    let page = state.app.list_sandboxes(&caller, list).await?;
    let mut response = Json(rows(&page)).into_response();
    let headers = response.headers_mut();
    if let Some(next) = &page.next
        && let Ok(token) = HeaderValue::try_from(sandbox_token(next))
    {
        headers.insert(NEXT_TOKEN, token);
    }
    if running {
        headers.insert(TOTAL_RUNNING, HeaderValue::from(page.total_running));
    }
    Ok(response)
}

/// Lists running sandboxes, newest first; the operation of older clients.
#[utoipa::path(
    get, path = "/sandboxes", tag = "sandboxes",
    params(("metadata" = Option<String>, Query, description = "As in version 2.")),
    responses((status = 200, description = "All of them.", body = Vec<ListedSandbox>), CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn list_sandboxes_v1(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    query: Query,
) -> Result<Json<Vec<ListedSandbox>>, ApiError> {
    let list = ListSandboxes {
        running: true,
        paused: false,
        metadata: query.metadata()?,
        started_after: None,
        template: None,
        order: SortOrder::Desc,
        after: None,
        limit: MAX_UNPAGED,
    };
    let page = state.app.list_sandboxes(&caller, list).await?;
    if page.next.is_some() {
        return Err(ApiError::bad_request(format!(
            "there are more than {MAX_UNPAGED} sandboxes: use /v2/sandboxes"
        )));
    }
    Ok(Json(rows(&page)))
}

fn rows(page: &SandboxPage) -> Vec<ListedSandbox> {
    page.sandboxes.iter().map(ListedSandbox::from).collect()
}

/// Everything about a sandbox.
#[utoipa::path(
    get, path = "/sandboxes/{sandboxID}", tag = "sandboxes",
    params(("sandboxID" = String, Path)),
    responses((status = 200, description = "The sandbox.", body = SandboxDetail), NotFound, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn get_sandbox(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
) -> Result<Json<SandboxDetail>, ApiError> {
    let sandbox = state.app.get_sandbox(&caller, &id).await?;
    Ok(Json(SandboxDetail::new(&state.app, &sandbox)))
}

/// Kills a sandbox.
#[utoipa::path(
    delete, path = "/sandboxes/{sandboxID}", tag = "sandboxes",
    params(("sandboxID" = String, Path)),
    responses((status = 204, description = "It is gone."), NotFound, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn kill_sandbox(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
) -> Result<StatusCode, ApiError> {
    state.app.kill_sandbox(&caller, &id).await?;
    Ok(StatusCode::NO_CONTENT)
}
