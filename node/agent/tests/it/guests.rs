//! What sandboxes ask of their node. All instances here have the loopback address, so that there is one at a time.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use hutch_node_api::{LogLine, NodeClient, NodeEvent};
use hutch_types::SandboxId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Host, within};

/// Asks as a sandbox would; the whole answer, or nothing when the connection was closed.
async fn ask(service: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(service).await.unwrap();
    // A refusal may come before all of it is sent.
    drop(stream.write_all(request.as_bytes()).await);
    let mut answer = Vec::new();
    drop(within("an answer", stream.read_to_end(&mut answer)).await);
    String::from_utf8_lossy(&answer).into_owned()
}

async fn post(service: SocketAddr, body: &str) -> String {
    let length = body.len();
    ask(
        service,
        &format!("POST /logs HTTP/1.1\r\nHost: events.e2b.local\r\nContent-Length: {length}\r\n\r\n{body}"),
    )
    .await
}

fn serve(host: &Host) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    host.agent.serve_guests(listener).unwrap();
    address
}

async fn said(host: &Host, id: &SandboxId) -> Vec<LogLine> {
    let events = host.events(|event| match event {
        NodeEvent::Logs { sandbox_id, lines } if sandbox_id == *id => Some(lines),
        _ => None,
    });
    events.await.into_iter().flatten().filter(|line| line.message.starts_with("from inside")).collect()
}

#[tokio::test]
async fn a_sandbox_learns_who_it_is_and_its_lines_reach_control() {
    let host = Host::with(|config| config.sample_interval = Duration::from_millis(20)).await;
    let service = serve(&host);
    let me = "GET /me HTTP/1.1\r\nHost: x\r\n\r\n";
    assert_eq!(ask(service, me).await, "", "nobody is there yet");
    let id = host.start().await;
    let answer = ask(service, me).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&format!(r#"{{"sandboxID":"{id}"}}"#)),
        "{answer}"
    );

    let line = format!(r#"{{"level":"error","message":"from inside","instanceID":"{id}","n":1}}"#);
    assert!(post(service, &line).await.starts_with("HTTP/1.1 200 "));
    let lines = within("the line", async {
        loop {
            let lines = said(&host, &id).await;
            if !lines.is_empty() {
                return lines;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    let lines = lines.await;
    assert_eq!((lines.len(), lines[0].level.as_str(), lines[0].fields["n"].as_str()), (1, "error", "1"));

    // A daemon that takes over knows who is who.
    let host = host.restart(|_| {}).await;
    let service = serve(&host);
    assert!(ask(service, me).await.contains(id.as_str()));
    // The last words are not lost.
    assert!(post(service, r#"{"message":"from inside, last"}"#).await.starts_with("HTTP/1.1 200 "));
    host.agent.stop_sandbox(&id).await.unwrap();
    assert_eq!(
        said(&host, &id).await.last().map(|line| line.message.clone()),
        Some("from inside, last".to_owned())
    );
    assert_eq!(ask(service, me).await, "", "nobody is there any more");
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn what_a_sandbox_may_not_ask_is_refused() {
    let host = Host::new().await;
    let service = serve(&host);
    let id = host.start().await;
    for (request, status) in [
        ("GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 404),
        ("GET //me HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 404),
        ("GET /logs HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 405),
        ("DELETE /me HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 405),
        (format!("GET /me HTTP/1.1\r\nHost: x\r\nX: {}\r\n\r\n", "x".repeat(20_000)), 431),
    ] {
        let answer = ask(service, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{request}: {answer}");
    }
    for (body, status) in [
        ("".to_owned(), 400),
        ("[]".to_owned(), 400),
        ("{".to_owned(), 400),
        (r#"{"message":"from inside","instanceID":"another"}"#.to_owned(), 400),
        (format!(r#"{{"message":"{}"}}"#, "x".repeat(70_000)), 413),
        (format!(r#"{{"a":{}{}}}"#, "[".repeat(5000), "]".repeat(5000)), 400),
    ] {
        let answer = post(service, &body).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{status}: {answer}");
    }
    host.agent.stop_sandbox(&id).await.unwrap();
    assert_eq!(said(&host, &id).await, []);
}

#[tokio::test]
async fn a_flood_of_lines_is_refused_and_told() {
    let host = Host::with(|config| config.sample_interval = Duration::from_secs(3600)).await;
    let service = serve(&host);
    let id = host.start().await;
    // More than is kept between two samples, even if one is taken meanwhile.
    let mut refused = 0;
    for _ in 0..2200 {
        let answer = post(service, r#"{"message":"from inside"}"#).await;
        if answer.starts_with("HTTP/1.1 429 ") {
            assert!(answer.to_lowercase().contains("retry-after: 5"), "{answer}");
            refused += 1;
        } else {
            assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        }
    }
    assert!(refused > 0);
    host.agent.stop_sandbox(&id).await.unwrap();
    assert_eq!(said(&host, &id).await.len(), 2200 - refused);
    let told = host.events(|event| match event {
        NodeEvent::Logs { lines, .. } => {
            lines.into_iter().find_map(|line| line.fields.get("dropped").cloned())
        }
        _ => None,
    });
    let told: usize = told.await.iter().map(|n| n.parse::<usize>().unwrap()).sum();
    assert_eq!(told, refused);
}

#[tokio::test]
async fn idle_connections_of_one_sandbox_are_bounded() {
    let host = Host::new().await;
    let service = serve(&host);
    host.start().await;
    let mut idle = Vec::new();
    for _ in 0..8 {
        idle.push(TcpStream::connect(service).await.unwrap());
    }
    let me = "GET /me HTTP/1.1\r\nHost: x\r\n\r\n";
    within("the bound", async { while !ask(service, me).await.is_empty() {} }).await;
    drop(idle);
    within("room again", async { while ask(service, me).await.is_empty() {} }).await;
}
