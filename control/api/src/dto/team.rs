//! A team in answers.

use hutch_app::Team;
use serde::Serialize;
use utoipa::ToSchema;

/// A team that the caller may act for.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Team)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TeamDto {
    #[serde(rename = "teamID")]
    team_id: String,
    name: String,
    /// The key that the request came with: the server knows no key in clear.
    api_key: String,
    is_default: bool,
}

impl TeamDto {
    pub(crate) fn new(team: &Team, api_key: &str) -> Self {
        Self {
            team_id: team.id.to_string(),
            name: team.name.clone(),
            api_key: api_key.to_owned(),
            is_default: true,
        }
    }
}
