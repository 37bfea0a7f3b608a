//! The REST API that SDKs and the command line speak: routes, bodies, errors and the OpenAPI document.
//!
//! It translates between HTTP and `hutch_app`'s use-cases and decides nothing. Operations of the contract that this
//! version does not have answer 501, so that a client learns what is missing rather than that a route is unknown.

mod auth;
mod body;
mod dto;
mod error;
mod later;
mod layers;
mod openapi;
mod page;
mod path;
mod query;
mod routes;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hutch_app::App;

pub use openapi::openapi;

/// Settings of the API.
#[derive(Debug, Clone)]
pub struct ApiConfig {
    /// How long a request's body may take to arrive. Default 30 s.
    pub body_deadline: Duration,
}

impl Default for ApiConfig {
    fn default() -> Self {
        Self { body_deadline: Duration::from_secs(30) }
    }
}

/// What handlers share.
#[derive(Debug, Clone)]
pub(crate) struct ApiState {
    pub(crate) app: App,
    pub(crate) config: Arc<ApiConfig>,
}

/// All routes of the API, with its layers: request ids, CORS, panics, and JSON for what matches no route.
pub fn router(app: App, config: ApiConfig) -> Router {
    let (routes, document) = openapi::routes().split_for_parts();
    layers::apply(openapi::serve(routes, &document)).with_state(ApiState { app, config: Arc::new(config) })
}
