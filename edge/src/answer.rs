//! The edge's own answers. SDKs match parts of these texts (`was not found`, `port is not open`), so their wording is a
//! wire contract; people get a page instead.

use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hutch_types::SandboxId;
use serde_json::json;

/// Any error of a body.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
/// The body of the edge's answers and of forwarded ones.
pub type Body = UnsyncBoxBody<Bytes, BoxError>;

/// What the edge says itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// No such sandbox, or it does not run.
    NotFound(SandboxId),
    /// It runs, but nothing listens on the port.
    PortClosed(SandboxId, u16),
    /// The server inside broke the connection or did not speak HTTP.
    Broken(SandboxId, u16),
    /// A route of envd that only the host uses.
    Reserved(String),
    /// The request names no sandbox properly.
    BadRequest(String),
    /// A signed URL that no running sandbox has made.
    UnknownSignature,
    /// All connections are in use.
    Busy,
}

impl Answer {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) | Self::PortClosed(..) | Self::Broken(..) => StatusCode::BAD_GATEWAY,
            Self::Reserved(_) => StatusCode::NOT_FOUND,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::UnknownSignature => StatusCode::UNAUTHORIZED,
            Self::Busy => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    fn message(&self) -> String {
        match self {
            Self::NotFound(_) => "The sandbox was not found".to_owned(),
            Self::PortClosed(..) => "The sandbox is running but port is not open".to_owned(),
            Self::Broken(..) => {
                "The sandbox is running but its server closed the connection without an answer".to_owned()
            }
            Self::Reserved(_) => "This path is reserved for the control plane".to_owned(),
            Self::BadRequest(text) => text.clone(),
            Self::UnknownSignature => "invalid signature: no running sandbox has made it".to_owned(),
            Self::Busy => "All connections of this server are in use".to_owned(),
        }
    }

    fn json(&self) -> serde_json::Value {
        let (code, message) = (self.status().as_u16(), self.message());
        match self {
            Self::NotFound(id) => json!({"sandboxId": id, "message": message, "code": code}),
            Self::PortClosed(id, port) | Self::Broken(id, port) => {
                json!({"sandboxId": id, "message": message, "port": port, "code": code})
            }
            Self::Reserved(path) => json!({"message": message, "path": path, "code": code}),
            Self::BadRequest(_) | Self::UnknownSignature | Self::Busy => {
                json!({"message": message, "code": code})
            }
        }
    }

    fn page(&self) -> String {
        let (title, text) = match self {
            Self::NotFound(id) => (
                "Sandbox Not Found",
                format!("There is no running sandbox <code>{id}</code>. It may have ended."),
            ),
            Self::PortClosed(id, port) => (
                "Closed Port",
                format!(
                    "The sandbox <code>{id}</code> is running, but there is no service running on port \
                     <code>{port}</code>."
                ),
            ),
            Self::Broken(id, port) => (
                "No Answer",
                format!(
                    "The service on port <code>{port}</code> of sandbox <code>{id}</code> closed the connection \
                     without an answer."
                ),
            ),
            Self::Reserved(_) => ("Reserved Path", "This path is reserved for the control plane.".to_owned()),
            Self::BadRequest(_) => ("Bad Request", "The address names no sandbox.".to_owned()),
            Self::UnknownSignature => (
                "Invalid Link",
                "No running sandbox has made this link. The sandbox may have ended.".to_owned(),
            ),
            Self::Busy => {
                ("Busy", "All connections of this server are in use. Try again in a moment.".to_owned())
            }
        };
        format!(
            "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
             content=\"width=device-width\"><title>{title}</title><style>body{{font:16px/1.5 system-ui,sans-serif;\
             display:grid;place-items:center;min-height:90vh;margin:0;color:#222;background:#fafafa}}main{{max-width:34rem;\
             padding:2rem}}h1{{font-size:1.4rem;margin:0 0 .5rem}}code{{background:#eee;padding:.1em .3em;\
             border-radius:4px;overflow-wrap:anywhere}}small{{color:#777}}@media(prefers-color-scheme:dark){{body{{\
             color:#ddd;background:#181818}}code{{background:#333}}}}</style></head><body><main><h1>{title}</h1>\
             <p>{text}</p><small>{status} · Hutch</small></main></body></html>",
            status = self.status().as_u16(),
        )
    }

    /// The answer in the form that suits the asker.
    pub fn respond(&self, asked: &HeaderMap) -> Response<Body> {
        let (content_type, body) = if is_browser(asked) {
            ("text/html; charset=utf-8", self.page())
        } else {
            ("application/json; charset=utf-8", self.json().to_string())
        };
        let mut response = Response::new(full(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(http::header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if matches!(self, Self::Busy) {
            headers.insert(http::header::RETRY_AFTER, HeaderValue::from_static("1"));
            headers.insert(HeaderName::from_static("should-retry"), HeaderValue::from_static("true"));
        }
        // Scripts in pages of other origins must be able to read why their request failed.
        headers.insert(http::header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        response
    }
}

/// A body of known bytes.
pub fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

/// Whether a person looks at the answer: a browser that navigates. Scripts say `Accept: application/json`, set
/// `X-Requested-With`, or have a `Sec-Fetch-Mode` other than `navigate` (Node's fetch says `cors`).
fn is_browser(headers: &HeaderMap) -> bool {
    let text = |name: &HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    let fetch_mode = text(&HeaderName::from_static("sec-fetch-mode"));
    let agent = text(&USER_AGENT);
    !text(&ACCEPT).contains("application/json")
        && !headers.contains_key("x-requested-with")
        && matches!(fetch_mode, "" | "navigate")
        && agent.starts_with("Mozilla/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> SandboxId {
        "iabc0123456789xyz000".parse().unwrap()
    }

    async fn body(r: Response<Body>) -> String {
        String::from_utf8(r.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn clients_get_the_texts_that_sdks_match() {
        let r = Answer::NotFound(id()).respond(&HeaderMap::new());
        assert_eq!(r.status(), 502);
        assert_eq!(r.headers()["content-type"], "application/json; charset=utf-8");
        let v: serde_json::Value = serde_json::from_str(&body(r).await).unwrap();
        assert_eq!(v, json!({"sandboxId": id(), "message": "The sandbox was not found", "code": 502}));

        let r = Answer::PortClosed(id(), 3210).respond(&HeaderMap::new());
        let v: serde_json::Value = serde_json::from_str(&body(r).await).unwrap();
        assert_eq!(
            v,
            json!({"sandboxId": id(), "message": "The sandbox is running but port is not open", "port": 3210, "code": 502})
        );
    }

    #[tokio::test]
    async fn people_get_a_page() {
        let mut h = HeaderMap::new();
        h.insert(USER_AGENT, HeaderValue::from_static("Mozilla/5.0 (X11; Linux x86_64) Firefox/140"));
        h.insert(ACCEPT, HeaderValue::from_static("text/html,*/*"));
        let page = body(Answer::PortClosed(id(), 3210).respond(&h)).await;
        assert!(
            page.contains("no service running on port")
                && page.contains("3210")
                && page.contains(id().as_str())
        );
        assert!(body(Answer::NotFound(id()).respond(&h)).await.contains("Sandbox Not Found"));
    }

    #[test]
    fn scripts_in_browsers_and_node_are_not_people() {
        let with = |pairs: &[(&'static str, &'static str)]| {
            let mut h = HeaderMap::new();
            for (k, v) in pairs {
                h.insert(HeaderName::from_static(k), HeaderValue::from_static(v));
            }
            is_browser(&h)
        };
        assert!(with(&[("user-agent", "Mozilla/5.0")]));
        assert!(with(&[("user-agent", "Mozilla/5.0"), ("sec-fetch-mode", "navigate")]));
        assert!(!with(&[("user-agent", "Mozilla/5.0"), ("sec-fetch-mode", "cors")]));
        assert!(!with(&[("user-agent", "Mozilla/5.0"), ("accept", "application/json")]));
        assert!(!with(&[("user-agent", "Mozilla/5.0"), ("x-requested-with", "XMLHttpRequest")]));
        assert!(!with(&[("user-agent", "e2b-js-sdk/2.51.0")]));
        assert!(!with(&[]));
    }
}
