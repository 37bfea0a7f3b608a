//! The listener with a real server behind it, driven by raw sockets.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod answers;
mod http2;
mod inside_tls;
mod private;
mod streams;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use http_body_util::BodyExt;
use hutch_edge::{Edge, Front, FrontConfig, RequestBody};
use hutch_node_api::{Route, RouteSource, SignedFile, SignedUrls};
use hutch_types::supervise::Supervisor;
use hutch_types::{Ingress, SandboxId, Secret};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, mpsc};

const ID: &str = "iabc0123456789xyz000";

struct OneSandbox {
    envd_port: u16,
    ingress: Arc<Ingress>,
}

#[async_trait]
impl RouteSource for OneSandbox {
    async fn route(&self, id: &SandboxId) -> Option<Route> {
        (id.as_str() == ID).then(|| Route {
            address: IpAddr::V4(Ipv4Addr::LOCALHOST),
            envd_port: self.envd_port,
            secret: Secret::new("host-secret"),
            ingress: Arc::clone(&self.ingress),
        })
    }
}

#[async_trait]
impl SignedUrls for OneSandbox {
    async fn sandbox_of(&self, file: &SignedFile) -> Option<SandboxId> {
        (file.signature == "v1_good" && file.path == "a b").then(|| ID.parse().unwrap())
    }
}

/// An answer whose parts are told to it, and that breaks off at an error, as when a sandbox is killed while a command runs in it.
struct Told(mpsc::Receiver<std::io::Result<&'static str>>);

impl http_body::Body for Told {
    type Data = bytes::Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<std::io::Result<http_body::Frame<bytes::Bytes>>>> {
        self.0.poll_recv(cx).map_ok(|text| http_body::Frame::data(text.into()))
    }
}

/// A stand-in for envd that says what reached it.
async fn inside() -> SocketAddr {
    let tell = Arc::new(Mutex::new(None::<mpsc::Sender<_>>));
    let told = Arc::clone(&tell);
    let app = Router::new()
        .route(
            "/echo",
            any(|request: Request| async move {
                let head = format!("{} {} {:?}", request.method(), request.uri(), request.headers());
                let body = axum::body::to_bytes(request.into_body(), usize::MAX).await.unwrap();
                format!("{head} body={}", body.len())
            }),
        )
        .route(
            "/back",
            post(|request: Request| async move { Body::new(request.into_body()).into_response() }),
        )
        .route(
            "/full",
            post(|request: Request| async {
                // Answers at once and stops reading after a while, as envd does.
                Supervisor::new().spawn("drain", async move {
                    let mut body = request.into_body();
                    for _ in 0..64 {
                        if body.frame().await.is_none() {
                            break;
                        }
                    }
                });
                (http::StatusCode::INSUFFICIENT_STORAGE, "disk full")
            }),
        )
        .route(
            "/told",
            get(|| async move {
                let (part, parts) = mpsc::channel(2);
                part.send(Ok("the beginning")).await.unwrap();
                *tell.lock().await = Some(part);
                Body::new(Told(parts))
            }),
        )
        .route(
            "/break",
            get(|| async move {
                let part = told.lock().await.take().unwrap();
                part.send(Err(std::io::ErrorKind::ConnectionAborted.into())).await.unwrap();
            }),
        )
        .route("/files", get(|| async { "the file" }))
        .route("/init", post(|| async { "reached init" }))
        .route("/health", get(|| async { http::StatusCode::NO_CONTENT }));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    Supervisor::new().spawn("inside", async move { axum::serve(listener, app).await.unwrap() });
    address
}

async fn front(config: FrontConfig) -> (SocketAddr, SocketAddr) {
    front_of(config, Ingress::default(), 1024).await
}

/// A front before a sandbox with these rules, that may have so many requests in flight.
async fn front_of(config: FrontConfig, ingress: Ingress, most: usize) -> (SocketAddr, SocketAddr) {
    let inside = inside().await;
    let supervisor = Supervisor::new();
    let sandbox = Arc::new(OneSandbox { envd_port: inside.port(), ingress: Arc::new(ingress) });
    let edge = Edge::new(Arc::clone(&sandbox) as _, sandbox, supervisor.clone());
    let edge = edge.with_max_connections_per_sandbox(most);
    let api = Router::new().fallback(|| async { "this is the api" }).into_service::<RequestBody>();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let front = Front::new(config, edge, api, supervisor.clone());
    supervisor.spawn("front", front.serve(listener));
    (address, inside)
}

async fn talk(to: SocketAddr, request: &str) -> String {
    let mut s = TcpStream::connect(to).await.unwrap();
    s.write_all(request.as_bytes()).await.unwrap();
    let mut out = Vec::new();
    tokio::time::timeout(Duration::from_secs(20), s.read_to_end(&mut out)).await.unwrap().unwrap();
    String::from_utf8_lossy(&out).into_owned()
}

/// Reads up to the end of a head.
async fn head(s: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(s.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

fn get_request(host: &str, path: &str, extra: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{extra}\r\n")
}

#[tokio::test]
async fn requests_are_told_apart() {
    let (front, _) = front(FrontConfig::default()).await;
    assert!(talk(front, &get_request("localhost", "/sandboxes", "")).await.ends_with("this is the api"));

    let by_host = talk(
        front,
        &get_request(&format!("49983-{ID}.hutch.test"), "/echo?a=b%20c", "x-hutch-secret: guess\r\n"),
    )
    .await;
    assert!(by_host.contains("GET /echo?a=b%20c"), "{by_host}");
    assert!(by_host.contains(&format!("\"host\": \"49983-{ID}.hutch.test\"")), "{by_host}");
    assert!(!by_host.contains("guess"), "the host's key must not pass: {by_host}");

    let headers = format!("E2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: 49983\r\n");
    assert!(
        talk(front, &get_request("127.0.0.1:3000", "/health", &headers)).await.starts_with("HTTP/1.1 204")
    );
    let one = talk(front, &get_request("localhost", "/health", "E2b-Sandbox-Port: 49983\r\n")).await;
    assert!(one.starts_with("HTTP/1.1 400") && one.contains("missing header E2b-Sandbox-Id"), "{one}");
}

#[tokio::test]
async fn a_signed_url_finds_its_sandbox_by_itself() {
    let (front, _) = front(FrontConfig::default()).await;
    let good =
        talk(front, &get_request("127.0.0.1", "/files?path=a+b&username=user&signature=v1_good", "")).await;
    assert!(good.starts_with("HTTP/1.1 200") && good.ends_with("the file"), "{good}");
    let bad = talk(front, &get_request("127.0.0.1", "/files?path=other&signature=v1_good", "")).await;
    assert!(bad.starts_with("HTTP/1.1 401") && bad.contains("invalid signature"), "{bad}");
}

#[tokio::test]
async fn what_is_not_there_is_said_in_the_words_that_sdks_know() {
    let (front, _) = front(FrontConfig::default()).await;
    let unknown = talk(front, &get_request("49983-iunknown0123456789.hutch.test", "/health", "")).await;
    assert!(
        unknown.starts_with("HTTP/1.1 502") && unknown.contains("The sandbox was not found"),
        "{unknown}"
    );

    // A port that nobody listens on: bound and released again.
    let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
    let closed = talk(front, &get_request(&format!("{port}-{ID}.hutch.test"), "/", "")).await;
    assert!(closed.starts_with("HTTP/1.1 502") && closed.contains("port is not open"), "{closed}");

    let page = talk(
        front,
        &get_request(
            &format!("{port}-{ID}.hutch.test"),
            "/",
            "User-Agent: Mozilla/5.0\r\nAccept: text/html\r\n",
        ),
    )
    .await;
    assert!(page.contains("text/html") && page.contains("no service running on port"), "{page}");
}

#[tokio::test]
async fn internal_routes_are_refused_before_the_sandbox_is_looked_up() {
    let (front, _) = front(FrontConfig::default()).await;
    for path in ["/init", "//init", "/files/../init", "/%69nit", "/tunnel?port=22", "/logs"] {
        for id in [ID, "iunknown0123456789"] {
            let r = format!(
                "POST {path} HTTP/1.1\r\nHost: 49983-{id}.hutch.test\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
            );
            let answer = talk(front, &r).await;
            assert!(
                answer.starts_with("HTTP/1.1 404") && answer.contains("reserved for the control plane"),
                "{path}: {answer}"
            );
        }
    }
}

#[tokio::test]
async fn a_large_body_streams_through_and_back() {
    let (front, _) = front(FrontConfig::default()).await;
    let mut s = TcpStream::connect(front).await.unwrap();
    let size = 64 * 1024 * 1024usize;
    let head = format!(
        "POST /back HTTP/1.1\r\nHost: 49983-{ID}.hutch.test\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
    );
    s.write_all(head.as_bytes()).await.unwrap();
    let (mut r, mut w) = s.into_split();
    let send = async move {
        let chunk: Vec<u8> = (0..=255).cycle().take(64 * 1024).collect();
        for _ in 0..size / chunk.len() {
            w.write_all(&chunk).await.unwrap();
        }
        w
    };
    let receive = async {
        let (mut seen, mut buf, mut wrong, mut head_end) =
            (0usize, vec![0; 64 * 1024], 0usize, None::<usize>);
        let mut head = Vec::new();
        loop {
            let n = r.read(&mut buf).await.unwrap();
            if n == 0 {
                break;
            }
            let mut data = &buf[..n];
            if head_end.is_none() {
                head.extend_from_slice(data);
                let Some(end) = head.windows(4).position(|w| w == b"\r\n\r\n") else { continue };
                head_end = Some(end + 4);
                let taken = end + 4 - (head.len() - n);
                data = &data[taken..];
                assert!(
                    String::from_utf8_lossy(&head)
                        .to_lowercase()
                        .contains(&format!("content-length: {size}"))
                );
            }
            for b in data {
                wrong += usize::from(*b != (seen % 256) as u8);
                seen += 1;
            }
        }
        (seen, wrong)
    };
    let (_w, (seen, wrong)) = tokio::join!(send, receive);
    assert_eq!((seen, wrong), (size, 0));
}

#[tokio::test]
async fn a_client_that_is_still_sending_sees_an_early_answer() {
    let (front, _) = front(FrontConfig::default()).await;
    let mut s = TcpStream::connect(front).await.unwrap();
    let size = 256 * 1024 * 1024usize;
    let head = format!(
        "POST /full HTTP/1.1\r\nHost: 49983-{ID}.hutch.test\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n"
    );
    s.write_all(head.as_bytes()).await.unwrap();
    let chunk = vec![7; 1024 * 1024];
    for _ in 0..size / chunk.len() {
        s.write_all(&chunk).await.expect("everything is taken");
    }
    let mut out = Vec::new();
    s.read_to_end(&mut out).await.unwrap();
    assert!(out.starts_with(b"HTTP/1.1 507"), "{}", String::from_utf8_lossy(&out));
}

#[tokio::test]
async fn a_body_that_nobody_reads_leaves_the_connection_usable() {
    let (front, _) = front(FrontConfig::default()).await;
    let mut s = TcpStream::connect(front).await.unwrap();
    for _ in 0..50 {
        // The API of this test answers without reading; the body comes in packets of its own.
        s.write_all(b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 6\r\n\r\n").await.unwrap();
        s.write_all(b"abc").await.unwrap();
        tokio::task::yield_now().await;
        s.write_all(b"def").await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"this is the api") {
            answer.push(s.read_u8().await.expect("the connection is kept"));
        }
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_resets_the_connection() {
    let (front, _) = front(FrontConfig::default()).await;
    let host = format!("49983-{ID}.hutch.test");
    let mut client = TcpStream::connect(front).await.unwrap();
    client.write_all(get_request(&host, "/told", "").as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"the beginning\r\n") {
        head.push(client.read_u8().await.expect("the beginning of the answer"));
    }
    assert!(talk(front, &get_request(&host, "/break", "")).await.starts_with("HTTP/1.1 200"));
    let mut rest = Vec::new();
    let read = tokio::time::timeout(Duration::from_secs(20), client.read_to_end(&mut rest)).await.unwrap();
    assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
    assert!(rest.is_empty(), "{rest:?}");
}

#[tokio::test]
async fn an_upgrade_becomes_a_raw_stream_with_half_close() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let (front, _) = front(FrontConfig::default()).await;
    let inside = async {
        let (mut s, _) = server.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(s.read_u8().await.unwrap());
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.contains("upgrade: websocket") && head.contains("sec-websocket-key: abc"), "{head}");
        s.write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
            .await
            .unwrap();
        let mut all = Vec::new();
        s.read_to_end(&mut all).await.unwrap();
        s.write_all(b"got:").await.unwrap();
        s.write_all(&all).await.unwrap();
        s.shutdown().await.unwrap();
    };
    let outside = async {
        let mut s = TcpStream::connect(front).await.unwrap();
        let r = format!(
            "GET /ws HTTP/1.1\r\nHost: {port}-{ID}.hutch.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Key: abc\r\n\r\n"
        );
        s.write_all(r.as_bytes()).await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(s.read_u8().await.unwrap());
        }
        assert!(head.starts_with(b"HTTP/1.1 101"), "{}", String::from_utf8_lossy(&head));
        s.write_all(b"ping").await.unwrap();
        s.shutdown().await.unwrap();
        let mut all = Vec::new();
        s.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"got:ping");
    };
    tokio::time::timeout(Duration::from_secs(10), async { tokio::join!(inside, outside) }).await.unwrap();
}

#[tokio::test]
async fn huge_heads_and_dripping_clients_are_turned_away() {
    let config = FrontConfig { head_timeout: Duration::from_millis(300), ..FrontConfig::default() };
    let (front, _) = front(config).await;
    let huge = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX-Big: {}\r\n\r\n", "a".repeat(200 * 1024));
    let mut s = TcpStream::connect(front).await.unwrap();
    // The server may answer and close before all of it is taken.
    drop(s.write_all(huge.as_bytes()).await);
    let mut out = Vec::new();
    drop(s.read_to_end(&mut out).await);
    assert!(out.is_empty() || out.starts_with(b"HTTP/1.1 431"), "{}", String::from_utf8_lossy(&out));

    let mut slow = TcpStream::connect(front).await.unwrap();
    slow.write_all(b"GET / HTTP/1.1\r\nHost: local").await.unwrap();
    let mut out = Vec::new();
    tokio::time::timeout(Duration::from_secs(10), slow.read_to_end(&mut out))
        .await
        .expect("a dripping client is cut")
        .unwrap();
    assert!(!out.starts_with(b"HTTP/1.1 2"));
    assert!(talk(front, &get_request("localhost", "/x", "")).await.ends_with("this is the api"));
}

#[tokio::test]
async fn beyond_the_connection_limit_the_answer_is_503_with_retry_after() {
    let (front, _) = front(FrontConfig { max_connections: 1, ..FrontConfig::default() }).await;
    let mut first = TcpStream::connect(front).await.unwrap();
    first.write_all(b"GET /a HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut buf = [0; 512];
    assert!(first.read(&mut buf).await.unwrap() > 0);
    let busy = talk(front, &get_request("localhost", "/b", "")).await;
    assert!(busy.starts_with("HTTP/1.1 503") && busy.contains("retry-after: 1"), "{busy}");
}
