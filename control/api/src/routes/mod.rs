//! The handlers, by area. Each takes a request apart, asks one use-case, and puts its answer together.

mod leases;
mod meta;
mod pauses;
mod sandboxes;
mod telemetry;
mod templates;

use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::ApiState;

/// All operations that this version has.
pub(crate) fn all() -> OpenApiRouter<ApiState> {
    OpenApiRouter::new()
        .routes(routes!(meta::get_health))
        .routes(routes!(meta::list_teams))
        .routes(routes!(sandboxes::create_sandbox_v1, sandboxes::list_sandboxes_v1))
        .routes(routes!(sandboxes::create_sandbox, sandboxes::list_sandboxes))
        .routes(routes!(sandboxes::get_sandbox, sandboxes::kill_sandbox))
        .routes(routes!(leases::set_timeout))
        .routes(routes!(leases::refresh_sandbox))
        .routes(routes!(leases::connect_sandbox_v1))
        .routes(routes!(leases::connect_sandbox))
        .routes(routes!(pauses::pause_sandbox))
        .routes(routes!(pauses::resume_sandbox))
        .routes(routes!(telemetry::sandbox_logs_v1))
        .routes(routes!(telemetry::sandbox_logs))
        .routes(routes!(telemetry::sandbox_metrics))
        .routes(routes!(telemetry::latest_metrics))
        .routes(routes!(templates::list_templates_v1))
        .routes(routes!(templates::list_templates))
        .routes(routes!(templates::list_default_templates))
        .routes(routes!(templates::get_template))
        .routes(routes!(templates::get_template_by_alias))
        .routes(routes!(templates::template_tag_exists))
}
