//! Forwards a request to a server inside a sandbox and its answer back: streamed both ways in constant memory, upgrades (WebSocket) included.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONNECTION, HOST, HeaderName, HeaderValue, TRANSFER_ENCODING, UPGRADE};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Request, Response, StatusCode, Uri, Version};
use http_body_util::BodyExt;
use hutch_node_api::{RouteSource, SignedFile, SignedUrls};
use hutch_types::SandboxId;
use hutch_types::supervise::Supervisor;
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;

use crate::answer::{Answer, Body};
use crate::dial::{Connector, DialError};
use crate::linger::RequestBody;
use crate::target::{ENVD_PORT, is_internal_envd_path};

/// Headers that belong to one connection and are never passed on (RFC 9110 §7.6.1).
const HOP_BY_HOP: [&str; 6] =
    ["keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer"];

/// The proxy. Clones share one pool of connections.
#[derive(Debug, Clone)]
pub struct Edge {
    client: Client<Connector, RequestBody>,
    source: Source,
    supervisor: Supervisor,
}

#[derive(Clone)]
struct Source {
    routes: Arc<dyn RouteSource>,
    signed: Arc<dyn SignedUrls>,
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("RouteSource")
    }
}

impl Edge {
    /// A proxy to the sandboxes that `routes` knows. `signed` finds those that signed URLs mean.
    pub fn new(routes: Arc<dyn RouteSource>, signed: Arc<dyn SignedUrls>, supervisor: Supervisor) -> Self {
        let connector = Connector::new(Arc::clone(&routes));
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(Duration::from_secs(30))
            .pool_max_idle_per_host(32)
            .set_host(false)
            .build(connector);
        Self { client, source: Source { routes, signed }, supervisor }
    }

    /// Forwards `request` to `port` of `id`. Always answers.
    pub async fn forward(&self, id: SandboxId, port: u16, request: Request<RequestBody>) -> Response<Body> {
        let asked = request.headers().clone();
        if port == ENVD_PORT && is_internal_envd_path(request.uri().path()) {
            return Answer::Reserved(request.uri().path().to_owned()).respond(&asked);
        }
        if self.source.routes.route(&id).await.is_none() {
            return Answer::NotFound(id).respond(&asked);
        }
        match self.exchange(&id, port, request).await {
            Ok(response) => response,
            Err(answer) => answer.respond(&asked),
        }
    }

    /// Forwards a request by a signed URL that does not name its sandbox.
    pub(crate) async fn forward_signed(
        &self,
        file: &SignedFile,
        request: Request<RequestBody>,
    ) -> Response<Body> {
        match self.source.signed.sandbox_of(file).await {
            Some(id) => self.forward(id, ENVD_PORT, request).await,
            None => Answer::UnknownSignature.respond(request.headers()),
        }
    }

    async fn exchange(
        &self,
        id: &SandboxId,
        port: u16,
        mut request: Request<RequestBody>,
    ) -> Result<Response<Body>, Answer> {
        let client_upgrade = wants_upgrade(request.headers()).then(|| hyper::upgrade::on(&mut request));
        let outgoing = prepare(id, port, request, client_upgrade.is_some())?;
        let mut response = self.client.request(outgoing).await.map_err(|error| explain(id, port, &error))?;
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            let server = hyper::upgrade::on(&mut response);
            let Some(client) = client_upgrade else { return Err(Answer::Broken(id.clone(), port)) };
            self.splice(client, server);
        } else {
            strip_hop_by_hop(response.headers_mut());
        }
        let (parts, body) = response.into_parts();
        Ok(Response::from_parts(parts, body.map_err(Into::into).boxed_unsync()))
    }

    /// Copies bytes both ways until both sides are done; each direction ends on its own, so half-closed connections work.
    fn splice(&self, client: OnUpgrade, server: OnUpgrade) {
        let supervisor = self.supervisor.clone();
        self.supervisor.spawn("edge-upgrade", async move {
            let (client, server) = match tokio::try_join!(client, server) {
                Ok(both) => both,
                Err(error) => {
                    tracing::debug!(%error, "an upgrade was not completed");
                    return;
                }
            };
            let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
            tokio::select! {
                done = copy_bidirectional(&mut client, &mut server) => {
                    if let Err(error) = done {
                        tracing::debug!(%error, "an upgraded connection broke");
                    }
                }
                () = supervisor.stopping() => {}
            }
        });
    }
}

/// The request as the server inside sees it: same method, path, headers and `Host`; hop-by-hop headers are dropped.
fn prepare(
    id: &SandboxId,
    port: u16,
    request: Request<RequestBody>,
    upgrade: bool,
) -> Result<Request<RequestBody>, Answer> {
    let (mut parts, body) = request.into_parts();
    let bad = |_| Answer::BadRequest("Invalid request address".to_owned());
    let authority = format!("{id}:{port}").parse::<Authority>().map_err(bad)?;
    let original_host = match parts.headers.get(HOST) {
        Some(host) => Some(host.clone()),
        None => parts.uri.authority().and_then(|a| HeaderValue::from_str(a.as_str()).ok()),
    };
    let path = parts.uri.path_and_query().cloned().unwrap_or_else(|| PathAndQuery::from_static("/"));
    let mut uri = http::uri::Parts::default();
    uri.scheme = Some(Scheme::HTTP);
    uri.authority = Some(authority);
    uri.path_and_query = Some(path);
    parts.uri = Uri::from_parts(uri).map_err(|_| Answer::BadRequest("Invalid request address".to_owned()))?;
    parts.version = Version::HTTP_11;

    let protocol = parts.headers.get(UPGRADE).cloned();
    strip_hop_by_hop(&mut parts.headers);
    // The host's own key to envd: nobody outside may even try one.
    parts.headers.remove("x-hutch-secret");
    if let Some(host) = original_host {
        parts.headers.insert(HOST, host);
    }
    if upgrade && let Some(protocol) = protocol {
        parts.headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
        parts.headers.insert(UPGRADE, protocol);
    }
    Ok(Request::from_parts(parts, body))
}

fn wants_upgrade(headers: &HeaderMap) -> bool {
    headers.contains_key(UPGRADE)
        && headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .any(|v| v.split(',').any(|token| token.trim().eq_ignore_ascii_case("upgrade")))
}

fn strip_hop_by_hop(headers: &mut HeaderMap) {
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

fn explain(id: &SandboxId, port: u16, error: &hyper_util::client::legacy::Error) -> Answer {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(dial) = e.downcast_ref::<DialError>() {
            return match dial {
                DialError::Closed(_) => Answer::PortClosed(id.clone(), port),
                DialError::Gone | DialError::Unreachable(_) => Answer::NotFound(id.clone()),
            };
        }
        cause = e.source();
    }
    tracing::debug!(sandbox = %id, port, error = ?error, "a server inside a sandbox broke the connection");
    Answer::Broken(id.clone(), port)
}

#[cfg(test)]
mod tests {
    use super::*;

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
    }
}
