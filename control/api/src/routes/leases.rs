//! A sandbox's lease: timeout, refreshes, connect.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use hutch_app::Connected;

use crate::ApiState;
use crate::auth::Auth;
use crate::body::{JsonBody, OptionalJsonBody};
use crate::dto::{ConnectSandbox, RefreshSandbox, SandboxDto, SetTimeout};
use crate::error::{ApiError, CommonErrors, Conflict, ErrorBody, NotFound};
use crate::path::SandboxPath;

/// Seconds that a sandbox lives at least after a connect when the client does not say.
const DEFAULT_CONNECT_TIMEOUT: u32 = 300;

/// Sets when a running sandbox ends.
#[utoipa::path(
    post, path = "/sandboxes/{sandboxID}/timeout", tag = "sandboxes", request_body = SetTimeout,
    params(("sandboxID" = String, Path)),
    responses((status = 204, description = "Set."), NotFound, Conflict, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn set_timeout(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    JsonBody(body): JsonBody<SetTimeout>,
) -> Result<StatusCode, ApiError> {
    state.app.set_timeout(&caller, &id, body.timeout).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Prolongs a running sandbox's life; the operation of older clients.
#[utoipa::path(
    post, path = "/sandboxes/{sandboxID}/refreshes", tag = "sandboxes", request_body = Option<RefreshSandbox>,
    params(("sandboxID" = String, Path)),
    responses((status = 204, description = "Prolonged, or long enough already."), NotFound, Conflict, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn refresh_sandbox(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    OptionalJsonBody(body): OptionalJsonBody<RefreshSandbox>,
) -> Result<StatusCode, ApiError> {
    state.app.refresh_sandbox(&caller, &id, body.duration).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Comes back to a sandbox: makes sure that it runs, resuming a paused one, and lives a while longer.
#[utoipa::path(
    post, path = "/v2/sandboxes/{sandboxID}/connect", tag = "sandboxes", request_body = Option<ConnectSandbox>,
    params(("sandboxID" = String, Path)),
    responses(
        (status = 200, description = "It runs.", body = SandboxDto),
        (status = 201, description = "It was paused and runs again.", body = SandboxDto),
        (status = 504, description = "It takes long and goes on.", body = ErrorBody),
        NotFound, Conflict, CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn connect_sandbox(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    OptionalJsonBody(body): OptionalJsonBody<ConnectSandbox>,
) -> Result<(StatusCode, Json<SandboxDto>), ApiError> {
    let timeout = body.timeout.unwrap_or(DEFAULT_CONNECT_TIMEOUT);
    if timeout == 0 {
        return Err(ApiError::bad_request("timeout must be at least 1 second"));
    }
    let connected = state.app.connect_sandbox(&caller, &id, timeout, body.memory.unwrap_or(true)).await?;
    Ok(connection(&state, &connected))
}

/// Comes back to a sandbox; the operation of older clients.
#[utoipa::path(
    post, path = "/sandboxes/{sandboxID}/connect", tag = "sandboxes", request_body = ConnectSandbox,
    params(("sandboxID" = String, Path)),
    responses(
        (status = 200, description = "It runs.", body = SandboxDto),
        (status = 201, description = "It was paused and runs again.", body = SandboxDto),
        (status = 504, description = "It takes long and goes on.", body = ErrorBody),
        NotFound, Conflict, CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn connect_sandbox_v1(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    JsonBody(body): JsonBody<ConnectSandbox>,
) -> Result<(StatusCode, Json<SandboxDto>), ApiError> {
    let timeout =
        body.timeout.ok_or_else(|| ApiError::bad_request("Invalid request body: missing field `timeout`"))?;
    let connected = state.app.connect_sandbox(&caller, &id, timeout, body.memory.unwrap_or(true)).await?;
    Ok(connection(&state, &connected))
}

fn connection(state: &ApiState, connected: &Connected) -> (StatusCode, Json<SandboxDto>) {
    let status = if connected.resumed { StatusCode::CREATED } else { StatusCode::OK };
    (status, Json(SandboxDto::new(&state.app, &connected.sandbox)))
}
