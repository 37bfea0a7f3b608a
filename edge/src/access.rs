//! The traffic access token: what a request to a private sandbox's ports must bring.
//!
//! A client sends it as header. Browsers cannot always do so: a link or an image has no headers of its own, and neither has a
//! WebSocket. So it is also taken from the query and from a WebSocket's subprotocols. Wherever it was, the server inside never
//! sees it: with it, code in the sandbox could invite others.

use http::header::{
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue, REFERER,
    SEC_WEBSOCKET_PROTOCOL,
};
use http::request::Parts;
use http::uri::PathAndQuery;
use http::{HeaderMap, Method, Uri};
use hutch_types::TokenHash;
use hutch_types::ingress::TRAFFIC_TOKEN;

/// Tokens that one request may try. Real clients send one.
const MAX_TOKENS: usize = 4;

/// The tokens of a request, taken out of it.
#[derive(Default)]
pub(crate) struct Given {
    tokens: Vec<String>,
    /// The subprotocol that had one, as the client wrote it.
    pub(crate) subprotocol: Option<HeaderValue>,
}

/// Whether a request may pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    Pass,
    Missing,
    Wrong,
}

impl Given {
    /// What `wanted` says to these tokens: one right one is enough.
    pub(crate) fn check(&self, wanted: &TokenHash) -> Verdict {
        match self.tokens.as_slice() {
            [] => Verdict::Missing,
            // All are looked at, so that the time does not tell which one it was.
            tokens if tokens.iter().fold(false, |good, token| good | wanted.is_of(token)) => Verdict::Pass,
            _ => Verdict::Wrong,
        }
    }

    fn add(&mut self, token: &str) {
        if self.tokens.len() < MAX_TOKENS {
            self.tokens.push(token.to_owned());
        }
    }
}

/// Takes all tokens out of a request.
pub(crate) fn take(parts: &mut Parts) -> Given {
    let mut given = Given::default();
    for value in parts.headers.get_all(TRAFFIC_TOKEN) {
        given.add(value.to_str().unwrap_or_default());
    }
    parts.headers.remove(TRAFFIC_TOKEN);
    take_from_query(&mut parts.uri, &mut given);
    take_from_subprotocols(&mut parts.headers, &mut given);
    // A page that was opened by such a link names it when it loads what belongs to it.
    if parts.headers.get(REFERER).is_some_and(names_a_token) {
        parts.headers.remove(REFERER);
    }
    given
}

fn names_a_token(value: &HeaderValue) -> bool {
    let decoded = percent_encoding::percent_decode(value.as_bytes()).decode_utf8_lossy();
    decoded.contains(TRAFFIC_TOKEN)
}

/// The rest of the query stays as it is, byte for byte: what is inside may have signed it.
fn take_from_query(uri: &mut Uri, given: &mut Given) {
    let Some(query) = uri.query() else { return };
    let (mut rest, mut found) = (Vec::new(), false);
    for pair in query.split('&') {
        match form_urlencoded::parse(pair.as_bytes()).next() {
            Some((name, value)) if name == TRAFFIC_TOKEN => {
                given.add(&value);
                found = true;
            }
            _ => rest.push(pair),
        }
    }
    if !found {
        return;
    }
    let path = uri.path();
    let without = if rest.is_empty() { path.to_owned() } else { format!("{path}?{}", rest.join("&")) };
    // A part of what was valid is valid; were it not, the path alone is.
    let clean = without.parse().unwrap_or_else(|_| PathAndQuery::from_static("/"));
    let mut pieces = std::mem::take(uri).into_parts();
    pieces.path_and_query = Some(clean);
    *uri = Uri::from_parts(pieces).unwrap_or_default();
}

fn take_from_subprotocols(headers: &mut HeaderMap, given: &mut Given) {
    let mut rest = Vec::new();
    let mut found = false;
    for value in headers.get_all(SEC_WEBSOCKET_PROTOCOL) {
        let Ok(text) = value.to_str() else { return };
        for offered in text.split(',').map(str::trim) {
            match offered.strip_prefix(TRAFFIC_TOKEN).and_then(|rest| rest.strip_prefix('.')) {
                Some(token) => {
                    given.add(token);
                    given.subprotocol = HeaderValue::from_str(offered).ok();
                    found = true;
                }
                None => rest.push(offered.to_owned()),
            }
        }
    }
    if !found {
        return;
    }
    headers.remove(SEC_WEBSOCKET_PROTOCOL);
    if !rest.is_empty()
        && let Ok(value) = HeaderValue::from_str(&rest.join(", "))
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, value);
    }
}

/// Whether a browser asks if a script of another origin may send the token. It sends no token with the question, and the server
/// inside must not be asked without one, so the edge answers: whoever has the token may send it from anywhere.
pub(crate) fn is_preflight_for_token(parts: &Parts) -> bool {
    parts.method == Method::OPTIONS
        && parts.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
        && parts
            .headers
            .get_all(ACCESS_CONTROL_REQUEST_HEADERS)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .any(|v| v.split(',').any(|name| name.trim().eq_ignore_ascii_case(TRAFFIC_TOKEN)))
}

#[cfg(test)]
mod tests {
    use hutch_types::Secret;
    use proptest::prelude::*;

    use super::*;

    fn parts(uri: &str, headers: &[(&str, &str)]) -> Parts {
        let request = headers.iter().fold(http::Request::builder().uri(uri), |r, (k, v)| r.header(*k, *v));
        request.body(()).unwrap().into_parts().0
    }

    fn verdict(uri: &str, headers: &[(&str, &str)]) -> (Verdict, Parts) {
        let mut parts = parts(uri, headers);
        let given = take(&mut parts);
        (given.check(&TokenHash::of(&Secret::new("good"))), parts)
    }

    #[test]
    fn a_token_is_found_wherever_a_client_can_put_it_and_taken_out() {
        let with: [(&str, &[(&str, &str)]); 6] = [
            ("/a?b=1", &[(TRAFFIC_TOKEN, "good")]),
            ("/a?b=1&e2b-traffic-access-token=good", &[]),
            ("/a?e2b%2Dtraffic-access-token=g%6Fod&b=1", &[]),
            ("/a?b=1", &[("sec-websocket-protocol", "chat, e2b-traffic-access-token.good")]),
            (
                "/a?b=1",
                &[
                    ("sec-websocket-protocol", "e2b-traffic-access-token.good"),
                    ("sec-websocket-protocol", "chat"),
                ],
            ),
            (
                "/a?b=1&e2b-traffic-access-token=bad",
                &[(TRAFFIC_TOKEN, "good"), ("referer", "https://x/?e2b%2dtraffic-access-token=good")],
            ),
        ];
        for (uri, headers) in with {
            let (verdict, parts) = verdict(uri, headers);
            assert_eq!(verdict, Verdict::Pass, "{uri} {headers:?}");
            assert_eq!(parts.uri, "/a?b=1", "{headers:?}");
            let left = format!("{:?}", parts.headers);
            assert!(!left.contains("good") && !left.contains(TRAFFIC_TOKEN), "{left}");
            assert_eq!(headers.iter().any(|(_, v)| v.contains("chat")), left.contains("chat"));
        }
    }

    #[test]
    fn without_it_or_with_another_nobody_passes() {
        assert_eq!(verdict("/a?token=good", &[("authorization", "good")]).0, Verdict::Missing);
        for bad in ["", "Good", "good ", "goodgood"] {
            assert_eq!(verdict("/", &[(TRAFFIC_TOKEN, bad)]).0, Verdict::Wrong, "{bad}");
        }
        assert_eq!(verdict("/?e2b-traffic-access-token", &[]).0, Verdict::Wrong);
        let many = "e2b-traffic-access-token=x&".repeat(8) + "e2b-traffic-access-token=good";
        assert_eq!(verdict(&format!("/?{many}"), &[]).0, Verdict::Wrong, "no guessing in bulk");
    }

    #[test]
    fn only_a_question_about_the_token_is_a_preflight() {
        let ask = |headers: &[(&str, &str)]| {
            let mut parts = parts("/", headers);
            parts.method = Method::OPTIONS;
            is_preflight_for_token(&parts)
        };
        let method = ("access-control-request-method", "GET");
        assert!(ask(&[method, ("access-control-request-headers", "content-type, E2B-Traffic-Access-Token")]));
        assert!(!ask(&[method, ("access-control-request-headers", "content-type")]));
        assert!(!ask(&[("access-control-request-headers", TRAFFIC_TOKEN)]));
    }

    proptest! {
        #[test]
        fn other_queries_are_left_byte_for_byte(query in "[a-zA-Z0-9%&=+._~-]{0,60}") {
            let uri = format!("/p?{query}");
            if let Ok(parsed) = uri.parse::<Uri>() {
                let mut uri = parsed.clone();
                take_from_query(&mut uri, &mut Given::default());
                prop_assert_eq!(uri, parsed);
            }
        }

        #[test]
        fn no_token_stays_in_a_query(before in "[a-z0-9%&=+]{0,20}", token in "[a-zA-Z0-9]{12,40}", after in "[a-z0-9%&=+]{0,20}") {
            let uri = format!("/p?{before}&{TRAFFIC_TOKEN}={token}&{after}");
            let mut uri: Uri = uri.parse().unwrap();
            let mut given = Given::default();
            take_from_query(&mut uri, &mut given);
            let expected = format!("/p?{before}&{after}");
            prop_assert_eq!(uri.to_string(), expected);
            prop_assert_eq!(given.tokens, vec![token]);
        }
    }
}
