//! Forwards a request to a server inside a sandbox and its answer back: streamed both ways in constant memory, upgrades (WebSocket) included.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{
    ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_ALLOW_ORIGIN,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, HeaderValue,
};
use http::request::Parts;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt;
use hutch_node_api::{Route, RouteSource, SignedFile, SignedUrls};
use hutch_types::SandboxId;
use hutch_types::supervise::Supervisor;
use hyper::body::{Body as _, Incoming};
use hyper::upgrade::OnUpgrade;
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::copy_bidirectional;

use crate::access::{self, Verdict};
use crate::answer::{Answer, Body, full};
use crate::dial::{Connector, DialError, Served};
use crate::intent::Asked;
use crate::linger::RequestBody;
use crate::outgoing::{Upgrade, accept_upgrade, prepare, strip_hop_by_hop};
use crate::patience::Busy;
use crate::places::{Place, Placed, Places};
use crate::request_id::REQUEST_ID;
use crate::target::{ENVD_PORT, is_internal_envd_path};

/// Requests that one sandbox may have in flight unless told otherwise.
pub const MAX_CONNECTIONS_PER_SANDBOX: usize = 1024;

/// The proxy. Clones share one pool of connections.
#[derive(Debug, Clone)]
pub struct Edge {
    client: Client<Connector, RequestBody>,
    /// For second attempts: it keeps no connections, so each gets a new one.
    fresh: Client<Connector, RequestBody>,
    source: Source,
    places: Places,
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
        let client = |kept| {
            Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(Duration::from_secs(30))
                .pool_max_idle_per_host(kept)
                .set_host(false)
                // As most clients write them: what runs inside may compare names letter by letter.
                .http1_title_case_headers(true)
                .build(connector.clone())
        };
        Self {
            client: client(32),
            fresh: client(0),
            source: Source { routes, signed },
            places: Places::new(MAX_CONNECTIONS_PER_SANDBOX),
            supervisor,
        }
    }

    /// The same proxy, with another bound on what one sandbox may have in flight; beyond it the answer is 429.
    #[must_use]
    pub fn with_max_connections_per_sandbox(self, most: usize) -> Self {
        Self { places: Places::new(most), ..self }
    }

    /// Forwards `request` to `port` of `id`. Always answers.
    pub async fn forward(
        &self,
        id: SandboxId,
        port: u16,
        request: Request<RequestBody>,
        asked: &Asked,
    ) -> Response<Body> {
        match self.try_forward(&id, port, request, asked).await {
            Ok(response) => response,
            Err(answer) => answer.respond(asked),
        }
    }

    /// Forwards a request by a signed URL that does not name its sandbox.
    pub(crate) async fn forward_signed(
        &self,
        file: &SignedFile,
        request: Request<RequestBody>,
        asked: &Asked,
    ) -> Response<Body> {
        match self.source.signed.sandbox_of(file).await {
            Some(id) => self.forward(id, ENVD_PORT, request, asked).await,
            None => Answer::UnknownSignature.respond(asked),
        }
    }

    async fn try_forward(
        &self,
        id: &SandboxId,
        port: u16,
        request: Request<RequestBody>,
        asked: &Asked,
    ) -> Result<Response<Body>, Answer> {
        if port == ENVD_PORT && is_internal_envd_path(request.uri().path()) {
            return Err(Answer::Reserved(request.uri().path().to_owned()));
        }
        let Some(route) = self.source.routes.route(id).await else {
            return Err(Answer::NotFound(id.clone()));
        };
        let (mut parts, body) = request.into_parts();
        let given = access::take(&mut parts);
        if let Some(wanted) = route.ingress.traffic_token.filter(|_| port != ENVD_PORT) {
            match given.check(&wanted) {
                Verdict::Pass => {}
                Verdict::Missing if access::is_preflight_for_token(&parts) => {
                    return Ok(preflight(&parts, asked));
                }
                Verdict::Missing => return Err(Answer::MissingToken(id.clone())),
                Verdict::Wrong => return Err(Answer::WrongToken(id.clone())),
            }
        }
        let Some(place) = self.places.enter(id) else {
            return Err(Answer::TooMany(id.clone(), self.places.most()));
        };
        let request = Request::from_parts(parts, body);
        self.exchange(id, port, &route, request, given.subprotocol, place).await
    }

    async fn exchange(
        &self,
        id: &SandboxId,
        port: u16,
        route: &Route,
        mut request: Request<RequestBody>,
        subprotocol: Option<HeaderValue>,
        place: Place,
    ) -> Result<Response<Body>, Answer> {
        let upgrade = Upgrade::of(&request)?;
        let client_upgrade = (upgrade != Upgrade::None).then(|| hyper::upgrade::on(&mut request));
        let busy = request.extensions().get::<Busy>().cloned().unwrap_or_default();
        let outgoing = prepare(id, port, &route.ingress, request, upgrade)?;
        let mut response = self.send(outgoing).await.map_err(|error| explain(id, port, &error))?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            strip_hop_by_hop(response.headers_mut());
            let (parts, body) = response.into_parts();
            let inner = body.map_err(Into::into).boxed_unsync();
            return Ok(Response::from_parts(parts, Placed { inner, place: Some(place) }.boxed_unsync()));
        }
        let server = hyper::upgrade::on(&mut response);
        let Some(client) = client_upgrade else { return Err(Answer::Broken(id.clone(), port)) };
        self.splice(client, server, place, busy);
        let (mut parts, _body) = response.into_parts();
        accept_upgrade(&mut parts.status, &mut parts.headers, upgrade, subprotocol);
        Ok(Response::from_parts(parts, full("")))
    }

    /// Sends a request, and once more over a new connection when a kept one turned out to be dead and the request is such that
    /// sending it twice does no harm. One that was not sent at all is always tried again, which the client does by itself.
    async fn send(&self, request: Request<RequestBody>) -> Result<Response<Incoming>, ClientError> {
        let again = again(&request);
        match self.client.request(request).await {
            Ok(response) => {
                if let Some(served) = response.extensions().get::<Served>() {
                    served.0.store(true, Ordering::Relaxed);
                }
                Ok(response)
            }
            Err(error) => match again.filter(|_| was_kept(&error)) {
                Some(request) => {
                    tracing::debug!(uri = %request.uri().path(), "a kept connection was dead; the request is sent again");
                    self.fresh.request(request).await
                }
                None => Err(error),
            },
        }
    }

    /// Copies bytes both ways until both sides are done; each direction ends on its own, so half-closed connections work. The
    /// client's connection counts as busy meanwhile, so that it may be silent.
    fn splice(&self, client: OnUpgrade, server: OnUpgrade, place: Place, busy: Busy) {
        let supervisor = self.supervisor.clone();
        let busy = busy.enter();
        self.supervisor.spawn("edge-upgrade", async move {
            let _held = (place, busy);
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

/// The request once more, if it may be sent twice: its method is idempotent and it has no body.
fn again(request: &Request<RequestBody>) -> Option<Request<RequestBody>> {
    if !request.method().is_idempotent() || !request.body().is_end_stream() {
        return None;
    }
    let mut again = Request::new(RequestBody::empty());
    request.method().clone_into(again.method_mut());
    request.uri().clone_into(again.uri_mut());
    request.headers().clone_into(again.headers_mut());
    Some(again)
}

/// Whether a request failed on a connection that had served others before, and for no other reason than that it broke.
fn was_kept(error: &ClientError) -> bool {
    let Some(connection) = error.connect_info() else { return false };
    let mut extras = http::Extensions::new();
    connection.get_extras(&mut extras);
    let served = extras.get::<Served>().is_some_and(|served| served.0.load(Ordering::Relaxed));
    let cause = std::error::Error::source(error).and_then(|e| e.downcast_ref::<hyper::Error>());
    served && cause.is_some_and(|e| !e.is_parse() && !e.is_user())
}

/// Lets a script of another origin send the token. See [`access::is_preflight_for_token`].
fn preflight(parts: &Parts, asked: &Asked) -> Response<Body> {
    let mut response = Response::new(full(""));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    for (answer, question) in [
        (ACCESS_CONTROL_ALLOW_METHODS, ACCESS_CONTROL_REQUEST_METHOD),
        (ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_REQUEST_HEADERS),
    ] {
        if let Some(value) = parts.headers.get(question) {
            headers.insert(answer, value.clone());
        }
    }
    headers.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    headers.insert(REQUEST_ID, asked.request_id.clone());
    response
}

fn explain(id: &SandboxId, port: u16, error: &ClientError) -> Answer {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(dial) = e.downcast_ref::<DialError>() {
            return match dial {
                DialError::Closed(_) => Answer::PortClosed(id.clone(), port),
                DialError::Tls(cause) => {
                    tracing::debug!(sandbox = %id, port, error = %cause, "a TLS handshake inside failed");
                    Answer::NoTls(id.clone(), port)
                }
                DialError::Gone | DialError::Unreachable(_) => Answer::NotFound(id.clone()),
            };
        }
        cause = e.source();
    }
    tracing::debug!(sandbox = %id, port, error = ?error, "a server inside a sandbox broke the connection");
    Answer::Broken(id.clone(), port)
}
