//! Templates, read only.

use std::str::FromStr;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use http::HeaderValue;
use hutch_app::{Caller, Template};
use hutch_types::Timestamp;

use crate::ApiState;
use crate::auth::Auth;
use crate::dto::{AliasDto, TagExists, TemplateBuildDto, TemplateDto, TemplateWithBuilds};
use crate::error::{ApiError, CommonErrors, NotFound};
use crate::page::{NEXT_TOKEN, newest_first_token, parse_newest_first_token};
use crate::path::TextPath;
use crate::query::Query;

/// Rows of a page.
const PAGE: u32 = 100;
/// Most rows of the older list, which has no pages.
const MAX_UNPAGED: usize = 5000;

/// Lists the templates that the team may use, newest first, in pages.
#[utoipa::path(
    get, path = "/v2/templates", tag = "templates",
    params(
        ("teamID" = Option<String>, Query, description = "Must be the key's team."),
        ("nextToken" = Option<String>, Query, description = "What `x-next-token` said."),
        ("limit" = Option<u32>, Query, description = "1 to 100, the default."),
    ),
    responses(
        (status = 200, description = "A page.", body = Vec<TemplateDto>, headers(
            ("x-next-token" = String, description = "Where the next page starts; absent on the last one."),
        )),
        CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn list_templates(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    query: Query,
) -> Result<Response, ApiError> {
    check_team(&caller, &query)?;
    let templates = state.app.list_templates(&caller).await?;
    let (templates, next) = page_of(templates, &query, |t| (t.created_at, t.id.clone()))?;
    Ok(with_next(Json(views(&state, &caller, templates).await?), next))
}

/// Cuts the page that a query wants out of all rows, newest first, and says where the next one starts.
fn page_of<T, I>(
    mut rows: Vec<T>,
    query: &Query,
    place: impl Fn(&T) -> (Timestamp, I),
) -> Result<(Vec<T>, Option<String>), ApiError>
where
    I: Ord + FromStr + ToString,
{
    let limit = usize::try_from(query.limit(PAGE)?).unwrap_or(1);
    rows.sort_by_cached_key(|row| std::cmp::Reverse(place(row)));
    if let Some(token) = query.text("nextToken") {
        let after = parse_newest_first_token(token)?;
        rows.retain(|row| place(row) < after);
    }
    let has_more = rows.len() > limit;
    rows.truncate(limit);
    let last = rows.last().filter(|_| has_more).map(place);
    Ok((rows, last.map(|(at, id)| newest_first_token(at, &id.to_string()))))
}

fn with_next(body: impl IntoResponse, next: Option<String>) -> Response {
    let mut response = body.into_response();
    if let Some(Ok(token)) = next.map(HeaderValue::try_from) {
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    response
}

/// Lists the templates that the team may use, newest first.
#[utoipa::path(
    get, path = "/templates", tag = "templates",
    params(("teamID" = Option<String>, Query, description = "Must be the key's team.")),
    responses((status = 200, description = "All of them.", body = Vec<TemplateDto>), CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn list_templates_v1(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    query: Query,
) -> Result<Json<Vec<TemplateDto>>, ApiError> {
    check_team(&caller, &query)?;
    let templates = state.app.list_templates(&caller).await?;
    if templates.len() > MAX_UNPAGED {
        return Err(ApiError::bad_request(format!(
            "there are more than {MAX_UNPAGED} templates: use /v2/templates"
        )));
    }
    Ok(Json(views(&state, &caller, templates).await?))
}

/// Lists the templates that are there for every team, by id.
#[utoipa::path(
    get, path = "/default-templates", tag = "templates",
    responses((status = 200, description = "All of them.", body = Vec<TemplateDto>), CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn list_default_templates(
    State(state): State<ApiState>,
    Auth(caller): Auth,
) -> Result<Json<Vec<TemplateDto>>, ApiError> {
    let mut templates = state.app.list_templates(&caller).await?;
    templates.retain(|t| t.public);
    templates.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(Json(views(&state, &caller, templates).await?))
}

/// A template with its builds, newest first, in pages.
#[utoipa::path(
    get, path = "/templates/{templateID}", tag = "templates",
    params(
        ("templateID" = String, Path, description = "Its id, or `[namespace/]name`, percent-encoded."),
        ("nextToken" = Option<String>, Query, description = "What `x-next-token` said."),
        ("limit" = Option<u32>, Query, description = "Builds of a page: 1 to 100, the default."),
    ),
    responses(
        (status = 200, description = "The template.", body = TemplateWithBuilds, headers(
            ("x-next-token" = String, description = "Where the next page starts; absent on the last one."),
        )),
        NotFound, CommonErrors,
    ),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn get_template(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    TextPath(reference): TextPath,
    query: Query,
) -> Result<Response, ApiError> {
    let (view, builds) = state.app.get_template(&caller, &reference).await?;
    let (builds, next) = page_of(builds, &query, |b| (b.created_at, b.id.0))?;
    let body = TemplateWithBuilds {
        template: TemplateDto::from(&view),
        builds: builds.iter().map(TemplateBuildDto::from).collect(),
    };
    Ok(with_next(Json(body), next))
}

/// What a name stands for.
#[utoipa::path(
    get, path = "/templates/aliases/{alias}", tag = "templates",
    params(("alias" = String, Path, description = "`[namespace/]name[:tag]`, percent-encoded.")),
    responses((status = 200, description = "The template's id.", body = AliasDto), NotFound, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn get_template_by_alias(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    TextPath(alias): TextPath,
) -> Result<Json<AliasDto>, ApiError> {
    Ok(Json(AliasDto::from(&state.app.get_template_by_alias(&caller, &alias).await?)))
}

/// Whether a template has a tag with a ready build.
#[utoipa::path(
    get, path = "/templates/{templateID}/tags/exists", tag = "templates",
    params(
        ("templateID" = String, Path, description = "Its id, or `[namespace/]name`, percent-encoded."),
        ("tag" = String, Query),
    ),
    responses((status = 200, description = "Whether.", body = TagExists), NotFound, CommonErrors),
    security(("ApiKeyAuth" = [])),
)]
pub(crate) async fn template_tag_exists(
    State(state): State<ApiState>,
    Auth(caller): Auth,
    TextPath(reference): TextPath,
    query: Query,
) -> Result<Json<TagExists>, ApiError> {
    let tag =
        query.text("tag").ok_or_else(|| ApiError::bad_request("Invalid tag parameter: a tag is needed"))?;
    let (normalized_tag, build) = state.app.template_tag(&caller, &reference, tag).await?;
    Ok(Json(TagExists { exists: build.is_some(), normalized_tag }))
}

/// Clients may say which team they mean, but a key has only one.
fn check_team(caller: &Caller, query: &Query) -> Result<(), ApiError> {
    match query.text("teamID") {
        Some(team) if team.trim().parse() != Ok(caller.team) => {
            Err(ApiError::bad_request("Team ID param mismatch with the API key"))
        }
        _ => Ok(()),
    }
}

async fn views(
    state: &ApiState,
    caller: &Caller,
    templates: Vec<Template>,
) -> Result<Vec<TemplateDto>, ApiError> {
    let views = state.app.view_templates(caller, templates).await?;
    Ok(views.iter().map(TemplateDto::from).collect())
}
