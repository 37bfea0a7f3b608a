//! Servers inside that speak TLS.

use std::sync::Arc;

use hutch_edge::FrontConfig;
use hutch_types::Ingress;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::aws_lc_rs;

use crate::{ID, front_of, get_request, head, talk};

/// A certificate that nobody should believe: of another name.
fn acceptor() -> TlsAcceptor {
    let made = rcgen::generate_simple_self_signed(["somebody.else".to_owned()]).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], made.signing_key.serialize_der().try_into().unwrap())
        .unwrap();
    TlsAcceptor::from(Arc::new(config))
}

#[tokio::test]
async fn requests_and_websockets_reach_a_server_that_speaks_tls() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let ingress = Ingress { https_ports: [port].into(), ..Ingress::default() };
    let (front, _) = front_of(FrontConfig::default(), ingress, 9).await;
    let host = format!("{port}-{ID}.hutch.test");
    let inside = async {
        let acceptor = acceptor();
        let mut names = Vec::new();
        for answer in [
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret",
            "HTTP/1.1 200 OK\r\nContent-Length: 6\r\nConnection: close\r\n\r\nsecret",
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nhello",
        ] {
            let (tcp, _) = server.accept().await.unwrap();
            let mut s = acceptor.accept(tcp).await.unwrap();
            names.push(s.get_ref().1.server_name().map(str::to_owned));
            let mut got = Vec::new();
            while !got.ends_with(b"\r\n\r\n") {
                got.push(s.read_u8().await.unwrap());
            }
            s.write_all(answer.as_bytes()).await.unwrap();
            s.shutdown().await.unwrap();
        }
        names
    };
    let outside = async {
        let by_name = talk(front, &get_request(&host, "/", "")).await;
        assert!(by_name.starts_with("HTTP/1.1 200") && by_name.ends_with("secret"), "{by_name}");
        let routed = format!("E2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {port}\r\n");
        let by_address = talk(front, &get_request("127.0.0.1", "/", &routed)).await;
        assert!(by_address.ends_with("secret"), "{by_address}");
        let mut s = TcpStream::connect(front).await.unwrap();
        let ws =
            format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n");
        s.write_all(ws.as_bytes()).await.unwrap();
        assert!(head(&mut s).await.starts_with("HTTP/1.1 101"));
        let mut hello = [0; 5];
        s.read_exact(&mut hello).await.unwrap();
        assert_eq!(&hello, b"hello");
    };
    let (names, ()) = tokio::join!(inside, outside);
    assert_eq!(
        names,
        [Some(host.clone()), None, Some(host)],
        "the name that the client used, where it is one"
    );
}

#[tokio::test]
async fn a_server_that_does_not_speak_tls_is_told_so() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let ingress = Ingress { https_ports: [port].into(), ..Ingress::default() };
    let (front, _) = front_of(FrontConfig::default(), ingress, 9).await;
    let inside = async {
        let (mut s, _) = server.accept().await.unwrap();
        s.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
    };
    let host = format!("{port}-{ID}.hutch.test");
    let request = get_request(&host, "/", "");
    let (answer, ()) = tokio::join!(talk(front, &request), inside);
    assert!(answer.starts_with("HTTP/1.1 502") && answer.contains("does not speak TLS"), "{answer}");
}
