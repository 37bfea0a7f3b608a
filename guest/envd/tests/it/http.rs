//! The routes that clients use, and the access token.

use hutch_envd::state::Update;
use hutch_types::Secret;

use crate::support::*;

fn secure(envd: &Envd) {
    envd.state.update(Update { access_token: Some(Secret::new("token")), ..Update::default() });
}

#[tokio::test]
async fn a_secured_sandbox_asks_for_its_token_except_where_it_must_not() {
    with_envd(async |envd| {
        let list = |headers: &'static [&'static str]| envd.post("/process.Process/List", headers, "{}");
        assert_eq!(list(&["Content-Type: application/json"]).await.status, 200, "open");
        secure(envd);
        let refused = list(&["Content-Type: application/json"]).await;
        assert_eq!((refused.status, &refused.json()["code"]), (401, &serde_json::json!(401)));
        assert_eq!(refused.header("content-type"), Some("application/json; charset=utf-8"));
        assert_eq!(list(&["Content-Type: application/json", "X-Access-Token: wrong"]).await.status, 401);
        assert_eq!(list(&["Content-Type: application/json", "X-Access-Token: token"]).await.status, 200);
        for path in ["/envs", "/metrics", "/no/such", "//health", "/health/"] {
            assert_eq!(envd.get(path, &[]).await.status, 401, "{path}");
        }
        let health = envd.get("/health", &[]).await;
        assert_eq!((health.status, health.header("x-envd-version")), (204, Some(hutch_envd::ENVD_VERSION)));
        assert_eq!(envd.post("/health", &[], "").await.status, 401);
    })
    .await;
}

#[tokio::test]
async fn metrics_and_variables_are_shown() {
    with_envd(async |envd| {
        let metrics = envd.get("/metrics", &[]).await;
        assert_eq!(metrics.header("cache-control"), Some("no-store"));
        let metrics = metrics.json();
        for field in [
            "ts",
            "cpu_count",
            "mem_total",
            "mem_used",
            "mem_cache",
            "mem_total_mib",
            "disk_total",
            "disk_used",
        ] {
            assert!(metrics[field].as_u64().is_some(), "{field} in {metrics}");
        }
        assert!(metrics["cpu_used_pct"].as_f64().is_some());
        assert_eq!(envd.get("/envs", &[]).await.json(), serde_json::json!({"E2B_SANDBOX": "true"}));
        assert_eq!(envd.get("/no/such", &[]).await.json()["code"], 404);
        assert_eq!(envd.raw(&request("DELETE", "/envs", &[], "")).await.status, 405);
    })
    .await;
}

#[tokio::test]
async fn browsers_may_call_without_a_token_in_the_preflight() {
    with_envd(async |envd| {
        secure(envd);
        let headers = [
            "Origin: https://app.example",
            "Access-Control-Request-Method: POST",
            "Access-Control-Request-Headers: authorization,x-access-token,connect-protocol-version",
        ];
        let answer = envd.raw(&request("OPTIONS", "/process.Process/Start", &headers, "")).await;
        assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, Some("*")));
        let allowed = answer.header("access-control-allow-headers").unwrap();
        assert!(allowed.contains("authorization") && allowed.contains("x-access-token"), "{answer:?}");
        assert_eq!(answer.header("access-control-max-age"), Some("7200"));
        let refused = envd.get("/envs", &["Origin: https://app.example"]).await;
        assert_eq!((refused.status, refused.header("access-control-allow-origin")), (401, Some("*")));
        assert!(refused.header("access-control-expose-headers").unwrap().contains("location"));
    })
    .await;
}

#[tokio::test]
async fn requests_as_the_sdks_write_them_are_taken() {
    with_envd(async |envd| {
        // Chunked, with the encodings spelled out, and an Accept-Encoding that must not compress the stream.
        let body = r#"{"process":{"cmd":"/bin/sh","args":["-c","echo hi"]},"stdin":false}"#;
        let frame = format!("\0\0\0\0{}{body}", char::from(u8::try_from(body.len()).unwrap()));
        let request = format!(
            "POST /process.Process/Start HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\
             Content-Type: application/connect+json\r\nConnect-Protocol-Version: 1\r\nConnect-Timeout-Ms: 60000\r\n\
             Connect-Accept-Encoding: identity\r\nConnect-Content-Encoding: identity\r\nKeepalive-Ping-Interval: 50\r\n\
             Accept-Encoding: zstd,gzip,br\r\n\r\n{:x}\r\n{frame}\r\n0\r\n\r\n",
            frame.len()
        );
        let answer = envd.raw(&request).await;
        assert_eq!(answer.header("content-type"), Some("application/connect+json"));
        assert_eq!(answer.header("content-encoding"), None);
        for part in [r#"{"event":{"start":{"pid":"#, r#"{"event":{"data":{"stdout":"aGkK"}}}"#, r#""status":"exit status 0""#] {
            assert!(answer.body.contains(part), "{part} in {answer:?}");
        }
        let headers = ["Content-Type: application/json", "Content-Encoding: identity", "Accept-Encoding: identity"];
        let missing = envd.post("/process.Process/SendSignal", &headers, r#"{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}"#).await;
        assert_eq!(missing.status, 404);
        assert!(missing.body.contains(r#"{"code":"not_found","message":"process with pid 1 not found"}"#), "{missing:?}");
        let malformed = envd.post("/process.Process/List", &["Content-Type: application/json"], "{").await;
        assert_eq!(malformed.status, 400);
    })
    .await;
}
