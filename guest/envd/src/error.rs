//! Errors of the plain HTTP routes.

use axum::Json;
use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};

/// An answer with a status and the body `{"message", "code"}` that SDKs read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct HttpError {
    /// The HTTP status, also the body's `code`.
    pub status: StatusCode,
    /// For the caller to read.
    pub message: String,
}

impl HttpError {
    /// An error with this status and message.
    pub fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }

    /// 400.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 401.
    pub fn unauthorized(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, message)
    }

    /// 404.
    pub fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    /// 500.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }
}

#[derive(serde::Serialize)]
struct Body<'a> {
    message: &'a str,
    code: u16,
}

impl IntoResponse for HttpError {
    fn into_response(self) -> Response {
        let mut response = Json(Body { message: &self.message, code: self.status.as_u16() }).into_response();
        *response.status_mut() = self.status;
        let json = HeaderValue::from_static("application/json; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, json);
        response
    }
}
