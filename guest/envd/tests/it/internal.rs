//! What only the host may ask: /init, /tunnel, /logs.

use std::time::Duration;

use hutch_proto::process::ListRequest;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::*;

fn secret() -> String {
    format!("X-Hutch-Secret: {SECRET}")
}

#[tokio::test]
async fn internal_routes_are_closed_to_everyone_else() {
    with_envd(async |envd| {
        let wrong = "X-Hutch-Secret: wrong";
        for headers in [&[][..], &[wrong][..]] {
            assert_eq!(envd.post("/init", headers, "{}").await.status, 401);
            assert_eq!(envd.get("/logs", headers).await.status, 401);
            let upgrade = [&["Connection: upgrade", "Upgrade: hutch-tunnel"][..], headers].concat();
            assert_eq!(envd.get("/tunnel?port=1", &upgrade).await.status, 401);
        }
        assert!(envd.client().list(ListRequest::default()).await.is_ok());
    })
    .await;
}

#[tokio::test]
async fn init_tells_where_the_host_answers_and_whom_to_trust() {
    with_envd(async |envd| {
        let written = |path: &str| std::fs::read_to_string(envd.folder.path().join("root").join(path)).unwrap();
        // A DER sequence of two bytes, which is as much of a certificate as envd looks at.
        let pem = |body: &str| format!("-----BEGIN CERTIFICATE-----\n{body}\n-----END CERTIFICATE-----\n");
        let body = serde_json::json!({
            "hyperloopIP": "10.9.0.1", "caBundle": pem("MAIFAA=="), "templateId": "base", "buildId": "b",
            "timestamp": "2026-01-01T00:00:02Z",
        });
        for _ in 0..2 {
            assert_eq!(envd.post("/init", &[&secret()], &body.to_string()).await.status, 204);
            assert_eq!(written("etc/ssl/certs/ca-certificates.crt"), pem("MAIFAA=="));
        }
        assert_eq!(envd.get("/envs", &[]).await.json()["E2B_EVENTS_ADDRESS"], "http://10.9.0.1");
        assert!(written("etc/hosts").contains("\n10.9.0.1 events.e2b.local\n"));
        assert_eq!(written(".e2b"), "ENV_ID=base\nTEMPLATE_ID=base\nBUILD_ID=b\n");

        // What is older than that writes nothing, and nothing is half done when one part is refused.
        let stale = serde_json::json!({"hyperloopIP": "10.9.0.2", "caBundle": pem("MAIFAQ=="), "timestamp": "2026-01-01T00:00:01Z"});
        assert_eq!(envd.post("/init", &[&secret()], &stale.to_string()).await.status, 204);
        for wrong in ["none", &pem("MAIF"), "-----BEGIN CERTIFICATE-----"] {
            let body = serde_json::json!({"hyperloopIP": "10.9.0.3", "caBundle": wrong});
            assert_eq!(envd.post("/init", &[&secret()], &body.to_string()).await.status, 400, "{wrong}");
        }
        let body = serde_json::json!({"hyperloopIP": "nowhere"});
        assert_eq!(envd.post("/init", &[&secret()], &body.to_string()).await.status, 400);
        assert!(written("etc/hosts").contains("\n10.9.0.1 events.e2b.local\n"));
        assert_eq!(written("etc/ssl/certs/ca-certificates.crt"), pem("MAIFAA=="));
        assert_eq!(envd.get("/envs", &[]).await.json()["E2B_EVENTS_ADDRESS"], "http://10.9.0.1");
    })
    .await;
}

#[tokio::test]
async fn init_gives_the_sandbox_its_identity() {
    with_envd(async |envd| {
        let body = r#"{"envVars":{"A":"1"},"accessToken":"token","timestamp":"2026-01-01T00:00:02Z","defaultUser":"root",
            "hostname":"box","sandboxId":"iabc","templateId":"base","machineId":"0123456789abcdef0123456789abcdef",
            "memoryTotalBytes":1048576,"cpuCount":3,"diskTotalBytes":2097152}"#;
        let answer = envd.post("/init", &[&secret()], body).await;
        assert_eq!((answer.status, answer.header("x-envd-version")), (204, Some("0.6.13")));
        let token = "X-Access-Token: token";
        let expected = serde_json::json!({"A": "1", "E2B_SANDBOX": "true", "E2B_SANDBOX_ID": "iabc", "E2B_TEMPLATE_ID": "base"});
        assert_eq!(envd.get("/envs", &[token]).await.json(), expected);
        let metrics = envd.get("/metrics", &[token]).await.json();
        assert_eq!((&metrics["mem_total"], &metrics["cpu_count"]), (&1_048_576.into(), &3.into()));
        assert_eq!(metrics["disk_total"], 2_097_152);
        let written = |path: &str| std::fs::read_to_string(envd.folder.path().join("root").join(path)).unwrap();
        assert_eq!((written("etc/hostname").as_str(), written("run/e2b/.E2B_SANDBOX_ID").as_str()), ("box\n", "iabc"));

        // The variables of one life do not leak into the next; what is older than that changes nothing.
        let next = r#"{"envVars":{"B":"2"},"timestamp":"2026-01-01T00:00:03Z"}"#;
        assert_eq!(envd.post("/init", &[&secret()], next).await.status, 204);
        let stale = r#"{"envVars":{"C":"3"},"timestamp":"2026-01-01T00:00:01Z"}"#;
        assert_eq!(envd.post("/init", &[&secret()], stale).await.status, 204);
        let envs = envd.get("/envs", &[]).await.json();
        assert_eq!((envs.get("A"), envs.get("B"), envs.get("C")), (None, Some(&"2".into()), None));
        assert_eq!(envd.post("/init", &[&secret()], "").await.status, 204, "an empty body is fine");
        for bad in ["{", r#"{"hostname":"a b"}"#, r#"{"timestamp":"soon"}"#, r#"{"machineId":"x"}"#] {
            assert_eq!(envd.post("/init", &[&secret()], bad).await.status, 400, "{bad}");
        }
    })
    .await;
}

/// Asks for a tunnel and returns the stream with the head of the answer.
async fn open_tunnel(envd: &Envd, port: u16) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(envd.address).await.unwrap();
    let head = format!(
        "GET /tunnel?port={port} HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: hutch-tunnel\r\n{}\r\n\r\n",
        secret()
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    (stream, String::from_utf8(head).unwrap())
}

#[tokio::test]
async fn a_tunnel_reaches_both_loopbacks_and_passes_half_closes() {
    with_envd(async |envd| {
        let mut addresses = vec!["127.0.0.1:0"];
        if std::fs::read_to_string("/proc/net/if_inet6").is_ok_and(|table| table.contains(" lo")) {
            addresses.push("[::1]:0");
        }
        for address in addresses {
            let server = TcpListener::bind(address).await.unwrap();
            let port = server.local_addr().unwrap().port();
            let (mut client, head) = open_tunnel(envd, port).await;
            assert!(head.starts_with("HTTP/1.1 101"), "{head}");
            assert!(head.to_ascii_lowercase().contains("upgrade: hutch-tunnel"), "{head}");
            let (mut server, _) = server.accept().await.unwrap();
            client.write_all(b"question").await.unwrap();
            client.shutdown().await.unwrap();
            let mut heard = String::new();
            server.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "question", "the end of one direction is passed on");
            server.write_all(b"answer").await.unwrap();
            drop(server);
            let mut heard = String::new();
            client.read_to_string(&mut heard).await.unwrap();
            assert_eq!(heard, "answer", "while the other goes on");
        }
    })
    .await;
}

#[tokio::test]
async fn a_tunnel_to_nothing_is_a_bad_gateway() {
    with_envd(async |envd| {
        let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let headers = ["Upgrade: hutch-tunnel", &secret()];
        let path = format!("/tunnel?port={closed}");
        let refused = tokio::time::timeout(Duration::from_secs(20), envd.get(&path, &headers)).await.unwrap();
        assert_eq!((refused.status, &refused.json()["code"]), (502, &502.into()));
        assert_eq!(envd.get(&path, &[&secret()]).await.status, 400, "without Upgrade");
        assert_eq!(envd.get("/tunnel?port=70000", &headers).await.status, 400);
        assert_eq!(envd.get("/tunnel?port=0", &headers).await.status, 400);
    })
    .await;
}
