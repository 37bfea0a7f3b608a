//! HTTP/2 with prior knowledge, and WebSockets over it (RFC 8441).

use bytes::Bytes;
use http::{Method, Request, Version};
use http_body_util::{BodyExt, Empty};
use hutch_edge::FrontConfig;
use hutch_types::supervise::Supervisor;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::ext::Protocol;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{ID, front, head};

async fn connect(to: std::net::SocketAddr) -> SendRequest<Empty<Bytes>> {
    let stream = TcpStream::connect(to).await.unwrap();
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    Supervisor::new().spawn("client", async move { drop(connection.await) });
    sender
}

fn request(method: Method, uri: &str) -> http::request::Builder {
    Request::builder().method(method).uri(uri).version(Version::HTTP_2)
}

#[tokio::test]
async fn requests_of_one_connection_reach_the_api_and_sandboxes() {
    let (front, inside) = front(FrontConfig::default()).await;
    let mut client = connect(front).await;
    let api = request(Method::GET, "http://localhost/sandboxes").body(Empty::new()).unwrap();
    let answer = client.send_request(api).await.unwrap();
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "this is the api");

    let host = format!("{}-{ID}.hutch.test", inside.port());
    let echo = request(Method::GET, &format!("http://{host}/echo?a=1"))
        .header("cookie", "a=1")
        .header("cookie", "b=2")
        .body(Empty::new())
        .unwrap();
    let answer = client.send_request(echo).await.unwrap();
    assert_eq!(answer.status(), 200);
    let text = String::from_utf8(answer.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap();
    assert!(text.contains("GET /echo?a=1") && text.contains(&format!("\"host\": \"{host}\"")), "{text}");
    assert!(text.contains("\"cookie\": \"a=1; b=2\""), "{text}");
}

#[tokio::test]
async fn a_websocket_over_http_2_is_one_over_http_1_1_inside() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let (front, _) = front(FrontConfig::default()).await;
    let inside = async {
        let (mut s, _) = server.accept().await.unwrap();
        let got = head(&mut s).await.to_lowercase();
        assert!(got.starts_with("get /ws?room=1 http/1.1\r\n"), "{got}");
        for line in ["connection: upgrade", "upgrade: websocket", "sec-websocket-version: 13"] {
            assert!(got.contains(&format!("{line}\r\n")), "{line}: {got}");
        }
        let key = got.lines().find_map(|l| l.strip_prefix("sec-websocket-key: ")).unwrap();
        assert_eq!(key.len(), 24, "16 bytes in base64");
        let answer = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                      Sec-WebSocket-Accept: x\r\nSec-WebSocket-Protocol: chat\r\n\r\n";
        s.write_all(answer.as_bytes()).await.unwrap();
        let mut all = Vec::new();
        s.read_to_end(&mut all).await.unwrap();
        s.write_all(b"got:").await.unwrap();
        s.write_all(&all).await.unwrap();
        s.shutdown().await.unwrap();
    };
    let outside = async {
        let mut client = connect(front).await;
        // The server's settings must have arrived, which an answer shows.
        let first = request(Method::GET, "http://localhost/").body(Empty::new()).unwrap();
        client.send_request(first).await.unwrap();
        let open = request(Method::CONNECT, &format!("http://{port}-{ID}.hutch.test/ws?room=1"))
            .extension(Protocol::from_static("websocket"))
            .header("sec-websocket-version", "13")
            .header("sec-websocket-protocol", "chat")
            .body(Empty::new())
            .unwrap();
        let answer = client.send_request(open).await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()["sec-websocket-protocol"], "chat");
        for gone in ["sec-websocket-accept", "upgrade", "connection"] {
            assert!(!answer.headers().contains_key(gone), "{gone}");
        }
        let mut stream = TokioIo::new(hyper::upgrade::on(answer).await.unwrap());
        stream.write_all(b"ping").await.unwrap();
        stream.shutdown().await.unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"got:ping");
    };
    tokio::time::timeout(std::time::Duration::from_secs(10), async { tokio::join!(inside, outside) })
        .await
        .expect("both are done");
}

#[tokio::test]
async fn no_other_tunnel_leads_into_a_sandbox() {
    let (front, inside) = front(FrontConfig::default()).await;
    let mut client = connect(front).await;
    let first = request(Method::GET, "http://localhost/").body(Empty::new()).unwrap();
    client.send_request(first).await.unwrap();
    let uri = format!("http://{}-{ID}.hutch.test/echo", inside.port());
    let other = request(Method::CONNECT, &uri)
        .extension(Protocol::from_static("connect-udp"))
        .body(Empty::new())
        .unwrap();
    assert_eq!(client.send_request(other).await.unwrap().status(), 501);

    let host = format!("{}-{ID}.hutch.test", inside.port());
    let plain = format!("CONNECT {host}:80 HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    let answer = crate::talk(front, &plain).await;
    assert!(answer.starts_with("HTTP/1.1 501"), "{answer}");
    // Requests inside such an upgrade would not be seen by the edge.
    let h2c = crate::get_request(&host, "/echo", "").replace(
        "Connection: close",
        "Connection: close, Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA",
    );
    let answer = crate::talk(front, &h2c).await.to_lowercase();
    assert!(answer.starts_with("http/1.1 200") && !answer.contains("h2c"), "{answer}");
    assert!(!answer.contains("http2-settings"), "{answer}");
}
