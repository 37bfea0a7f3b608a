//! The HTTP side: `GET /me`, `POST /logs`, nothing else.
//!
//! Bounds, and what happens beyond them: connections in total and per sandbox (closed at once), the time of one connection
//! (cut), the size of a head (431) and of a body (413), and lines per sandbox between two samples (429, counted, and told
//! in the sandbox's log). A connection is good for one request, so that an idle sandbox costs nothing.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use super::{Guest, line_of};
use crate::node::Node;

/// Connections of all sandboxes at a time.
const CONNECTIONS: usize = 256;

/// How long one connection may last.
const LIFETIME: Duration = Duration::from_secs(10);

/// How long a head may take to arrive.
const HEAD_LIMIT: Duration = Duration::from_secs(5);

/// Room for a head; the smallest that the HTTP library takes.
const MAX_HEAD: usize = 8 << 10;

/// Bytes of one log line.
const MAX_BODY: usize = 64 << 10;

/// When a sandbox that said too much may try again: by then a sample has been taken.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("5");

/// After an error of the listener, such as no descriptors left.
const PAUSE: Duration = Duration::from_millis(50);

/// Answers until the agent closes.
pub(crate) async fn serve(listener: TcpListener, node: Arc<Node>) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    let closing = node.shared.closing.clone();
    loop {
        let accepted = tokio::select! {
            () = closing.cancelled() => return,
            accepted = listener.accept() => accepted,
        };
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "accept a sandbox's connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        // A process of the host or an instance of the warm pool, which is nobody yet.
        let Some(guest) = node.guests.get(from.ip()) else { continue };
        let permits = (room.clone().try_acquire_owned(), guest.connections.clone().try_acquire_owned());
        let (Ok(total), Ok(own)) = permits else {
            tracing::debug!(sandbox = %guest.id, "too many connections to the guest service");
            continue;
        };
        let (node, closing) = (node.clone(), closing.clone());
        node.shared.supervisor.clone().spawn("guest-service", async move {
            tokio::select! {
                () = closing.cancelled() => {}
                () = converse(stream, from, guest, &node) => {}
            }
            drop((total, own));
        });
    }
}

async fn converse(stream: TcpStream, from: SocketAddr, guest: Arc<Guest>, node: &Node) {
    let id = guest.id.clone();
    let answering = service_fn(|request: Request<Incoming>| {
        let guest = guest.clone();
        async move { Ok::<_, Infallible>(answer(request, &guest, node).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(MAX_HEAD)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answering);
    match tokio::time::timeout(LIFETIME, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(sandbox = %id, %from, %error, "a request of a sandbox broke off"),
        Err(_) => tracing::debug!(sandbox = %id, %from, "a request of a sandbox took too long"),
    }
}

async fn answer<B>(request: Request<B>, guest: &Guest, node: &Node) -> Response<Full<Bytes>>
where
    B: Body,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let allowed = match request.uri().path() {
        "/me" => Method::GET,
        "/logs" => Method::POST,
        _ => return refusal(StatusCode::NOT_FOUND, "there is GET /me and POST /logs"),
    };
    if *request.method() != allowed {
        let mut refusal = refusal(StatusCode::METHOD_NOT_ALLOWED, "there is GET /me and POST /logs");
        let name = HeaderValue::from_static(if allowed == Method::GET { "GET" } else { "POST" });
        refusal.headers_mut().insert(ALLOW, name);
        return refusal;
    }
    if allowed == Method::GET {
        return json_answer(StatusCode::OK, &json!({ "sandboxID": guest.id }));
    }
    let body = match Limited::new(request.into_body(), MAX_BODY).collect().await {
        Ok(body) => body.to_bytes(),
        Err(error) if error.is::<LengthLimitError>() => {
            return refusal(StatusCode::PAYLOAD_TOO_LARGE, "a log line has at most 65536 bytes");
        }
        Err(_) => return refusal(StatusCode::BAD_REQUEST, "the body broke off"),
    };
    let Ok(object) = serde_json::from_slice(&body) else {
        return refusal(StatusCode::BAD_REQUEST, "a JSON object is expected");
    };
    log(object, guest, node)
}

fn log(object: serde_json::Map<String, Value>, guest: &Guest, node: &Node) -> Response<Full<Bytes>> {
    let claimed = object.get("instanceID");
    if claimed.is_some_and(|id| id.as_str() != Some(guest.id.as_str())) {
        return refusal(StatusCode::BAD_REQUEST, "instanceID is not this sandbox");
    }
    if guest.say(line_of(object, node.shared.clock.now())) {
        return Response::new(Full::default());
    }
    let mut refusal = refusal(StatusCode::TOO_MANY_REQUESTS, "too many log lines");
    refusal.headers_mut().insert(RETRY_AFTER, RETRY_SECONDS);
    refusal
}

fn refusal(status: StatusCode, message: &str) -> Response<Full<Bytes>> {
    json_answer(status, &json!({ "code": status.as_u16(), "message": message }))
}

fn json_answer(status: StatusCode, body: &Value) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::from(body.to_string()));
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer
}
