//! Who is calling, from the headers.

use axum::extract::FromRequestParts;
use http::header::AUTHORIZATION;
use http::request::Parts;
use http::{HeaderMap, StatusCode};
use hutch_app::Caller;

use crate::ApiState;
use crate::error::ApiError;

/// The header that carries an API key.
pub(crate) const API_KEY: &str = "x-api-key";

/// The caller behind `X-API-Key`.
#[derive(Debug)]
pub(crate) struct Auth(pub(crate) Caller);

impl FromRequestParts<ApiState> for Auth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let key =
            api_key(&parts.headers).ok_or_else(|| missing("send your API key in the header X-API-Key"))?;
        Ok(Self(state.app.authenticate(key).await?))
    }
}

/// The caller behind `Authorization: Bearer <API key>` or `X-API-Key`, with the key itself.
#[derive(Debug)]
pub(crate) struct KeyAuth {
    pub(crate) caller: Caller,
    pub(crate) key: String,
}

impl FromRequestParts<ApiState> for KeyAuth {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &ApiState) -> Result<Self, ApiError> {
        let key = bearer(&parts.headers)
            .or_else(|| api_key(&parts.headers))
            .ok_or_else(|| missing("send your API key in the header Authorization: Bearer, or X-API-Key"))?;
        Ok(Self { caller: state.app.authenticate(key).await?, key: key.to_owned() })
    }
}

fn api_key(headers: &HeaderMap) -> Option<&str> {
    headers.get(API_KEY)?.to_str().ok().map(str::trim).filter(|k| !k.is_empty())
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.trim().split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim()).filter(|t| !t.is_empty())
}

fn missing(hint: &str) -> ApiError {
    ApiError::new(StatusCode::UNAUTHORIZED, format!("Missing credentials: {hint}"))
}
