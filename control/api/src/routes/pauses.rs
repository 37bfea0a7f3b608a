//! Pausing and resuming.

use axum::Json;
use axum::extract::State;
use http::StatusCode;
use hutch_app::ResumeOptions;
use hutch_types::PauseMode;

use crate::ApiState;
use crate::auth::Auth;
use crate::body::OptionalJsonBody;
use crate::dto::{PauseSandbox, ResumeSandbox, SandboxDto};
use crate::error::{ApiError, CommonErrors, Conflict, ErrorBody, NotFound};
use crate::path::SandboxPath;

/// Seconds that a sandbox lives after a resume when the client does not say.
const DEFAULT_RESUME_TIMEOUT: u32 = 15;

/// Saves a running sandbox and frees what it uses; answers when what is saved is durable.
#[utoipa::path(
    post, path = "/sandboxes/{sandboxID}/pause", tag = "sandboxes", request_body = Option<PauseSandbox>,
    params(("sandboxID" = String, Path)),
    responses(
        (status = 204, description = "It is paused."),
        (status = 504, description = "It takes long and goes on.", body = ErrorBody),
        NotFound, Conflict, CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn pause_sandbox(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    OptionalJsonBody(body): OptionalJsonBody<PauseSandbox>,
) -> Result<StatusCode, ApiError> {
    if body.require_healthy_guest.unwrap_or(false) {
        // That there is no such sandbox is told first: clients tell "gone" from "cannot" by it.
        state.app.get_sandbox(&caller, &id).await?;
        return Err(ApiError::bad_request(
            "requireHealthyGuest: true is not supported by this version of Hutch",
        ));
    }
    let mode = if body.memory.unwrap_or(true) { PauseMode::Full } else { PauseMode::Filesystem };
    state.app.pause_sandbox(&caller, &id, mode).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Brings a paused sandbox back; the operation of older clients.
#[utoipa::path(
    post, path = "/sandboxes/{sandboxID}/resume", tag = "sandboxes", request_body = Option<ResumeSandbox>,
    params(("sandboxID" = String, Path)),
    responses(
        (status = 201, description = "It runs again.", body = SandboxDto),
        (status = 504, description = "It takes long and goes on.", body = ErrorBody),
        NotFound, Conflict, CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn resume_sandbox(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    SandboxPath(id): SandboxPath,
    OptionalJsonBody(body): OptionalJsonBody<ResumeSandbox>,
) -> Result<(StatusCode, Json<SandboxDto>), ApiError> {
    let options = ResumeOptions {
        timeout_seconds: body.timeout.unwrap_or(DEFAULT_RESUME_TIMEOUT),
        memory: body.memory.unwrap_or(true),
        auto_pause: body.auto_pause,
    };
    let sandbox = state.app.resume_sandbox(&caller, &id, options).await?;
    Ok((StatusCode::CREATED, Json(SandboxDto::new(&state.app, &sandbox))))
}
