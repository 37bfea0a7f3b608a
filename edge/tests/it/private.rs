//! Private sandboxes and masked hosts.

use hutch_edge::FrontConfig;
use hutch_types::{Ingress, Secret, TokenHash};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::{ID, front_of, get_request, head, talk};

const TOKEN: &str = "0123abcd";

fn private() -> Ingress {
    Ingress { traffic_token: Some(TokenHash::of(&Secret::new(TOKEN))), ..Ingress::default() }
}

#[tokio::test]
async fn every_port_but_envds_needs_the_token() {
    let (front, inside) = front_of(FrontConfig::default(), private(), 9).await;
    let host = format!("{}-{ID}.hutch.test", inside.port());
    for (path, extra) in [
        ("/echo", String::new()),
        ("/echo?token=0123abcd", String::new()),
        ("/echo", "E2B-Traffic-Access-Token: 0123abce\r\n".to_owned()),
        ("/echo?e2b-traffic-access-token=", String::new()),
    ] {
        let refused = talk(front, &get_request(&host, path, &extra)).await;
        assert!(refused.starts_with("HTTP/1.1 403"), "{refused}");
        let body: serde_json::Value =
            serde_json::from_str(refused.split("\r\n\r\n").nth(1).unwrap()).unwrap();
        assert_eq!((&body["sandboxId"], &body["code"]), (&ID.into(), &403.into()));
        let message = body["message"].as_str().unwrap();
        assert!(message.starts_with("Sandbox is secured with traffic access token. "), "{message}");
    }
    // By the routing headers too.
    let by_header = format!("E2b-Sandbox-Id: {ID}\r\nE2b-Sandbox-Port: {}\r\n", inside.port());
    assert!(talk(front, &get_request("localhost", "/echo", &by_header)).await.starts_with("HTTP/1.1 403"));

    let envd = talk(front, &get_request(&format!("49983-{ID}.hutch.test"), "/health", "")).await;
    assert!(envd.starts_with("HTTP/1.1 204"), "{envd}");
}

#[tokio::test]
async fn the_token_opens_and_the_server_inside_never_sees_it() {
    let (front, inside) = front_of(FrontConfig::default(), private(), 9).await;
    for port in [inside.port(), 49983] {
        let host = format!("{port}-{ID}.hutch.test");
        for (path, extra) in [
            ("/echo?a=%20b", format!("e2b-traffic-access-token: {TOKEN}\r\n")),
            ("/echo?e2b-traffic-access-token=0123abcd&a=%20b", String::new()),
            ("/echo?a=%20b", format!("Sec-WebSocket-Protocol: e2b-traffic-access-token.{TOKEN}\r\n")),
        ] {
            let passed = talk(front, &get_request(&host, path, &extra)).await;
            assert!(passed.starts_with("HTTP/1.1 200"), "{passed}");
            assert!(passed.contains("GET /echo?a=%20b {"), "{passed}");
            assert!(!passed.contains(TOKEN) && !passed.contains("traffic-access-token"), "{passed}");
        }
    }
}

#[tokio::test]
async fn a_browsers_websocket_comes_in_by_a_subprotocol() {
    let server = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = server.local_addr().unwrap().port();
    let (front, _) = front_of(FrontConfig::default(), private(), 9).await;
    for (offered, passed_on, chosen, answered) in [
        ("e2b-traffic-access-token.0123abcd", None, None, "e2b-traffic-access-token.0123abcd"),
        ("chat, e2b-traffic-access-token.0123abcd", Some("chat"), Some("chat"), "chat"),
    ] {
        let inside = async {
            let (mut s, _) = server.accept().await.unwrap();
            let got = head(&mut s).await.to_lowercase();
            let line = got.lines().find_map(|l| l.strip_prefix("sec-websocket-protocol: "));
            assert_eq!(line, passed_on, "{got}");
            let chosen = chosen.map(|c| format!("Sec-WebSocket-Protocol: {c}\r\n")).unwrap_or_default();
            let answer = format!(
                "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n{chosen}\r\nhello"
            );
            s.write_all(answer.as_bytes()).await.unwrap();
        };
        let outside = async {
            let mut s = TcpStream::connect(front).await.unwrap();
            let r = format!(
                "GET /ws HTTP/1.1\r\nHost: {port}-{ID}.hutch.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
                 Sec-WebSocket-Protocol: {offered}\r\n\r\n"
            );
            s.write_all(r.as_bytes()).await.unwrap();
            let got = head(&mut s).await.to_lowercase();
            assert!(got.starts_with("http/1.1 101"), "{got}");
            assert!(got.contains(&format!("sec-websocket-protocol: {answered}\r\n")), "{got}");
            let mut hello = [0; 5];
            s.read_exact(&mut hello).await.unwrap();
            assert_eq!(&hello, b"hello");
        };
        tokio::join!(inside, outside);
    }
}

#[tokio::test]
async fn scripts_of_other_origins_may_ask_whether_they_may_send_it() {
    let (front, inside) = front_of(FrontConfig::default(), private(), 9).await;
    let ask = |headers: &str| {
        format!(
            "OPTIONS /echo HTTP/1.1\r\nHost: {}-{ID}.hutch.test\r\nConnection: close\r\nOrigin: https://app.test\r\n\
             Access-Control-Request-Method: PUT\r\nAccess-Control-Request-Headers: {headers}\r\n\r\n",
            inside.port()
        )
    };
    let allowed = talk(front, &ask("content-type, e2b-traffic-access-token")).await.to_lowercase();
    assert!(allowed.starts_with("http/1.1 204"), "{allowed}");
    for line in [
        "access-control-allow-origin: *",
        "access-control-allow-methods: put",
        "access-control-allow-headers: content-type, e2b-traffic-access-token",
    ] {
        assert!(allowed.contains(&format!("{line}\r\n")), "{line}: {allowed}");
    }
    assert!(talk(front, &ask("content-type")).await.starts_with("HTTP/1.1 403"), "not about the token");
}

#[tokio::test]
async fn a_masked_host_is_what_the_server_sees_except_envd() {
    let ingress = Ingress { mask_request_host: Some("localhost:${PORT}".to_owned()), ..Ingress::default() };
    let (front, inside) = front_of(FrontConfig::default(), ingress, 9).await;
    let (port, forged) = (inside.port(), "X-Forwarded-Host: forged\r\n");
    let host = format!("{port}-{ID}.hutch.test:3000");
    let masked = talk(front, &get_request(&host, "/echo", forged)).await;
    assert!(masked.contains(&format!("\"host\": \"localhost:{port}\"")), "{masked}");
    assert!(masked.contains(&format!("\"x-forwarded-host\": \"{host}\"")), "{masked}");
    assert!(!masked.contains("forged"), "{masked}");
    let envd = talk(front, &get_request(&format!("49983-{ID}.hutch.test"), "/echo", "")).await;
    assert!(envd.contains(&format!("\"host\": \"49983-{ID}.hutch.test\"")), "{envd}");
    assert!(!envd.contains("x-forwarded"), "{envd}");
}
