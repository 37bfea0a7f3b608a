//! Parameters in paths. They arrive percent-encoded and are decoded once; an encoded slash stays in its segment.

use axum::extract::{FromRequestParts, Path};
use http::StatusCode;
use http::request::Parts;
use hutch_types::SandboxId;

use crate::ApiState;
use crate::error::ApiError;

/// The sandbox id of a path: `<id>` or the older `<id>-<clientID>`.
#[derive(Debug)]
pub(crate) struct SandboxPath(pub(crate) SandboxId);

impl FromRequestParts<ApiState> for SandboxPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let TextPath(text) = TextPath::from_request_parts(parts, state).await?;
        parse_sandbox_id(&text).map(Self)
    }
}

/// The only parameter of a path, as text.
#[derive(Debug)]
pub(crate) struct TextPath(pub(crate) String);

impl FromRequestParts<ApiState> for TextPath {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        match Path::<String>::from_request_parts(parts, state).await {
            Ok(Path(text)) => Ok(Self(text)),
            Err(rejection) => {
                Err(ApiError::bad_request(format!("Invalid path parameter: {}", rejection.body_text())))
            }
        }
    }
}

/// A well-formed id that no sandbox can have is simply not found; anything else is refused.
pub(crate) fn parse_sandbox_id(text: &str) -> Result<SandboxId, ApiError> {
    if let Ok(id) = SandboxId::parse_wire(text) {
        return Ok(id);
    }
    let mut parts = text.split('-');
    let id = parts.next().unwrap_or_default();
    let is_plain = !id.is_empty() && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if is_plain && parts.count() <= 1 {
        let message = format!("Sandbox \"{id}\" doesn't exist or you don't have access to it");
        return Err(ApiError::new(StatusCode::NOT_FOUND, message));
    }
    Err(ApiError::bad_request("Invalid sandbox ID"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_missing_or_refused() {
        let status =
            |text: &str| parse_sandbox_id(text).map(|id| id.to_string()).map_err(|e| e.status().as_u16());
        assert_eq!(status("iabcdefgh12"), Ok("iabcdefgh12".to_owned()));
        assert_eq!(status("iabcdefgh12-c0"), Ok("iabcdefgh12".to_owned()));
        assert_eq!(status("abc"), Err(404));
        assert_eq!(status("a-b"), Err(404));
        for bad in
            ["", "-", "-x", "iabcdefgh12-a-b", "IABCDEFGH", "../../etc/passwd", "i abcdefgh", "é1234567"]
        {
            assert_eq!(status(bad), Err(400), "{bad:?}");
        }
    }
}
