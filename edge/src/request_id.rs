//! The id of a request: in the edge's answers, in its log lines, and on its pages.

use http::HeaderMap;
use http::header::{HeaderName, HeaderValue};
use hutch_types::ids::random_hex;

/// The header, in requests and answers.
pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// A client's own id may be this long. The API has the same rule.
const MAX_LENGTH: usize = 64;

/// The client's id where it is harmless, else a new one. It is safe in headers, logs and pages as it is.
pub(crate) fn request_id(headers: &HeaderMap) -> HeaderValue {
    let given = headers.get(REQUEST_ID).filter(|value| {
        let bytes = value.as_bytes();
        (1..=MAX_LENGTH).contains(&bytes.len())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
    });
    match given {
        Some(given) => given.clone(),
        None => HeaderValue::try_from(random_hex(16)).unwrap_or_else(|_| HeaderValue::from_static("unknown")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_id_is_kept_where_it_does_no_harm() {
        let of = |value: &[u8]| {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_bytes(value).unwrap());
            request_id(&headers)
        };
        for good in ["a", "0b0f7c1e-6b5b-4d8f-9f2e-3c1d2e4f5a6b", "Job_7.2", &"x".repeat(64)] {
            assert_eq!(of(good.as_bytes()), good);
        }
        for bad in ["".as_bytes(), b"<script>", b"a b", "ä".as_bytes(), "x".repeat(65).as_bytes()] {
            let made = of(bad);
            assert_ne!(made.as_bytes(), bad);
            assert_eq!(made.len(), 32);
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
