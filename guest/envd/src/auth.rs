//! Who may ask what: the access token, the host's secret, and the user named in a request.

use std::sync::Arc;

use axum::extract::{Request, State as Shared};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use connectrpc::ConnectError;
use http::{HeaderMap, Method, header};
use hutch_types::Secret;
use subtle::ConstantTimeEq;

use crate::error::HttpError;
use crate::state::State;
use crate::users::{User, UserError};

/// The header with the access token.
pub const ACCESS_TOKEN: &str = "x-access-token";
/// The header with the secret between host and envd.
pub const HOST_SECRET: &str = "x-hutch-secret";

/// Whether `given` is `wanted`, in time that does not tell where they differ.
pub fn same_secret(wanted: &Secret, given: &[u8]) -> bool {
    wanted.expose().as_bytes().ct_eq(given).into()
}

/// What a request's access token says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TokenCheck {
    /// The sandbox asks for none.
    Open,
    /// The right one.
    Valid,
    /// None was sent, or an empty one.
    Missing,
    /// A wrong one.
    Wrong,
}

/// Compares a request's access token with the sandbox's.
pub fn check_token(state: &State, headers: &HeaderMap) -> TokenCheck {
    let Some(wanted) = state.access_token() else { return TokenCheck::Open };
    match headers.get(ACCESS_TOKEN).map(http::HeaderValue::as_bytes) {
        None | Some(b"") => TokenCheck::Missing,
        Some(given) if same_secret(&wanted, given) => TokenCheck::Valid,
        Some(_) => TokenCheck::Wrong,
    }
}

/// Paths that check for themselves: `/files` also accepts signatures, the internal ones ask for the host's secret.
fn checks_itself(method: &Method, path: &str) -> bool {
    match path {
        "/health" => method == Method::GET,
        "/files" => method == Method::GET || method == Method::POST,
        "/init" => method == Method::POST,
        "/tunnel" | "/logs" => method == Method::GET,
        _ => false,
    }
}

/// The middleware that asks for the access token.
pub(crate) async fn require_token(
    Shared(state): Shared<Arc<State>>,
    request: Request,
    next: Next,
) -> Response {
    let passes = matches!(check_token(&state, request.headers()), TokenCheck::Open | TokenCheck::Valid)
        || checks_itself(request.method(), request.uri().path());
    if !passes {
        let message =
            "unauthorized access, please provide a valid access token or method signing if supported";
        return HttpError::unauthorized(message).into_response();
    }
    next.run(request).await
}

/// Asks for the host's secret, for internal routes.
///
/// # Errors
/// 401 when it is missing or wrong, or when this envd has none.
pub(crate) fn require_host(state: &State, headers: &HeaderMap) -> Result<(), HttpError> {
    let given = headers.get(HOST_SECRET).map_or(&b""[..], http::HeaderValue::as_bytes);
    match &state.config.secret {
        Some(secret) if same_secret(secret, given) => Ok(()),
        _ => Err(HttpError::unauthorized("this path is reserved for the host")),
    }
}

/// The user that an RPC names by Basic authentication (any password), or the default user.
///
/// # Errors
/// `unauthenticated` when there is no such user, `internal` when users cannot be looked up.
pub fn request_user(state: &State, headers: &HeaderMap) -> Result<User, ConnectError> {
    let name = basic_user(headers);
    state.user(name.as_deref()).map_err(|error| match error {
        UserError::Unknown(default) if name.is_none() => {
            ConnectError::unauthenticated(format!("invalid default user: '{default}'"))
        }
        UserError::Unknown(_) => ConnectError::unauthenticated(error.to_string()),
        UserError::Read { .. } => ConnectError::internal(error.to_string()).with_source(error),
    })
}

/// The name in `Authorization: Basic`; anything else in that header is ignored, as not every request needs a user.
fn basic_user(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, credentials) = value.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    let decoded = String::from_utf8(STANDARD.decode(credentials.trim()).ok()?).ok()?;
    decoded.split_once(':').map(|(name, _)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Users};
    use crate::state::Update;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs.iter().map(|(k, v)| (http::HeaderName::from_static(k), v.parse().unwrap())).collect()
    }

    #[test]
    fn the_basic_user_is_the_part_before_the_colon() {
        let user = |v: &str| basic_user(&headers(&[("authorization", v)]));
        assert_eq!(user("Basic cm9vdDo="), Some("root".to_owned()));
        assert_eq!(user("basic dXNlcjpwdw=="), Some("user".to_owned()));
        for ignored in ["Bearer cm9vdDo=", "Basic", "Basic !!", "Basic cm9vdA=="] {
            assert_eq!(user(ignored), None, "{ignored}");
        }
    }

    #[test]
    fn an_unknown_user_is_named_in_the_error() {
        let users = Users::Everyone { home: "/".into() };
        let state = State::new(Config { users, ..Config::default() });
        let error = request_user(&state, &headers(&[("authorization", "Basic Z2hvc3Q6")])).unwrap_err();
        assert_eq!(error.code, connectrpc::ErrorCode::Unauthenticated);
        assert_eq!(error.message.as_deref(), Some("invalid username: 'ghost'"));
        assert_eq!(request_user(&state, &HeaderMap::new()).unwrap().name, "user");
    }

    #[test]
    fn tokens_are_told_apart() {
        let state = State::new(Config::default());
        assert_eq!(check_token(&state, &HeaderMap::new()), TokenCheck::Open);
        state.update(Update { access_token: Some(Secret::new("abc")), ..Update::default() });
        let check = |token: &str| check_token(&state, &headers(&[(ACCESS_TOKEN, token)]));
        assert_eq!(check("abc"), TokenCheck::Valid);
        assert_eq!(check("abcd"), TokenCheck::Wrong);
        assert_eq!(check(""), TokenCheck::Missing);
        assert_eq!(check_token(&state, &HeaderMap::new()), TokenCheck::Missing);
    }

    #[test]
    fn internal_routes_are_closed_without_the_secret() {
        let open = State::new(Config::default());
        assert!(require_host(&open, &headers(&[(HOST_SECRET, "")])).is_err());
        let state = State::new(Config { secret: Some(Secret::new("s")), ..Config::default() });
        assert!(require_host(&state, &HeaderMap::new()).is_err());
        assert!(require_host(&state, &headers(&[(HOST_SECRET, "x")])).is_err());
        assert!(require_host(&state, &headers(&[(HOST_SECRET, "s")])).is_ok());
    }
}
