//! Whether a program or a person reads an answer. What the request says it wants decides, and the name of the agent only where it
//! says nothing: a script in a browser is a program, whatever the browser calls itself.

use http::HeaderMap;
use http::header::{ACCEPT, HeaderName, HeaderValue, UPGRADE, USER_AGENT};
use http::request::Parts;

use crate::request_id::request_id;

/// What the edge's own answers take from the request that they answer.
#[derive(Debug, Clone)]
pub struct Asked {
    pub(crate) wants_page: bool,
    pub(crate) request_id: HeaderValue,
}

impl Asked {
    /// What `parts` ask for.
    pub fn of(parts: &Parts) -> Self {
        Self { wants_page: wants_page(&parts.headers), request_id: request_id(&parts.headers) }
    }
}

/// A page is for who navigates. Scripts accept JSON, set `X-Requested-With`, have a `Sec-Fetch-Mode` other than `navigate` (Node's
/// fetch says `cors`), or open a WebSocket.
fn wants_page(headers: &HeaderMap) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let fetch_mode = text(HeaderName::from_static("sec-fetch-mode"));
    if headers.contains_key("x-requested-with")
        || headers.contains_key(UPGRADE)
        || !matches!(fetch_mode, "" | "navigate")
    {
        return false;
    }
    let accept = text(ACCEPT).to_ascii_lowercase();
    let (html, json) = (weight(&accept, "text/html"), weight(&accept, "application/json"));
    match (html, json) {
        (Some(html), Some(json)) => html > json,
        (Some(html), None) => html > 0,
        (None, Some(_)) => false,
        (None, None) => text(USER_AGENT).starts_with("Mozilla/"),
    }
}

/// How much `kind` is wanted, in thousandths; `None` when `Accept` does not name it.
fn weight(accept: &str, kind: &str) -> Option<u16> {
    accept.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        if parts.next() != Some(kind) {
            return None;
        }
        let q = parts.find_map(|p| p.strip_prefix("q=")).and_then(|q| q.trim().parse::<f32>().ok());
        // Saturates for what is no weight at all.
        Some((q.unwrap_or(1.0) * 1000.0) as u16)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(pairs: &[(&'static str, &'static str)]) -> bool {
        let mut h = HeaderMap::new();
        for (k, v) in pairs {
            h.insert(HeaderName::from_static(k), HeaderValue::from_static(v));
        }
        wants_page(&h)
    }

    const MOZILLA: (&str, &str) = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) Firefox/140");
    const CHROME: (&str, &str) =
        ("accept", "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,*/*;q=0.8");

    #[test]
    fn who_navigates_gets_a_page() {
        assert!(with(&[MOZILLA]));
        assert!(with(&[MOZILLA, CHROME, ("sec-fetch-mode", "navigate")]));
        assert!(with(&[CHROME, ("user-agent", "w3m/0.5")]), "not only those that call themselves Mozilla");
        assert!(with(&[("accept", "text/html, application/json;q=0.5")]));
    }

    #[test]
    fn programs_do_not_whatever_they_call_themselves() {
        assert!(!with(&[MOZILLA, CHROME, ("sec-fetch-mode", "cors")]));
        assert!(!with(&[MOZILLA, ("accept", "application/json")]));
        assert!(!with(&[MOZILLA, ("accept", "Application/JSON, text/html;q=0.9")]));
        assert!(!with(&[MOZILLA, CHROME, ("x-requested-with", "XMLHttpRequest")]));
        assert!(!with(&[MOZILLA, ("upgrade", "websocket")]));
        assert!(!with(&[("accept", "text/html;q=0")]));
        assert!(!with(&[("user-agent", "e2b-js-sdk/2.51.0"), ("accept", "*/*")]));
        assert!(!with(&[("user-agent", "node"), ("sec-fetch-mode", "cors"), ("accept", "*/*")]));
        assert!(!with(&[]));
    }
}
