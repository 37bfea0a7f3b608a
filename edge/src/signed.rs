//! Signed URLs that do not name their sandbox.
//!
//! SDKs that are told one address for all sandboxes make such URLs for downloads and uploads; a browser or curl opens them
//! without the routing headers. The signature itself tells which sandbox is meant.

use http::Method;
use http::header::ACCESS_CONTROL_REQUEST_METHOD;
use http::request::Parts;
use hutch_node_api::SignedFile;
use hutch_types::signed::Operation;

/// Longer queries are no signed URLs of ours.
const MAX_QUERY: usize = 16 * 1024;

/// What the request asks for, if it is one by a signed URL.
pub(crate) fn signed_file(parts: &Parts) -> Option<SignedFile> {
    if parts.uri.path() != "/files" {
        return None;
    }
    let method = match parts.method {
        // A browser's question about an upload or download that follows.
        Method::OPTIONS => parts.headers.get(ACCESS_CONTROL_REQUEST_METHOD)?.as_bytes().try_into().ok()?,
        ref method => method.clone(),
    };
    let query = parts.uri.query().filter(|q| q.len() <= MAX_QUERY)?;
    let (mut path, mut username, mut expiration, mut signature) = (String::new(), String::new(), None, None);
    for (key, value) in form_urlencoded::parse(query.as_bytes()) {
        match &*key {
            "path" => path = value.into_owned(),
            "username" => username = value.into_owned(),
            "signature" => signature = Some(value.into_owned()),
            "signature_expiration" => expiration = Some(value.parse().ok()?),
            _ => {}
        }
    }
    let operation = if method == Method::POST { Operation::Write } else { Operation::Read };
    Some(SignedFile { path, operation, username, expiration, signature: signature? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(method: &str, uri: &str) -> Option<SignedFile> {
        let request =
            http::Request::builder().method(method).uri(uri).header("access-control-request-method", "POST");
        signed_file(&request.body(()).unwrap().into_parts().0)
    }

    #[test]
    fn the_query_is_read_as_clients_write_it() {
        let file =
            of("GET", "/files?path=a+b%C3%A9.txt&username=user&signature=v1_a%2Bb/c&signature_expiration=17")
                .unwrap();
        assert_eq!(file.path, "a bé.txt");
        assert_eq!(file.signature, "v1_a+b/c");
        assert_eq!((file.expiration, file.operation), (Some(17), Operation::Read));
        assert_eq!(of("POST", "/files?signature=v1_x").unwrap().operation, Operation::Write);
        assert_eq!(of("OPTIONS", "/files?signature=v1_x").unwrap().operation, Operation::Write);
    }

    #[test]
    fn other_requests_are_none() {
        for uri in [
            "/files",
            "/files?path=x",
            "/sandboxes?signature=v1_x",
            "/files?signature=x&signature_expiration=soon",
        ] {
            assert_eq!(of("GET", uri), None, "{uri}");
        }
    }
}
