use std::time::Duration;

use axum::body::Body;
use http::Method;
use hutch_app::Limits;
use hutch_node_api::NodeErrorKind;
use hutch_store::Store;
use hutch_types::{KillReason, SandboxState};
use serde_json::{Value, json};

use crate::node::ENVD_VERSION;
use crate::world::{BASE_ID, START, World, wait_for};

fn names(value: &Value) -> Vec<&str> {
    value.as_object().expect("an object").keys().map(String::as_str).collect()
}

#[tokio::test]
async fn a_created_sandbox_is_answered_as_clients_expect() {
    let w = World::new().await;
    let reply = w.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let body = reply.json();
    assert_eq!(body["templateID"], BASE_ID);
    assert_eq!(body["alias"], "base");
    assert_eq!(body["envdVersion"], ENVD_VERSION);
    assert!(body["domain"].is_null());
    assert!(body["clientID"].is_string());
    let mut keys = names(&body);
    keys.sort_unstable();
    assert_eq!(
        keys,
        ["alias", "clientID", "domain", "envdAccessToken", "envdVersion", "sandboxID", "templateID"]
    );
    let started = w.node.starts();
    assert_eq!(started.len(), 1);
    assert_eq!(body["envdAccessToken"], started[0].access_token.expose());
    assert!(started[0].access_token.expose().len() >= 32);
    assert!(started[0].network.allow_internet_access);
}

#[tokio::test]
async fn the_lease_is_counted_from_when_the_sandbox_answers() {
    let w = World::new().await;
    w.node.hold_starts();
    let creating = {
        let (router, request) = (w.router.clone(), w.request(Method::POST, "/v2/sandboxes"));
        let request = request.body(Body::from(r#"{"templateID":"base","timeout":60}"#)).unwrap();
        let (done, reply) = tokio::sync::oneshot::channel();
        w.supervisor.spawn("client", async move {
            let status = tower::ServiceExt::oneshot(router, request).await.unwrap().status();
            done.send(status).expect("the test waits");
        });
        reply
    };
    wait_for("the start", async || w.node.starts().len() == 1).await;
    let id = w.node.starts()[0].sandbox_id.clone();
    w.get(&format!("/sandboxes/{id}")).await.error(404);
    w.clock.advance(Duration::from_secs(7));
    w.node.gate.add_permits(1);
    assert_eq!(creating.await.unwrap(), 201);
    let body = w.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(body["startedAt"], START.plus(Duration::from_secs(7)).to_rfc3339());
    assert_eq!(body["endAt"], START.plus(Duration::from_secs(67)).to_rfc3339());
}

#[tokio::test]
async fn both_versions_have_their_default_timeout() {
    let w = World::new().await;
    for (path, seconds) in [("/sandboxes", 15), ("/v2/sandboxes", 300)] {
        let body = w.post(path, json!({ "templateID": "base", "secure": true })).await.json();
        let detail = w.get(&format!("/sandboxes/{}", body["sandboxID"].as_str().unwrap())).await.json();
        assert_eq!(detail["endAt"], START.plus(Duration::from_secs(seconds)).to_rfc3339(), "{path}");
        assert!(body["envdAccessToken"].is_string());
    }
}

#[tokio::test]
async fn what_means_the_default_is_accepted_and_unknown_fields_are_ignored() {
    let w = World::new().await;
    let body = json!({
        "templateID": " BASE:default ", "timeout": null, "autoPause": false, "autoPauseMemory": null,
        "autoResume": { "enabled": false }, "secure": null, "allow_internet_access": null,
        "network": { "allowPublicTraffic": null, "allowOut": [], "denyOut": null, "rules": {}, "egressProxy": null,
                     "dnsServers": [], "httpsPorts": [] },
        "metadata": null, "envVars": null, "mcp": { "time": {} }, "iam": { "tokens": {} }, "volumeMounts": [],
        "somethingNew": [1, 2, 3]
    });
    assert_eq!(w.post("/v2/sandboxes", body).await.status, 201);
    let body = json!({ "templateID": format!("{BASE_ID}:v1"), "network": null, "autoResume": null, "mcp": null, "iam": null,
                       "volumeMounts": null });
    assert_eq!(w.post("/v2/sandboxes", body).await.status, 201);
}

#[tokio::test]
async fn a_private_sandbox_has_a_token_for_its_ports_in_every_answer() {
    let w = World::new().await;
    let network =
        json!({ "allowPublicTraffic": false, "maskRequestHost": "localhost:${PORT}", "httpsPorts": [8443] });
    let body = w.post("/v2/sandboxes", json!({ "templateID": "base", "network": network })).await.json();
    let token = body["trafficAccessToken"].as_str().expect("a token");
    assert!(token.len() >= 32 && body["envdAccessToken"] != token);
    let started = w.node.starts().remove(0);
    assert!(started.ingress.traffic_token.unwrap().is_of(token));
    assert_eq!(started.ingress.mask_request_host.as_deref(), Some("localhost:${PORT}"));
    assert_eq!(started.ingress.https_ports, [8443].into());
    assert!(!started.env.values().any(|v| v.contains(token)), "the guest is not told");

    let id = body["sandboxID"].as_str().unwrap();
    let again = w.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.json();
    assert_eq!(again["trafficAccessToken"], token);
    let detail = w.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(detail["trafficAccessToken"], token);
    assert_eq!(detail["network"]["allowPublicTraffic"], false);
    assert!(!w.get("/v2/sandboxes").await.text.contains(token), "lists have no tokens");
}

#[tokio::test]
async fn what_cannot_be_honoured_is_refused_by_name() {
    let w = World::new().await;
    for (field, value, named) in [
        ("autoPauseMemory", json!(false), "autoPauseMemory"),
        ("autoResume", json!({ "enabled": true }), "autoResume"),
        ("volumeMounts", json!([{ "name": "d", "path": "/d" }]), "volumeMounts"),
        ("iam", json!({ "tokens": { "a": { "audience": "x", "tokenType": "JWT-SVID" } } }), "iam.tokens"),
        ("network", json!({ "allowOut": ["1.1.1.1"] }), "network.allowOut"),
        ("network", json!({ "denyOut": ["0.0.0.0/0", "10.0.0.0/8"] }), "network.denyOut"),
        ("network", json!({ "maskRequestHost": "-https://abcd" }), "network.maskRequestHost"),
        ("network", json!({ "egressProxy": { "address": "a:1" } }), "network.egressProxy"),
        ("network", json!({ "rules": { "a.b": [] } }), "network.rules"),
        ("network", json!({ "dnsServers": ["9.9.9.9"] }), "network.dnsServers"),
        ("network", json!({ "httpsPorts": [8443, 49983] }), "network.httpsPorts"),
        ("network", json!({ "httpsPorts": [70000] }), "httpsPorts"),
        ("mcp", json!([]), "mcp"),
    ] {
        let mut body = json!({ "templateID": "base" });
        body[field] = value;
        let text = w.post("/v2/sandboxes", body).await.error(400);
        assert!(text.contains(named), "{named}: {text}");
    }
    assert_eq!(w.node.starts().len(), 0);
}

#[tokio::test]
async fn malformed_requests_are_refused_with_the_place() {
    let w = World::new().await;
    for (body, hint) in [
        ("", "empty"),
        ("  ", "empty"),
        ("{", "EOF"),
        ("[]", "invalid"),
        ("null", "invalid"),
        ("{}", "templateID"),
        (r#"{"templateID":7}"#, "templateID: invalid type"),
        (r#"{"templateID":"base","timeout":-1}"#, "timeout: invalid value"),
        (r#"{"templateID":"base","timeout":"5"}"#, "timeout: invalid type"),
        (r#"{"templateID":"base","timeout":1e99}"#, "timeout"),
        (r#"{"templateID":"base","metadata":{"a":1}}"#, "metadata.a: invalid type"),
        (r#"{"templateID":"base","timeout":0}"#, "timeout must be at least 1"),
        (r#"{"templateID":"a/b/c"}"#, "Invalid template reference"),
        (r#"{"templateID":"base:"}"#, "Invalid tag"),
        (r#"{"templateID":"base","envVars":{"A=B":"1"}}"#, "envVars"),
        (r#"{"templateID":"base","envVars":{"A":"\u0000"}}"#, "envVars"),
    ] {
        let text = w.post_text("/v2/sandboxes", body).await.error(400);
        assert!(text.contains(hint), "{body}: {text}");
    }
}

#[tokio::test]
async fn an_unknown_template_or_tag_is_not_found() {
    let w = World::new().await;
    let text = w.post("/v2/sandboxes", json!({ "templateID": "nope" })).await.error(404);
    assert_eq!(text, "template 'nope' not found");
    let text = w.post("/sandboxes", json!({ "templateID": "nobody/base" })).await.error(404);
    assert_eq!(text, "template 'nobody/base' not found");
    let text = w.post("/v2/sandboxes", json!({ "templateID": "base:v9" })).await.error(404);
    assert_eq!(text, "tag 'v9' does not exist for template 'base'");
}

#[tokio::test]
async fn limits_are_named_in_the_error() {
    let limits =
        Limits { max_metadata_bytes: 10, max_env_bytes: 10, max_timeout_seconds: 7200, ..Limits::default() };
    let w = World::with(limits).await;
    for (field, value, named) in [
        ("timeout", json!(7201), "Timeout cannot be greater than 2 hours (limits.max_timeout_seconds)"),
        ("metadata", json!({ "abcde": "123456" }), "limits.max_metadata_bytes"),
        ("envVars", json!({ "abcde": "123456" }), "limits.max_env_bytes"),
    ] {
        let mut body = json!({ "templateID": "base" });
        body[field] = value;
        let text = w.post("/v2/sandboxes", body).await.error(400);
        assert!(text.contains(named), "{named}: {text}");
    }
    w.create(json!({ "metadata": { "abcde": "12345" } })).await;
}

#[tokio::test]
async fn the_environment_and_network_reach_the_node() {
    let w = World::new().await;
    w.create(json!({ "envVars": { "A": "1" }, "allow_internet_access": false })).await;
    w.create(json!({ "network": { "denyOut": ["0.0.0.0/0"] } })).await;
    let starts = w.node.starts();
    assert_eq!(starts[0].env["A"], "1");
    assert!(!starts[0].network.allow_internet_access);
    assert!(!starts[1].network.allow_internet_access);
    let detail = |n: usize| format!("/sandboxes/{}", starts[n].sandbox_id);
    assert_eq!(w.get(&detail(0)).await.json()["allowInternetAccess"], false);
    let second = w.get(&detail(1)).await.json();
    assert_eq!(second["network"], json!({ "denyOut": ["0.0.0.0/0"] }));
    assert!(second["allowInternetAccess"].is_null());
}

#[tokio::test]
async fn beyond_the_teams_limit_a_create_is_refused_until_one_is_killed() {
    let w = World::with(Limits { max_sandboxes_per_team: 2, ..Limits::default() }).await;
    let first = w.create(json!({})).await;
    w.create(json!({})).await;
    let reply = w.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    let text = reply.error(429);
    assert!(
        text.contains("maximum number of concurrent sandboxes, 2 (limits.max_sandboxes_per_team)"),
        "{text}"
    );
    assert_eq!(reply.header("retry-after"), Some("1"));
    assert_eq!(w.delete(&format!("/sandboxes/{first}")).await.status, 204);
    w.create(json!({})).await;
}

#[tokio::test]
async fn a_burst_waits_in_line_and_what_is_too_much_is_sent_away() {
    let limits = Limits { max_concurrent_starts: 1, max_queued_starts: 2, ..Limits::default() };
    let w = World::with(limits).await;
    w.node.hold_starts();
    let post = || w.post("/v2/sandboxes", json!({ "templateID": "base" }));
    let (a, b, c, d) = (post(), post(), post(), async {
        wait_for("the first start", async || w.node.starts().len() == 1).await;
        let overflow = w.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
        w.node.gate.add_permits(3);
        overflow
    });
    let (a, b, c, d) = tokio::join!(a, b, c, d);
    for reply in [a, b, c] {
        assert_eq!(reply.status, 201, "{}", reply.text);
    }
    let text = d.error(429);
    assert!(text.contains("limits.max_queued_starts"), "{text}");
    assert_eq!(d.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_node_that_fails_leaves_nothing() {
    let w = World::new().await;
    for (kind, status, code, retry) in [
        (NodeErrorKind::Exhausted, 503, Some("sandbox_capacity_unavailable"), Some("1")),
        (NodeErrorKind::Unavailable, 503, Some("sandbox_capacity_unavailable"), Some("1")),
        (NodeErrorKind::DeadlineExceeded, 504, Some("sandbox_placement_timeout"), Some("1")),
        (NodeErrorKind::NotFound, 500, Some("sandbox_no_compatible_node"), None),
        (NodeErrorKind::Unsupported, 400, Some("sandbox_create_refused"), None),
        (NodeErrorKind::Internal, 500, Some("sandbox_create_failed"), None),
    ] {
        w.node.fail_starts(Some(kind));
        let reply = w.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
        let text = reply.error(status);
        assert!(!text.contains("internal words"), "{text}");
        assert_eq!(reply.json()["error_code"].as_str(), code);
        assert_eq!(reply.header("retry-after"), retry, "{kind:?}");
        let id = w.node.starts().pop().unwrap().sandbox_id;
        w.wait_for_state(&id, SandboxState::Failed).await;
        wait_for("the clean-up", async || w.node.stops().contains(&id)).await;
        let ended = w.store.sandbox(&id).await.unwrap().ended.unwrap();
        assert_eq!(ended.1, KillReason::StartFailed);
        w.get(&format!("/sandboxes/{id}")).await.error(404);
    }
    assert_eq!(w.get("/v2/sandboxes").await.json(), json!([]));
    w.node.fail_starts(None);
    w.create(json!({})).await;
}

#[tokio::test]
async fn a_start_that_hangs_is_given_up_and_cleared_away() {
    let limits = Limits { start_timeout_seconds: 1, ..Limits::default() };
    let w = World::with(limits).await;
    w.node.hold_starts();
    let reply = w.post("/v2/sandboxes", json!({ "templateID": "base" })).await;
    let text = reply.error(504);
    assert!(text.contains("limits.start_timeout_seconds"), "{text}");
    let id = w.node.starts().pop().unwrap().sandbox_id;
    wait_for("the clean-up", async || w.node.stops().contains(&id)).await;
    w.wait_for_state(&id, SandboxState::Failed).await;
}

#[tokio::test]
async fn a_client_that_goes_away_leaves_no_sandbox() {
    let w = World::new().await;
    w.node.hold_starts();
    {
        let call = w.post("/v2/sandboxes", json!({ "templateID": "base" }));
        tokio::pin!(call);
        tokio::select! {
            _ = &mut call => panic!("it cannot be done yet"),
            () = wait_for("the start", async || w.node.starts().len() == 1) => {}
        }
    }
    let id = w.node.starts()[0].sandbox_id.clone();
    w.node.gate.add_permits(1);
    w.wait_for_state(&id, SandboxState::Gone).await;
    assert!(!w.node.is_running(&id));
    assert_eq!(w.node.stops(), [id]);
}
