//! What surrounds every route: request ids and logging, CORS, panics, and JSON for what matches no route.

use std::any::Any;
use std::time::{Duration, Instant};

use axum::Router;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use http::{HeaderName, HeaderValue, Method, StatusCode};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{Any as AnyOrigin, CorsLayer};
use tracing::Instrument;
use uuid::Uuid;

use crate::ApiState;
use crate::error::ApiError;

/// Names a request in answers and logs.
const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A client's own request id may be this long.
const MAX_REQUEST_ID: usize = 64;

/// Request headers that browsers may send from another origin.
const ALLOWED_HEADERS: [&str; 24] = [
    "x-api-key",
    "authorization",
    "x-team-id",
    "x-admin-token",
    "content-type",
    "accept",
    "origin",
    "idempotency-key",
    "x-request-id",
    "user-agent",
    "x-requested-with",
    "baggage",
    "traceparent",
    "tracestate",
    "browser",
    "lang",
    "lang_version",
    "machine",
    "os",
    "package_version",
    "processor",
    "publisher",
    "sdk_runtime",
    "system",
];

/// Response headers that browsers may read from another origin.
const EXPOSED_HEADERS: [&str; 8] = [
    "x-next-token",
    "x-total-running",
    "ratelimit-limit",
    "ratelimit-remaining",
    "ratelimit-reset",
    "retry-after",
    "should-retry",
    "x-request-id",
];

/// Puts the layers around the routes, the first named innermost.
pub(crate) fn apply(router: Router<ApiState>) -> Router<ApiState> {
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(CatchPanicLayer::custom(panicked))
        .layer(cors())
        .layer(middleware::from_fn(with_request_id))
}

async fn no_route() -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "no matching operation was found")
}

async fn no_method(method: Method) -> ApiError {
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, format!("the method {method} is not allowed here"))
}

fn panicked(panic: Box<dyn Any + Send>) -> Response {
    let text = panic
        .downcast_ref::<&str>()
        .map(|s| (*s).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned());
    tracing::error!(panic = text, "a request handler panicked");
    ApiError::new(StatusCode::INTERNAL_SERVER_ERROR, "an internal error occurred").into_response()
}

fn cors() -> CorsLayer {
    CorsLayer::new()
        .allow_origin(AnyOrigin)
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        .allow_headers(ALLOWED_HEADERS.map(HeaderName::from_static))
        .expose_headers(EXPOSED_HEADERS.map(HeaderName::from_static))
        .max_age(Duration::from_secs(3600))
}

/// Takes the client's request id where it is harmless, else makes one; logs the request under it.
async fn with_request_id(mut request: Request, next: Next) -> Response {
    let given = request.headers().get(REQUEST_ID).filter(|v| {
        let bytes = v.as_bytes();
        !bytes.is_empty()
            && bytes.len() <= MAX_REQUEST_ID
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    });
    let id = match given {
        Some(given) => given.clone(),
        None => HeaderValue::try_from(Uuid::new_v4().to_string())
            .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
    };
    request.headers_mut().insert(REQUEST_ID, id.clone());
    let span = tracing::info_span!(
        "request",
        id = id.to_str().unwrap_or_default(),
        method = %request.method(),
        path = request.uri().path(),
    );
    async move {
        let begun = Instant::now();
        let mut response = next.run(request).await;
        tracing::debug!(status = response.status().as_u16(), took = ?begun.elapsed(), "request served");
        response.headers_mut().insert(REQUEST_ID, id);
        response
    }
    .instrument(span)
    .await
}
