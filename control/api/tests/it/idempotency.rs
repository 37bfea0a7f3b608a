use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use http::Method;
use hutch_app::Limits;
use hutch_node_api::NodeErrorKind;
use serde_json::{Value, json};

use crate::node::FakeNode;
use crate::world::{Reply, World, wait_for};

async fn create(w: &World, key: &str, body: Value) -> Reply {
    let request = w.request(Method::POST, "/v2/sandboxes").header("Idempotency-Key", key);
    w.send(request.body(Body::from(body.to_string())).unwrap()).await
}

#[tokio::test]
async fn the_same_key_gets_the_same_sandbox() {
    let w = World::new().await;
    let first = create(&w, "my-key-1", json!({ "templateID": "base" })).await;
    assert_eq!(first.status, 201, "{}", first.text);
    // Defaults that are said, another order and unknown fields make no difference.
    let again =
        json!({ "unknown": 1, "metadata": {}, "timeout": 300, "templateID": "base", "autoPause": false });
    let second = create(&w, "my-key-1", again).await;
    assert_eq!(second.status, 201, "{}", second.text);
    assert_eq!(first.json(), second.json());
    assert_eq!(second.headers["content-type"], "application/json");
    assert_ne!(first.headers["x-request-id"], second.headers["x-request-id"]);
    assert_eq!(w.node.starts().len(), 1);
    // Another key is another sandbox.
    let third = create(&w, "my-key-2", json!({ "templateID": "base" })).await;
    assert_ne!(first.json()["sandboxID"], third.json()["sandboxID"]);
}

#[tokio::test]
async fn a_key_of_another_request_is_a_conflict() {
    let w = World::new().await;
    create(&w, "k", json!({ "templateID": "base" })).await;
    let reply = create(&w, "k", json!({ "templateID": "base", "timeout": 301 })).await;
    reply.error(409);
    assert_eq!(reply.json()["error_code"], "idempotency_request_mismatch");
    assert_eq!(reply.header("should-retry"), Some("false"));
}

#[tokio::test]
async fn a_second_request_does_not_wait_for_the_first() {
    let w = World::new().await;
    w.node.hold_starts();
    let (first, second) = tokio::join!(create(&w, "k", json!({ "templateID": "base" })), async {
        wait_for("the start", async || w.node.starts().len() == 1).await;
        let second = create(&w, "k", json!({ "templateID": "base" })).await;
        w.node.gate.add_permits(1);
        second
    });
    assert_eq!(first.status, 201, "{}", first.text);
    second.error(409);
    assert_eq!(second.json()["error_code"], "idempotency_in_progress");
    assert_eq!(second.header("should-retry"), Some("true"));
    assert_eq!(second.header("retry-after"), Some("1"));
}

#[tokio::test]
async fn a_client_that_goes_away_finds_its_sandbox_with_the_key() {
    let w = World::new().await;
    w.node.hold_starts();
    {
        let call = create(&w, "k", json!({ "templateID": "base" }));
        tokio::pin!(call);
        tokio::select! {
            _ = &mut call => panic!("it cannot be done yet"),
            () = wait_for("the start", async || w.node.starts().len() == 1) => {}
        }
    }
    w.node.gate.add_permits(1);
    wait_for("an answer", async || create(&w, "k", json!({ "templateID": "base" })).await.status == 201)
        .await;
    assert_eq!(w.node.starts().len(), 1);
    assert_eq!(w.node.running_count(), 1);
}

#[tokio::test]
async fn a_final_failure_is_kept_and_a_passing_one_is_not() {
    let w = World::new().await;
    w.node.fail_starts(Some(NodeErrorKind::Internal));
    create(&w, "final", json!({ "templateID": "base" })).await.error(500);
    w.node.fail_starts(Some(NodeErrorKind::Exhausted));
    create(&w, "passing", json!({ "templateID": "base" })).await.error(503);
    w.node.fail_starts(None);
    let kept = create(&w, "final", json!({ "templateID": "base" })).await;
    kept.error(500);
    assert_eq!(kept.json()["error_code"], "sandbox_create_failed");
    assert_eq!(create(&w, "passing", json!({ "templateID": "base" })).await.status, 201);
    create(&w, "missing", json!({ "templateID": "nope" })).await.error(404);
    create(&w, "missing", json!({ "templateID": "nope" })).await.error(404);
    assert_eq!(w.node.starts().len(), 3);
}

#[tokio::test]
async fn a_request_that_died_with_the_daemon_is_not_repeated() {
    let w = World::new().await;
    w.node.hold_starts();
    {
        let call = create(&w, "k", json!({ "templateID": "base" }));
        tokio::pin!(call);
        tokio::select! {
            _ = &mut call => panic!("it cannot be done yet"),
            () = wait_for("the start", async || w.node.starts().len() == 1) => {}
        }
    }
    let node = Arc::new(FakeNode::new());
    let restarted = World::over(w.store.clone(), node, Limits::default()).await;
    create(&restarted, "k", json!({ "templateID": "base" })).await.error(409);
    restarted.clock.advance(Duration::from_secs(120));
    let reply = create(&restarted, "k", json!({ "templateID": "base" })).await;
    reply.error(422);
    assert_eq!(reply.json()["error_code"], "idempotency_outcome_unknown");
    assert_eq!(reply.header("should-retry"), Some("false"));
    assert_eq!(restarted.node.starts().len(), 0);
}

#[tokio::test]
async fn malformed_keys_are_refused() {
    let w = World::new().await;
    let long = "a".repeat(256);
    for bad in ["", "A", "a_b", "a b", "ä", long.as_str()] {
        let request = w.request(Method::POST, "/v2/sandboxes").header("Idempotency-Key", bad.as_bytes());
        let reply = w.send(request.body(Body::from(r#"{"templateID":"base"}"#)).unwrap()).await;
        assert!(reply.error(400).contains("Idempotency-Key"), "{bad}");
    }
    let request = w
        .request(Method::POST, "/v2/sandboxes")
        .header("Idempotency-Key", "a")
        .header("Idempotency-Key", "a");
    w.send(request.body(Body::from(r#"{"templateID":"base"}"#)).unwrap()).await.error(400);
    assert_eq!(create(&w, &"a".repeat(255), json!({ "templateID": "base" })).await.status, 201);
}

#[tokio::test]
async fn the_older_create_ignores_the_key() {
    let w = World::new().await;
    let mut ids = Vec::new();
    for _ in 0..2 {
        let request = w.request(Method::POST, "/sandboxes").header("Idempotency-Key", "NOT valid");
        let reply = w.send(request.body(Body::from(r#"{"templateID":"base"}"#)).unwrap()).await;
        assert_eq!(reply.status, 201);
        ids.push(reply.json()["sandboxID"].clone());
    }
    assert_ne!(ids[0], ids[1]);
}
