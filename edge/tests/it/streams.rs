//! Silent streams, dead connections, and how many requests a sandbox may have.

use std::time::Duration;

use hutch_edge::FrontConfig;
use hutch_types::Ingress;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{ID, front, front_of, get_request, head, talk};

/// Returns when a connection without a request has been closed for its silence, `times` times one after the other: so much longer
/// than that has passed.
async fn outlast(front: std::net::SocketAddr, times: usize) {
    for _ in 0..times {
        let mut idle = TcpStream::connect(front).await.unwrap();
        idle.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut all = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(20), idle.read_to_end(&mut all)).await;
        assert!(read.is_ok(), "an idle connection is closed");
    }
}

fn impatient() -> FrontConfig {
    let short = Duration::from_millis(100);
    FrontConfig { idle_timeout: short, head_timeout: short, ..FrontConfig::default() }
}

#[tokio::test]
async fn a_silent_event_stream_is_not_cut() {
    let (front, _) = front(impatient()).await;
    let host = format!("49983-{ID}.hutch.test");
    let mut client = TcpStream::connect(front).await.unwrap();
    client.write_all(get_request(&host, "/told", "").as_bytes()).await.unwrap();
    head(&mut client).await;
    let mut chunk = vec![0; "d\r\nthe beginning\r\n".len()];
    client.read_exact(&mut chunk).await.unwrap();
    outlast(front, 3).await;
    // It is there still: what the server does now arrives.
    let mut buf = [0; 1];
    let silent = tokio::time::timeout(Duration::from_millis(1), client.read(&mut buf)).await;
    assert!(silent.is_err(), "{silent:?}");
    assert!(talk(front, &get_request(&host, "/break", "")).await.starts_with("HTTP/1.1 200"));
    let broken = tokio::time::timeout(Duration::from_secs(20), client.read(&mut buf)).await.unwrap();
    assert_eq!(broken.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);
}

#[tokio::test]
async fn a_silent_websocket_is_not_cut() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let (front, _) = front(impatient()).await;
    let mut client = TcpStream::connect(front).await.unwrap();
    let open = format!(
        "GET /ws HTTP/1.1\r\nHost: {port}-{ID}.hutch.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    );
    client.write_all(open.as_bytes()).await.unwrap();
    let (mut inside, _) = server.accept().await.unwrap();
    head(&mut inside).await;
    let accept = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    inside.write_all(accept).await.unwrap();
    head(&mut client).await;
    outlast(front, 3).await;
    client.write_all(b"ping").await.unwrap();
    let mut four = [0; 4];
    inside.read_exact(&mut four).await.expect("the connection is there");
    inside.write_all(b"pong").await.unwrap();
    client.read_exact(&mut four).await.expect("the connection is there");
    assert_eq!(&four, b"pong");
}

/// Answers one request over a connection, takes another one over it and hangs up without an answer; then answers what comes over
/// a second connection, if anything does.
async fn dies_once(server: &TcpListener) -> Vec<String> {
    let ok = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let (mut s, _) = server.accept().await.unwrap();
    let mut seen = vec![head(&mut s).await];
    s.write_all(ok).await.unwrap();
    seen.push(head(&mut s).await);
    drop(s);
    if let Ok(Ok((mut s, _))) = tokio::time::timeout(Duration::from_secs(2), server.accept()).await {
        seen.push(head(&mut s).await);
        s.write_all(ok).await.unwrap();
    }
    seen
}

#[tokio::test]
async fn a_request_that_may_be_repeated_is_when_a_kept_connection_was_dead() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("{}-{ID}.hutch.test", server.local_addr().unwrap().port());
    let (front, _) = front(FrontConfig::default()).await;
    let request = get_request(&host, "/a?b=1", "X-Mine: yes\r\n");
    let outside = async {
        assert!(talk(front, &request).await.ends_with("ok"));
        talk(front, &request).await
    };
    let (seen, answer) = tokio::join!(dies_once(&server), outside);
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok"), "{answer}");
    assert_eq!(seen.len(), 3);
    assert_eq!(seen[1], seen[2], "the same request");
    assert!(seen[2].contains("X-Mine: yes\r\n") && seen[2].contains("Host: "));
}

#[tokio::test]
async fn a_request_that_may_have_had_an_effect_is_not_repeated() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = format!("{}-{ID}.hutch.test", server.local_addr().unwrap().port());
    let (front, _) = front(FrontConfig::default()).await;
    let outside = async {
        assert!(talk(front, &get_request(&host, "/", "")).await.ends_with("ok"));
        let post =
            format!("POST / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        talk(front, &post).await
    };
    let (seen, answer) = tokio::join!(dies_once(&server), outside);
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("without an answer"), "{answer}");
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn a_sandbox_has_so_many_requests_and_no_more() {
    let (front, _) = front_of(FrontConfig::default(), Ingress::default(), 1).await;
    let host = format!("49983-{ID}.hutch.test");
    let mut stream = TcpStream::connect(front).await.unwrap();
    stream.write_all(get_request(&host, "/told", "").as_bytes()).await.unwrap();
    head(&mut stream).await;
    let refused = talk(front, &get_request(&host, "/health", "")).await;
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    assert!(refused.contains("retry-after: 1\r\n"), "{refused}");
    let body: serde_json::Value = serde_json::from_str(refused.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["connectionLimit"], 1);
    assert_eq!(body["sandboxId"], ID);
    assert_eq!(body["code"], 429);
    // Other sandboxes and the API are not concerned.
    assert!(talk(front, &get_request("localhost", "/x", "")).await.ends_with("this is the api"));
    drop(stream);
    let freed = async {
        while !talk(front, &get_request(&host, "/health", "")).await.starts_with("HTTP/1.1 204") {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), freed).await.expect("an abandoned request frees its place");
}
