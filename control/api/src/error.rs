//! Errors on the wire: `{code, message, error_code?}`. The one place that turns an [`ErrorClass`] into a status.

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use hutch_app::{AppError, ErrorClass, Retry};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

/// The body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Error)]
pub struct ErrorBody {
    /// The HTTP status again.
    #[schema(example = 404)]
    pub code: u16,
    /// What went wrong, for people.
    pub message: String,
    /// What went wrong, for programs, where that is agreed. An open set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error_code: Option<&'static str>,
}

/// A failed request, ready to be sent.
#[derive(Debug)]
pub struct ApiError {
    status: StatusCode,
    message: String,
    error_code: Option<&'static str>,
    retry: Retry,
}

impl ApiError {
    /// An error of the HTTP layer itself.
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error_code: None, retry: Retry::Default }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// What later versions will do.
    pub(crate) fn not_supported(what: &str) -> Self {
        let message = format!("{what} is not supported by this version of Hutch");
        Self { retry: Retry::Never, ..Self::new(StatusCode::NOT_IMPLEMENTED, message) }
    }

    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    pub(crate) fn body(&self) -> ErrorBody {
        ErrorBody { code: self.status.as_u16(), message: self.message.clone(), error_code: self.error_code }
    }
}

fn status_of(class: ErrorClass) -> StatusCode {
    match class {
        ErrorClass::Invalid => StatusCode::BAD_REQUEST,
        ErrorClass::Unauthenticated => StatusCode::UNAUTHORIZED,
        ErrorClass::Forbidden => StatusCode::FORBIDDEN,
        ErrorClass::NotFound => StatusCode::NOT_FOUND,
        ErrorClass::Conflict => StatusCode::CONFLICT,
        ErrorClass::OutcomeUnknown => StatusCode::UNPROCESSABLE_ENTITY,
        ErrorClass::LimitReached => StatusCode::TOO_MANY_REQUESTS,
        ErrorClass::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
        ErrorClass::DeadlineExceeded => StatusCode::GATEWAY_TIMEOUT,
        ErrorClass::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

impl ApiError {
    /// The wire form of a use-case's error, without logging it.
    pub(crate) fn from_app(error: &AppError) -> Self {
        Self {
            status: status_of(error.class()),
            message: error.message().to_owned(),
            error_code: error.code(),
            retry: error.retry(),
        }
    }
}

impl From<AppError> for ApiError {
    fn from(error: AppError) -> Self {
        let chain = error.chain();
        match error.class() {
            ErrorClass::Internal => tracing::error!(error = chain, "a request failed"),
            ErrorClass::Unavailable | ErrorClass::DeadlineExceeded => {
                tracing::warn!(error = chain, "a request failed");
            }
            _ => tracing::debug!(error = chain, "a request was refused"),
        }
        Self::from_app(&error)
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, axum::Json(self.body())).into_response();
        let headers = response.headers_mut();
        match self.retry {
            Retry::Default => {}
            Retry::Never => {
                headers.insert("should-retry", HeaderValue::from_static("false"));
            }
            Retry::After(seconds) => {
                headers.insert("should-retry", HeaderValue::from_static("true"));
                headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            }
        }
        response
    }
}

/// What any operation may answer instead of its success, for the OpenAPI document.
#[derive(Debug, IntoResponses)]
#[expect(dead_code, reason = "only described, never built")]
pub(crate) enum CommonErrors {
    /// The request is wrong, or asks for what this version cannot do.
    #[response(status = 400)]
    BadRequest(ErrorBody),
    /// No API key, or not a known one.
    #[response(status = 401)]
    Unauthorized(ErrorBody),
    /// A limit is reached; `Retry-After` says when to try again.
    #[response(status = 429)]
    TooManyRequests(ErrorBody),
    /// Our fault.
    #[response(status = 500)]
    Internal(ErrorBody),
    /// Try again later; nothing was changed.
    #[response(status = 503)]
    Unavailable(ErrorBody),
}

/// The thing is not there, or not the caller's.
#[derive(Debug, IntoResponses)]
#[response(status = 404)]
#[expect(dead_code, reason = "only described, never built")]
pub(crate) struct NotFound(ErrorBody);

/// The thing is in a state that does not allow it.
#[derive(Debug, IntoResponses)]
#[response(status = 409)]
#[expect(dead_code, reason = "only described, never built")]
pub(crate) struct Conflict(ErrorBody);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_have_their_statuses() {
        for (class, status) in [
            (ErrorClass::Invalid, 400),
            (ErrorClass::Unauthenticated, 401),
            (ErrorClass::Forbidden, 403),
            (ErrorClass::NotFound, 404),
            (ErrorClass::Conflict, 409),
            (ErrorClass::OutcomeUnknown, 422),
            (ErrorClass::LimitReached, 429),
            (ErrorClass::Internal, 500),
            (ErrorClass::Unavailable, 503),
            (ErrorClass::DeadlineExceeded, 504),
        ] {
            assert_eq!(status_of(class).as_u16(), status);
        }
    }

    #[test]
    fn a_limit_says_when_to_come_back() {
        let response = ApiError::from(AppError::new(ErrorClass::LimitReached, "full")).into_response();
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "1");
        assert_eq!(response.headers()["should-retry"], "true");
    }

    #[test]
    fn what_comes_later_is_not_worth_a_retry() {
        let response = ApiError::not_supported("taking snapshots").into_response();
        assert_eq!(response.status(), 501);
        assert_eq!(response.headers()["should-retry"], "false");
        assert!(response.headers().get("retry-after").is_none());
    }
}
