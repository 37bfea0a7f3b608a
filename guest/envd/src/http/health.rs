//! `GET /health`.

use http::{HeaderName, HeaderValue, StatusCode, header};

use crate::ENVD_VERSION;

/// The header that says which version answers.
pub(super) const VERSION_HEADER: HeaderName = HeaderName::from_static("x-envd-version");

/// 204: that envd answers is all there is to say.
pub(crate) async fn health() -> (StatusCode, [(HeaderName, HeaderValue); 2]) {
    let headers = [
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (VERSION_HEADER, HeaderValue::from_static(ENVD_VERSION)),
    ];
    (StatusCode::NO_CONTENT, headers)
}
