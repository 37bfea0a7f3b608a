//! Health and teams.

use axum::Json;
use axum::extract::State;
use http::StatusCode;

use crate::ApiState;
use crate::auth::KeyAuth;
use crate::dto::TeamDto;
use crate::error::{ApiError, CommonErrors, ErrorBody};

/// Whether requests can be served. Needs no key.
#[utoipa::path(
    get, path = "/health", tag = "meta",
    responses((status = 204, description = "They can."), (status = 503, description = "Not now.", body = ErrorBody)),
)]
pub(crate) async fn get_health(State(state): State<ApiState>) -> Result<StatusCode, ApiError> {
    state.app.check_health().await?;
    Ok(StatusCode::NO_CONTENT)
}

/// The team that the API key acts for.
#[utoipa::path(
    get, path = "/teams", tag = "teams",
    responses((status = 200, description = "The team.", body = Vec<TeamDto>), CommonErrors),
    security(("BearerAuth" = []), ("ApiKeyAuth" = [])),
)]
pub(crate) async fn list_teams(
    State(state): State<ApiState>,
    auth: KeyAuth,
) -> Result<Json<Vec<TeamDto>>, ApiError> {
    let teams = state.app.teams(&auth.caller).await?;
    Ok(Json(teams.iter().map(|team| TeamDto::new(team, &auth.key)).collect()))
}
