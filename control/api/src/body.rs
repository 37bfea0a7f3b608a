//! Request bodies: JSON, capped, with a deadline, whatever the transfer encoding and content type.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use http::{StatusCode, header};
use http_body_util::{BodyExt, Limited};
use serde::de::DeserializeOwned;

use crate::ApiState;
use crate::error::ApiError;

/// A JSON body that must be there. Unknown fields are ignored.
#[derive(Debug)]
pub(crate) struct JsonBody<T>(pub(crate) T);

/// A JSON body that may be missing or empty, which means all defaults.
#[derive(Debug)]
pub(crate) struct OptionalJsonBody<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<ApiState> for JsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        let bytes = read(request, state).await?;
        if is_blank(&bytes) {
            return Err(ApiError::bad_request("Invalid request body: it is empty, a JSON object is needed"));
        }
        parse(&bytes).map(Self)
    }
}

impl<T: DeserializeOwned + Default> FromRequest<ApiState> for OptionalJsonBody<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &ApiState) -> Result<Self, ApiError> {
        let bytes = read(request, state).await?;
        if is_blank(&bytes) {
            return Ok(Self(T::default()));
        }
        parse::<Option<T>>(&bytes).map(|body| Self(body.unwrap_or_default()))
    }
}

async fn read(request: Request, state: &ApiState) -> Result<Vec<u8>, ApiError> {
    let limit = state.app.limits().max_body_bytes;
    let cap = usize::try_from(limit).unwrap_or(usize::MAX);
    let too_large = || {
        ApiError::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request body cannot be larger than {limit} bytes (limits.max_body_bytes)"),
        )
    };
    let declared =
        request.headers().get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > u64::from(limit)) {
        return Err(too_large());
    }
    let body: Limited<Body> = Limited::new(request.into_body(), cap);
    match tokio::time::timeout(state.config.body_deadline, body.collect()).await {
        Ok(Ok(bytes)) => Ok(bytes.to_bytes().into()),
        Ok(Err(error)) if error.is::<http_body_util::LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => {
            Err(ApiError::bad_request(format!("Invalid request body: it could not be read: {error}")))
        }
        Err(_) => Err(ApiError::new(
            StatusCode::REQUEST_TIMEOUT,
            format!(
                "the request body did not arrive within {} seconds",
                state.config.body_deadline.as_secs()
            ),
        )),
    }
}

fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(u8::is_ascii_whitespace)
}

fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    let invalid = |text: String| ApiError::bad_request(format!("Invalid request body: {text}"));
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        let path = error.path().to_string();
        let inner = error.into_inner();
        invalid(if path == "." { inner.to_string() } else { format!("{path}: {inner}") })
    })?;
    reader.end().map_err(|error| invalid(error.to_string()))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn refusal(text: &str) -> String {
        parse::<BTreeMap<String, BTreeMap<String, u32>>>(text.as_bytes()).unwrap_err().body().message
    }

    #[test]
    fn an_error_says_where_it_is() {
        let text = refusal(r#"{"metadata":{"a":1,"b":"x"}}"#);
        assert!(text.starts_with("Invalid request body: metadata.b: invalid type"), "{text}");
    }

    #[test]
    fn broken_json_and_what_follows_json_is_refused() {
        assert!(refusal("{").contains("EOF"));
        assert!(refusal("{} {}").contains("trailing characters"));
        let deep = "[".repeat(100_000);
        assert!(parse::<serde_json::Value>(deep.as_bytes()).is_err());
    }
}
