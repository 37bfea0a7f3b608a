//! The edge's own answers. SDKs match parts of these texts (`was not found`, `port is not open`), so their wording is a
//! wire contract; people get a page instead.

use bytes::Bytes;
use http::header::{
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, CACHE_CONTROL, CONTENT_TYPE, HeaderName,
    HeaderValue, RETRY_AFTER, VARY,
};
use http::{Response, StatusCode};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hutch_types::SandboxId;
use hutch_types::ingress::TRAFFIC_TOKEN;
use serde_json::json;

use crate::intent::Asked;
use crate::page::Page;
use crate::request_id::REQUEST_ID;

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
    /// The port is one that speaks TLS, but its server does not.
    NoTls(SandboxId, u16),
    /// The sandbox is private, and the request brings no token.
    MissingToken(SandboxId),
    /// The sandbox is private, and the token is not its own.
    WrongToken(SandboxId),
    /// The sandbox has as many requests in flight as it may.
    TooMany(SandboxId, usize),
    /// A route of envd that only the host uses.
    Reserved(String),
    /// The request names no sandbox properly.
    BadRequest(String),
    /// A method or protocol that does not lead into a sandbox.
    Unsupported(&'static str),
    /// A signed URL that no running sandbox has made.
    UnknownSignature,
    /// All connections are in use.
    Busy,
}

impl Answer {
    fn status(&self) -> StatusCode {
        match self {
            Self::NotFound(_) | Self::PortClosed(..) | Self::Broken(..) | Self::NoTls(..) => {
                StatusCode::BAD_GATEWAY
            }
            Self::MissingToken(_) | Self::WrongToken(_) => StatusCode::FORBIDDEN,
            Self::TooMany(..) => StatusCode::TOO_MANY_REQUESTS,
            Self::Reserved(_) => StatusCode::NOT_FOUND,
            Self::BadRequest(_) => StatusCode::BAD_REQUEST,
            Self::Unsupported(_) => StatusCode::NOT_IMPLEMENTED,
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
            Self::NoTls(..) => {
                "The sandbox is running but its server does not speak TLS, as network.httpsPorts says"
                    .to_owned()
            }
            Self::MissingToken(_) => format!(
                "Sandbox is secured with traffic access token. The header '{TRAFFIC_TOKEN}' is missing"
            ),
            Self::WrongToken(_) => format!(
                "Sandbox is secured with traffic access token. The one in '{TRAFFIC_TOKEN}' is invalid"
            ),
            Self::TooMany(_, limit) => format!(
                "The sandbox has too many connections, its limit is {limit} (limits.max_connections_per_sandbox)"
            ),
            Self::Reserved(_) => "This path is reserved for the control plane".to_owned(),
            Self::BadRequest(text) => text.clone(),
            Self::Unsupported(text) => (*text).to_owned(),
            Self::UnknownSignature => "invalid signature: no running sandbox has made it".to_owned(),
            Self::Busy => "All connections of this server are in use".to_owned(),
        }
    }

    fn json(&self) -> serde_json::Value {
        let (code, message) = (self.status().as_u16(), self.message());
        let mut body = json!({"message": message, "code": code});
        if let Some(id) = self.sandbox() {
            body["sandboxId"] = json!(id);
        }
        if let Some(port) = self.port() {
            body["port"] = json!(port);
        }
        match self {
            Self::TooMany(_, limit) => body["connectionLimit"] = json!(limit),
            Self::Reserved(path) => body["path"] = json!(path),
            _ => {}
        }
        body
    }

    fn sandbox(&self) -> Option<&SandboxId> {
        match self {
            Self::NotFound(id)
            | Self::PortClosed(id, _)
            | Self::Broken(id, _)
            | Self::NoTls(id, _)
            | Self::MissingToken(id)
            | Self::WrongToken(id)
            | Self::TooMany(id, _) => Some(id),
            Self::Reserved(_)
            | Self::BadRequest(_)
            | Self::Unsupported(_)
            | Self::UnknownSignature
            | Self::Busy => None,
        }
    }

    fn port(&self) -> Option<u16> {
        match self {
            Self::PortClosed(_, port) | Self::Broken(_, port) | Self::NoTls(_, port) => Some(*port),
            _ => None,
        }
    }

    /// Title, what is the matter, what to do.
    fn words(&self) -> (&'static str, String, &'static str) {
        match self {
            Self::NotFound(_) => (
                "Sandbox Not Found",
                "There is no running sandbox with this id.".to_owned(),
                "It may have ended: sandboxes live for a limited time. Check the id, or create a new one.",
            ),
            Self::PortClosed(_, port) => (
                "Closed Port",
                format!("The sandbox is running, but there is no service running on port {port}."),
                "Start a server on that port in the sandbox, then load this page again. Any address that it listens on will do, \
                 localhost too.",
            ),
            Self::Broken(_, port) => (
                "No Answer",
                format!("The service on port {port} closed the connection without an answer."),
                "Look at what the server in the sandbox says. If it speaks TLS, name its port in network.httpsPorts when you \
                 create the sandbox.",
            ),
            Self::NoTls(_, port) => (
                "No TLS",
                format!(
                    "The service on port {port} does not speak TLS, although the sandbox was created with that port in network.httpsPorts."
                ),
                "Let the server speak TLS, or leave the port out of network.httpsPorts.",
            ),
            Self::MissingToken(_) => (
                "Missing Traffic Access Token",
                "This sandbox is private: requests to its ports need its traffic access token.".to_owned(),
                "Send the token as header e2b-traffic-access-token, or add it to the address as a query parameter of that name. Who \
                 created the sandbox has it.",
            ),
            Self::WrongToken(_) => (
                "Invalid Traffic Access Token",
                "This sandbox is private, and the traffic access token of this request is not its own."
                    .to_owned(),
                "Every sandbox has a token of its own. Who created this one has the right one.",
            ),
            Self::TooMany(_, limit) => (
                "Too Many Connections",
                format!("This sandbox has {limit} connections at the moment, as many as it may have."),
                "Try again in a moment. The operator can raise limits.max_connections_per_sandbox.",
            ),
            Self::Reserved(_) => (
                "Reserved Path",
                "This path is reserved for the control plane.".to_owned(),
                "Nobody outside can use it.",
            ),
            Self::BadRequest(text) => (
                "Bad Request",
                format!("The address names no sandbox: {text}."),
                "Addresses of sandboxes look like {port}-{sandbox id}.{domain}.",
            ),
            Self::Unsupported(text) => {
                ("Not Supported", format!("{text}."), "Use an ordinary HTTP request or a WebSocket.")
            }
            Self::UnknownSignature => (
                "Invalid Link",
                "No running sandbox has made this link.".to_owned(),
                "The sandbox may have ended. Ask for a new link.",
            ),
            Self::Busy => {
                ("Busy", "All connections of this server are in use.".to_owned(), "Try again in a moment.")
            }
        }
    }

    fn page(&self, asked: &Asked) -> String {
        let (title, text, hint) = self.words();
        let facts: Vec<(&str, String)> = [
            ("Sandbox", self.sandbox().map(ToString::to_string)),
            ("Port", self.port().map(|port| port.to_string())),
            ("Request", asked.request_id.to_str().ok().map(str::to_owned)),
        ]
        .into_iter()
        .filter_map(|(name, value)| value.map(|value| (name, value)))
        .collect();
        Page { status: self.status().as_u16(), title, text: &text, hint, facts: &facts }.render()
    }

    /// The answer in the form that suits the asker.
    pub fn respond(&self, asked: &Asked) -> Response<Body> {
        tracing::debug!(answer = ?self, request = ?asked.request_id, "answered by the edge");
        let (content_type, body) = if asked.wants_page {
            ("text/html; charset=utf-8", self.page(asked))
        } else {
            ("application/json; charset=utf-8", self.json().to_string())
        };
        let mut response = Response::new(full(body));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        headers.insert(VARY, HeaderValue::from_static("accept, sec-fetch-mode"));
        headers.insert(REQUEST_ID, asked.request_id.clone());
        if matches!(self, Self::Busy | Self::TooMany(..)) {
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            headers.insert(HeaderName::from_static("should-retry"), HeaderValue::from_static("true"));
        }
        // Scripts in pages of other origins must be able to read why their request failed.
        headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
        headers.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static("x-request-id, retry-after, should-retry"),
        );
        response
    }
}

/// A body of known bytes.
pub fn full(body: impl Into<Bytes>) -> Body {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id() -> SandboxId {
        "iabc0123456789xyz000".parse().unwrap()
    }

    fn asked(wants_page: bool) -> Asked {
        Asked { wants_page, request_id: HeaderValue::from_static("r-7") }
    }

    async fn body(r: Response<Body>) -> String {
        String::from_utf8(r.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[tokio::test]
    async fn clients_get_the_texts_that_sdks_match() {
        let (closed, broken) = ("The sandbox is running but port is not open", "without an answer");
        let token = "Sandbox is secured with traffic access token. ";
        for (answer, status, text, more) in [
            (Answer::NotFound(id()), 502, "The sandbox was not found", json!({})),
            (Answer::PortClosed(id(), 3210), 502, closed, json!({"port": 3210})),
            (Answer::Broken(id(), 80), 502, broken, json!({"port": 80})),
            (Answer::NoTls(id(), 443), 502, "does not speak TLS", json!({"port": 443})),
            (Answer::MissingToken(id()), 403, token, json!({})),
            (Answer::WrongToken(id()), 403, token, json!({})),
            (
                Answer::TooMany(id(), 9),
                429,
                "limits.max_connections_per_sandbox",
                json!({"connectionLimit": 9}),
            ),
        ] {
            let r = answer.respond(&asked(false));
            assert_eq!(r.status(), status);
            assert_eq!(r.headers()["content-type"], "application/json; charset=utf-8");
            assert_eq!(r.headers()["x-request-id"], "r-7");
            assert_eq!(r.headers().contains_key("retry-after"), status == 429);
            let mut v: serde_json::Value = serde_json::from_str(&body(r).await).unwrap();
            let message = v.as_object_mut().unwrap().remove("message").unwrap();
            assert!(message.as_str().unwrap().contains(text), "{message}");
            let mut expected = json!({"sandboxId": id(), "code": status});
            expected.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            assert_eq!(v, expected);
        }
    }

    #[tokio::test]
    async fn people_get_a_page_that_says_what_to_do() {
        for (answer, words) in [
            (Answer::PortClosed(id(), 3210), vec!["no service running on port", "3210", id().as_str()]),
            (Answer::NotFound(id()), vec!["Sandbox Not Found", id().as_str()]),
            (Answer::MissingToken(id()), vec!["Missing Traffic Access Token", TRAFFIC_TOKEN]),
            (Answer::WrongToken(id()), vec!["Invalid Traffic Access Token"]),
            (Answer::BadRequest("<x>".to_owned()), vec!["&lt;x&gt;"]),
        ] {
            let page = body(answer.respond(&asked(true))).await;
            for word in words.into_iter().chain(["r-7"]) {
                assert!(page.contains(word), "{word}: {page}");
            }
        }
    }
}
