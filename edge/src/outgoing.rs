//! The request as the server inside sees it, and its answer as the client does.

use http::header::{
    CONNECTION, COOKIE, HOST, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, TRANSFER_ENCODING, UPGRADE,
};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version};
use hutch_types::ids::fill_random;
use hutch_types::{Ingress, SandboxId};
use rustls::pki_types::DnsName;

use crate::answer::Answer;
use crate::linger::RequestBody;
use crate::target::ENVD_PORT;

/// Headers that belong to one connection and are never passed on (RFC 9110 §7.6.1).
const HOP_BY_HOP: [&str; 7] = [
    "keep-alive",
    "proxy-connection",
    "proxy-authenticate",
    "proxy-authorization",
    "te",
    "trailer",
    "http2-settings",
];
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// How a request wants to become a raw stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Upgrade {
    /// Not at all.
    None,
    /// By HTTP/1.1's headers.
    Headers,
    /// A WebSocket over HTTP/2 (RFC 8441). The server inside sees it as one over HTTP/1.1.
    Connect,
}

impl Upgrade {
    /// What `request` wants.
    ///
    /// # Errors
    /// [`Answer::Unsupported`] for a tunnel to anywhere and for protocols over HTTP/2 that are not WebSocket.
    pub(crate) fn of<B>(request: &Request<B>) -> Result<Self, Answer> {
        if request.method() == Method::CONNECT {
            return match request.extensions().get::<hyper::ext::Protocol>() {
                Some(protocol) if protocol.as_str().eq_ignore_ascii_case("websocket") => Ok(Self::Connect),
                Some(_) => {
                    Err(Answer::Unsupported("Of extended CONNECT requests, only WebSocket is supported"))
                }
                None => Err(Answer::Unsupported("The method CONNECT is not supported")),
            };
        }
        Ok(if wants_upgrade(request.headers()) { Self::Headers } else { Self::None })
    }
}

/// The request for the server inside: same path, headers and body; hop-by-hop headers are dropped. Its address is not one of the
/// network but names the sandbox, so that a pooled connection never serves another.
///
/// # Errors
/// [`Answer::BadRequest`] when it has no form in HTTP/1.1.
pub(crate) fn prepare(
    id: &SandboxId,
    port: u16,
    ingress: &Ingress,
    request: Request<RequestBody>,
    upgrade: Upgrade,
) -> Result<Request<RequestBody>, Answer> {
    let (mut parts, body) = request.into_parts();
    // The client's own things: none of them is for the server.
    parts.extensions.clear();
    let protocol = parts.headers.get(UPGRADE).cloned();
    strip_hop_by_hop(&mut parts.headers);
    // The host's own key to envd: nobody outside may even try one.
    parts.headers.remove("x-hutch-secret");
    set_host(&mut parts, port, ingress)?;
    join_cookies(&mut parts.headers);
    parts.uri = inner_uri(id, port, ingress, &parts)?;
    parts.version = Version::HTTP_11;
    match upgrade {
        Upgrade::None => {}
        Upgrade::Headers => {
            if let Some(protocol) = protocol {
                parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
                parts.headers.insert(UPGRADE, protocol);
            }
        }
        Upgrade::Connect => {
            parts.method = Method::GET;
            parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
            parts.headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
            parts.headers.insert(SEC_WEBSOCKET_KEY, websocket_key()?);
        }
    }
    Ok(Request::from_parts(parts, body))
}

fn invalid_address() -> Answer {
    Answer::BadRequest("Invalid request address".to_owned())
}

/// `Host` as the client wrote it, or the sandbox's mask with the client's own beside it.
fn set_host(parts: &mut Parts, port: u16, ingress: &Ingress) -> Result<(), Answer> {
    let original = match parts.headers.get(HOST) {
        Some(host) => Some(host.clone()),
        None => parts.uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok()),
    };
    let mask = ingress.mask_request_host.as_ref().filter(|_| port != ENVD_PORT);
    let host = match mask {
        Some(mask) => {
            match &original {
                Some(original) => parts.headers.insert(FORWARDED_HOST, original.clone()),
                None => parts.headers.remove(FORWARDED_HOST),
            };
            let masked = mask.replace("${PORT}", &port.to_string());
            Some(HeaderValue::from_str(&masked).map_err(|_| invalid_address())?)
        }
        None => original,
    };
    if let Some(host) = host {
        parts.headers.insert(HOST, host);
    }
    Ok(())
}

/// HTTP/2 clients may send each cookie as a header of its own; HTTP/1.1 knows only one (RFC 9113 §8.2.3).
fn join_cookies(headers: &mut HeaderMap) {
    let cookies: Vec<_> = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if cookies.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&cookies.join(&b"; "[..]))
    {
        headers.insert(COOKIE, joined);
    }
}

/// `http://{id}:{port}/…`, or `https://{id}.{server name}:{port}/…` where the server speaks TLS: connections of one server name
/// are not those of another.
fn inner_uri(id: &SandboxId, port: u16, ingress: &Ingress, parts: &Parts) -> Result<Uri, Answer> {
    let is_tls = port != ENVD_PORT && ingress.https_ports.contains(&port);
    let authority = match server_name(&parts.headers).filter(|_| is_tls) {
        Some(name) => format!("{id}.{name}:{port}"),
        None => format!("{id}:{port}"),
    };
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(if is_tls { Scheme::HTTPS } else { Scheme::HTTP });
    uri.authority = Some(authority.parse::<Authority>().map_err(|_| invalid_address())?);
    uri.path_and_query =
        Some(parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/")));
    Uri::from_parts(uri).map_err(|_| invalid_address())
}

/// The name in `Host`, where it is one and not an address.
fn server_name(headers: &HeaderMap) -> Option<String> {
    let host = headers.get(HOST)?.to_str().ok()?;
    let name =
        host.rsplit_once(':').map_or(host, |(name, _)| name).trim_end_matches('.').to_ascii_lowercase();
    let is_name = DnsName::try_from(name.as_str()).is_ok() && name.parse::<std::net::IpAddr>().is_err();
    is_name.then_some(name)
}

fn websocket_key() -> Result<HeaderValue, Answer> {
    use base64::Engine;
    let mut key = [0; 16];
    fill_random(&mut key);
    let key = base64::engine::general_purpose::STANDARD.encode(key);
    HeaderValue::from_str(&key).map_err(|_| invalid_address())
}

/// Makes the answer to an upgrade that the server inside accepted fit what the client asked. `subprotocol` is one that the edge
/// took out of the request; browsers give up when none of those that they offered is chosen.
pub(crate) fn accept_upgrade(
    status: &mut StatusCode,
    headers: &mut HeaderMap,
    upgrade: Upgrade,
    subprotocol: Option<HeaderValue>,
) {
    if let Some(subprotocol) = subprotocol
        && !headers.contains_key(SEC_WEBSOCKET_PROTOCOL)
    {
        headers.insert(SEC_WEBSOCKET_PROTOCOL, subprotocol);
    }
    if upgrade == Upgrade::Connect {
        *status = StatusCode::OK;
        headers.remove(SEC_WEBSOCKET_ACCEPT);
        strip_hop_by_hop(headers);
    }
}

/// An upgrade to HTTP/2 is not one: the server inside would serve further requests that the edge does not see.
fn wants_upgrade(headers: &HeaderMap) -> bool {
    headers.get(UPGRADE).is_some_and(|protocol| !protocol.as_bytes().eq_ignore_ascii_case(b"h2c"))
        && headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .any(|v| v.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")))
}

/// Removes what belongs to one connection only.
pub(crate) fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|v| v.to_str().ok())
        .flat_map(|v| v.split(','))
        .filter_map(|token| token.trim().parse().ok())
        .collect();
    for name in named {
        headers.remove(name);
    }
    for name in HOP_BY_HOP {
        headers.remove(name);
    }
    headers.remove(CONNECTION);
    headers.remove(TRANSFER_ENCODING);
    headers.remove(UPGRADE);
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "iabc0123456789xyz000";

    #[test]
    fn headers_of_one_connection_are_not_passed_on() {
        let mut h = HeaderMap::new();
        for (k, v) in [
            ("connection", "close, X-Private"),
            ("x-private", "1"),
            ("te", "trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("content-type", "text/plain"),
        ] {
            h.insert(k.parse::<HeaderName>().unwrap(), HeaderValue::from_static(v));
        }
        strip_hop_by_hop(&mut h);
        assert_eq!(h.len(), 1, "{h:?}");
        assert!(h.contains_key("content-type"));
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        let with = |pairs: &[(&'static str, &'static str)]| {
            let mut h = HeaderMap::new();
            for (k, v) in pairs {
                h.insert(k.parse::<HeaderName>().unwrap(), HeaderValue::from_static(v));
            }
            wants_upgrade(&h)
        };
        assert!(with(&[("connection", "keep-alive, Upgrade"), ("upgrade", "websocket")]));
        assert!(!with(&[("connection", "keep-alive"), ("upgrade", "websocket")]));
        assert!(!with(&[("connection", "upgrade")]));
        assert!(!with(&[("connection", "upgrade, http2-settings"), ("upgrade", "H2C")]));
    }

    fn parts(host: &str, headers: &[(&str, &str)]) -> Parts {
        let request = headers
            .iter()
            .fold(Request::builder().uri("/x?y=1").header("host", host), |r, (k, v)| r.header(*k, *v));
        request.body(()).unwrap().into_parts().0
    }

    fn masked() -> Ingress {
        Ingress {
            mask_request_host: Some("localhost:${PORT}".to_owned()),
            https_ports: [8443, ENVD_PORT].into(),
            ..Ingress::default()
        }
    }

    #[test]
    fn a_mask_hides_the_host_except_from_envd() {
        let mut p = parts("80-i1.hutch.test", &[("x-forwarded-host", "forged")]);
        set_host(&mut p, 80, &masked()).unwrap();
        assert_eq!(p.headers[HOST], "localhost:80");
        assert_eq!(p.headers[FORWARDED_HOST], "80-i1.hutch.test");
        let mut p = parts("49983-i1.hutch.test", &[]);
        set_host(&mut p, ENVD_PORT, &masked()).unwrap();
        assert_eq!(p.headers[HOST], "49983-i1.hutch.test");
        assert!(!p.headers.contains_key(FORWARDED_HOST), "nothing is added where nothing is masked");
    }

    #[test]
    fn tls_goes_to_the_ports_named_with_the_name_that_the_host_has() {
        let id: SandboxId = ID.parse().unwrap();
        let uri = |host: &str, port| inner_uri(&id, port, &masked(), &parts(host, &[])).unwrap().to_string();
        assert_eq!(
            uri(&format!("8443-{ID}.Hutch.test:3000"), 8443),
            format!("https://{ID}.8443-{ID}.hutch.test:8443/x?y=1")
        );
        assert_eq!(uri("localhost", 8443), format!("https://{ID}.localhost:8443/x?y=1"));
        for unnamed in ["127.0.0.1:3000", "[::1]:3000", "a b", "ä", "-", "x@y", "a/b"] {
            assert_eq!(uri(unnamed, 8443), format!("https://{ID}:8443/x?y=1"), "{unnamed}");
        }
        assert_eq!(uri("80-i1.hutch.test", 80), format!("http://{ID}:80/x?y=1"));
        assert_eq!(uri("x", ENVD_PORT), format!("http://{ID}:49983/x?y=1"));
    }

    #[test]
    fn cookies_of_http_2_become_one_header() {
        let mut p = parts("x", &[("cookie", "a=1"), ("cookie", "b=2; c=3")]);
        join_cookies(&mut p.headers);
        assert_eq!(p.headers.get_all(COOKIE).iter().collect::<Vec<_>>(), ["a=1; b=2; c=3"]);
    }

    proptest::proptest! {
        #[test]
        fn whatever_the_host_the_request_goes_to_its_sandbox(host in "\\PC{0,40}|[a-z0-9.:@/\\[\\]?#-]{0,60}", port in 1u16..) {
            if let Ok(value) = HeaderValue::from_bytes(host.as_bytes()) {
                let id: SandboxId = ID.parse().unwrap();
                let mut parts = parts("x", &[]);
                parts.headers.insert(HOST, value);
                let ingress = Ingress { https_ports: [port].into(), ..Ingress::default() };
                if let Ok(uri) = inner_uri(&id, port, &ingress, &parts) {
                    proptest::prop_assert_eq!(uri.port_u16(), Some(port));
                    proptest::prop_assert_eq!(uri.host().unwrap().split('.').next(), Some(ID));
                    proptest::prop_assert_eq!(uri.path_and_query().unwrap().as_str(), "/x?y=1");
                }
            }
        }
    }
}
