//! The one listener: API, and traffic to sandboxes.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::request::Parts;
use http::uri::Scheme;
use http::{Request, Response, Version};
use http_body_util::BodyExt;
use hutch_types::supervise::Supervisor;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use std::pin::Pin;
use std::task::{Context, Poll};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::ServiceExt;

use crate::answer::{Answer, Body, BoxError};
use crate::cut::{ClientStream, Cut, Cuttable};
use crate::intent::Asked;
use crate::keepalive::keep_alive;
use crate::linger::RequestBody;
use crate::patience::{Busy, BusyGuard, Patient};
use crate::proxy::Edge;
use crate::signed::signed_file;
use crate::target::{Target, target};

/// Bytes of an API request's body that are read and thrown away when the answer does not need them, so that the connection can be
/// used again.
const MAX_UNREAD_API_BODY: u64 = 16 << 20;

/// Connections beyond the limit that are told so at a time; the next ones wait in the kernel's queue.
const MAX_TURNED_AWAY: usize = 256;

/// Bounds of the listener.
#[derive(Debug, Clone)]
pub struct FrontConfig {
    /// Connections at a time; further ones are answered 503 with `Retry-After`.
    pub max_connections: usize,
    /// Bytes of a request's head; above it the answer is 431.
    pub max_head_bytes: usize,
    /// How long a client may take to send a request's head.
    pub head_timeout: Duration,
    /// How long a connection may be idle between requests. Longer than any SDK keeps one (300 s), so that the server never closes
    /// a connection that a client is about to use.
    pub idle_timeout: Duration,
}

impl Default for FrontConfig {
    fn default() -> Self {
        Self {
            max_connections: 8192,
            max_head_bytes: 64 * 1024,
            head_timeout: Duration::from_secs(15),
            idle_timeout: Duration::from_secs(640),
        }
    }
}

/// Who is at the other end of a connection. Requests carry it as an extension.
#[derive(Debug, Clone)]
pub struct Client {
    /// Its address.
    pub address: SocketAddr,
    /// What it speaks: `http`, or `https` where TLS ends before [`Front`].
    pub scheme: Scheme,
}

/// The listener with what is behind it. Clones share their connection limit, so several listeners can lead to one.
#[derive(Debug, Clone)]
pub struct Front<Api> {
    config: Arc<FrontConfig>,
    free: Arc<Semaphore>,
    // Those that are turned away still cost a connection: their number is bounded too.
    turned_away: Arc<Semaphore>,
    edge: Edge,
    api: Api,
    supervisor: Supervisor,
}

impl<Api, ApiBody> Front<Api>
where
    Api: tower::Service<Request<RequestBody>, Response = Response<ApiBody>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    Api::Future: Send,
    ApiBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    ApiBody::Error: Into<BoxError>,
{
    /// Puts `edge` and `api` behind one listener.
    pub fn new(config: FrontConfig, edge: Edge, api: Api, supervisor: Supervisor) -> Self {
        Self {
            free: Arc::new(Semaphore::new(config.max_connections)),
            turned_away: Arc::new(Semaphore::new(MAX_TURNED_AWAY)),
            config: Arc::new(config),
            edge,
            api,
            supervisor,
        }
    }

    /// Accepts plain connections until shutdown. Requests in flight are finished by their own tasks.
    pub async fn serve(self, listener: TcpListener) {
        self.serve_with(listener, Scheme::HTTP, |stream, _peer| std::future::ready(Some(stream))).await;
    }

    /// Accepts connections until shutdown and serves what `handshake` makes of each; `None` ends the connection. The handshake runs
    /// in the connection's own task and counts against the connection limit, so it needs a deadline of its own.
    pub async fn serve_with<S, H, F>(self, listener: TcpListener, scheme: Scheme, handshake: H)
    where
        S: ClientStream,
        H: Fn(TcpStream, SocketAddr) -> F + Clone + Send + 'static,
        F: Future<Output = Option<S>> + Send + 'static,
    {
        loop {
            let (stream, address) = tokio::select! {
                () = self.supervisor.stopping() => return,
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        // Out of descriptors, or the client is gone already. Accepting again at once would spin.
                        tracing::warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                },
            };
            let Some(turn) = self.admit().await else { return };
            if let Err(error) = stream.set_nodelay(true).and_then(|()| keep_alive(&stream)) {
                tracing::debug!(peer = %address, %error, "a connection is gone already");
                continue;
            }
            let client = Client { address, scheme: scheme.clone() };
            let (front, ready) = (self.clone(), handshake(stream, address));
            self.supervisor.spawn("connection", async move {
                if let Some(stream) = ready.await {
                    front.connection(stream, client, turn.refuse).await;
                }
                drop(turn);
            });
        }
    }

    /// Serves one connection that was accepted elsewhere, until it ends. It counts against the connection limit.
    pub async fn serve_stream<S: ClientStream>(self, stream: S, client: Client) {
        if let Some(turn) = self.admit().await {
            self.connection(stream, client, turn.refuse).await;
        }
    }

    /// Counts a connection. `None` only when the limit itself is gone, which ends the listener.
    async fn admit(&self) -> Option<Turn> {
        if let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() {
            return Some(Turn { _permit: permit, refuse: false });
        }
        let permit = Arc::clone(&self.turned_away).acquire_owned().await.ok()?;
        Some(Turn { _permit: permit, refuse: true })
    }

    async fn connection<S: ClientStream>(self, stream: S, client: Client, refuse: bool) {
        let peer = client.address;
        let busy = Busy::default();
        let cut = Cut::default();
        let io = Patient::new(
            Cuttable::new(stream, cut.clone()),
            busy.clone(),
            self.config.head_timeout,
            self.config.idle_timeout,
        );
        let mut server = auto::Builder::new(TokioExecutor::new());
        server
            .http1()
            .max_buf_size(self.config.max_head_bytes.max(8192))
            .timer(TokioTimer::new())
            .header_read_timeout(None);
        server
            .http2()
            .timer(TokioTimer::new())
            .max_header_list_size(u32::try_from(self.config.max_head_bytes).unwrap_or(u32::MAX))
            .max_concurrent_streams(256)
            // WebSockets over HTTP/2.
            .enable_connect_protocol()
            .keep_alive_interval(Duration::from_secs(30))
            .keep_alive_timeout(Duration::from_secs(20));
        let supervisor = self.supervisor.clone();
        let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(client.clone());
            request.extensions_mut().insert(busy.clone());
            let front = self.clone();
            let guard = busy.enter();
            // The other requests of an HTTP/2 connection go on; a broken one is reset alone there.
            let cut = (request.version() < Version::HTTP_2).then(|| cut.clone());
            async move {
                let (parts, body) = request.into_parts();
                let asked = Asked::of(&parts);
                let response = if refuse {
                    Answer::Busy.respond(&asked)
                } else {
                    front.answer(parts, body, &asked).await
                };
                Ok::<_, Infallible>(response.map(|inner| Guarded { inner, guard: Some(guard), cut }))
            }
        });
        let connection = server.serve_connection_with_upgrades(TokioIo::new(io), service);
        tokio::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = supervisor.stopping() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = served {
            tracing::debug!(%peer, %error, "a connection ended");
        }
    }

    async fn answer(self, parts: Parts, body: Incoming, asked: &Asked) -> Response<Body> {
        let target = target(&parts);
        // An upload may be of any size; what the API is sent is small, or refused.
        let most = if matches!(target, Ok(Target::Sandbox { .. })) { u64::MAX } else { MAX_UNREAD_API_BODY };
        let body = RequestBody::new(body, self.supervisor.clone(), most);
        let signed = signed_file(&parts);
        let request = Request::from_parts(parts, body);
        match target {
            Ok(Target::Sandbox { id, port }) => self.edge.forward(id, port, request, asked).await,
            Ok(Target::Api) if let Some(file) = signed => {
                self.edge.forward_signed(&file, request, asked).await
            }
            Ok(Target::Api) => match self.api.oneshot(request).await {
                Ok(response) => response.map(|body| body.map_err(Into::into).boxed_unsync()),
                Err(never) => match never {},
            },
            Err(error) => Answer::BadRequest(error.to_string()).respond(asked),
        }
    }
}

/// A counted connection.
#[derive(Debug)]
struct Turn {
    _permit: OwnedSemaphorePermit,
    refuse: bool,
}

/// A body that marks its connection as busy until it is sent, and cuts it off when it breaks.
#[derive(Debug)]
struct Guarded {
    inner: Body,
    guard: Option<BusyGuard>,
    cut: Option<Cut>,
}

impl http_body::Body for Guarded {
    type Data = bytes::Bytes;
    type Error = BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<bytes::Bytes>, BoxError>>> {
        let frame = Pin::new(&mut self.inner).poll_frame(cx);
        match &frame {
            Poll::Ready(None) => self.guard = None,
            Poll::Ready(Some(Err(_))) => self.cut.iter().for_each(Cut::set),
            Poll::Ready(Some(Ok(_))) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
