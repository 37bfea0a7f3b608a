//! The router and the accept loop.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::middleware;
use axum::routing::{get, post};
use connectrpc::{ConnectRpcService, Limits};
use http::{HeaderName, Method, header};
use hutch_proto::filesystem::FilesystemExt;
use hutch_proto::process::ProcessExt;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tower::ServiceExt;
use tower_http::cors::{AllowHeaders, Any, CorsLayer};

use crate::config::Config;
use crate::filesystem::FilesystemService;
use crate::process::ProcessService;
use crate::state::State;
use crate::{auth, error::HttpError, files, http as routes};

/// The largest message an RPC takes or a client may send in one go.
const MAX_MESSAGE_BYTES: usize = 64 << 20;
/// The largest body of `/init`: it carries all variables of a sandbox.
const MAX_INIT_BYTES: usize = 16 << 20;
const TIMEOUT: HeaderName = HeaderName::from_static("connect-timeout-ms");
/// Connections at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 4096;
/// How long a connection may be idle, or take to send its headers. Longer than the proxies in front.
const IDLE: Duration = Duration::from_secs(640);

/// Everything that envd answers, as a router on its own.
pub fn router(state: &Arc<State>) -> Router {
    let rpc = connectrpc::Router::new();
    let rpc = Arc::new(ProcessService::new(state.clone())).register(rpc);
    let rpc = Arc::new(FilesystemService::new(state.clone())).register(rpc);
    let limits = Limits::default()
        .with_max_request_body_size(MAX_MESSAGE_BYTES)
        .with_max_message_size(MAX_MESSAGE_BYTES);
    let rpc = ConnectRpcService::new(rpc).with_limits(limits).map_request(without_zero_timeout);

    Router::new()
        .route("/health", get(routes::health))
        .route("/metrics", get(routes::metrics))
        .route("/envs", get(routes::envs))
        .route("/init", post(routes::init).layer(DefaultBodyLimit::max(MAX_INIT_BYTES)))
        .route("/tunnel", get(routes::tunnel))
        .route("/logs", get(routes::logs))
        .merge(files::router())
        .route_service("/process.Process/{method}", rpc.clone())
        .route_service("/filesystem.Filesystem/{method}", rpc)
        .fallback(|| async { HttpError::not_found("no such path") })
        .method_not_allowed_fallback(|| async {
            HttpError::new(http::StatusCode::METHOD_NOT_ALLOWED, "this path does not take this method")
        })
        .layer(middleware::from_fn_with_state(state.clone(), auth::require_token))
        .layer(cors())
        .with_state(state.clone())
}

/// A timeout of zero means none to E2B's clients, but "over already" to the RPC layer.
fn without_zero_timeout(mut request: Request) -> Request {
    let is_zero = |value: &http::HeaderValue| {
        value.to_str().ok().and_then(|v| v.trim().parse::<i64>().ok()).is_some_and(|ms| ms <= 0)
    };
    if request.headers().get(TIMEOUT).is_some_and(is_zero) {
        request.headers_mut().remove(TIMEOUT);
    }
    request
}

/// Any origin may call: what protects a sandbox is its token, which browsers do not send by themselves.
fn cors() -> CorsLayer {
    const EXPOSED: [&str; 12] = [
        "grpc-status",
        "grpc-message",
        "grpc-status-details-bin",
        "content-encoding",
        "connect-content-encoding",
        "connect-accept-encoding",
        "accept-encoding",
        "location",
        "cache-control",
        "x-content-type-options",
        "content-length",
        "content-disposition",
    ];
    CorsLayer::new()
        .allow_origin(Any)
        .allow_methods([Method::GET, Method::HEAD, Method::POST, Method::PUT, Method::PATCH, Method::DELETE])
        // `*` would not cover Authorization, so whatever is asked for is allowed by name.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED.map(HeaderName::from_static))
        .max_age(Duration::from_secs(2 * 3600))
        .vary([header::ORIGIN, header::ACCESS_CONTROL_REQUEST_METHOD, header::ACCESS_CONTROL_REQUEST_HEADERS])
}

/// Serves a fresh instance on `listener` until its tasks are shut down.
///
/// # Errors
/// When the listener breaks in a way that waiting does not mend.
pub async fn serve(listener: TcpListener, config: Config) -> io::Result<()> {
    serve_state(listener, State::new(config)).await
}

/// As [`serve`], with a state that the caller shares. `state.tasks.shutdown` ends it and everything it started.
///
/// # Errors
/// As [`serve`].
pub async fn serve_state(listener: TcpListener, state: Arc<State>) -> io::Result<()> {
    let app = router(&state);
    let connections = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let Ok(permit) = connections.clone().acquire_owned().await else { return Ok(()) };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = state.tasks.stopping() => return Ok(()),
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if is_transient(&error) => {
                // Out of file descriptors or memory: connections that end give some back.
                tokio::time::sleep(Duration::from_millis(50)).await;
                continue;
            }
            Err(error) => return Err(error),
        };
        let (app, tasks) = (app.clone(), state.tasks.clone());
        state.tasks.spawn("connection", async move {
            tokio::select! {
                () = connection(stream, app) => {}
                () = tasks.stopping() => {}
            }
            drop(permit);
        });
    }
}

fn is_transient(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(
        errno,
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM | Errno::INTR | Errno::CONNABORTED)
    ) || matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset)
}

/// One connection to its end. What goes wrong on it concerns its client alone, who sees it.
async fn connection(stream: TcpStream, app: Router) {
    // Output of commands comes in small pieces that must not wait for one another.
    stream.set_nodelay(true).ok();
    let mut server = auto::Builder::new(TokioExecutor::new());
    server.http1().timer(TokioTimer::new()).header_read_timeout(IDLE);
    server.http2().timer(TokioTimer::new()).keep_alive_interval(Some(Duration::from_secs(60)));
    server.serve_connection_with_upgrades(TokioIo::new(stream), TowerToHyperService::new(app)).await.ok();
}
