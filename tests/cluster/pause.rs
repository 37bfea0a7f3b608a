//! Pausing and resuming over the API, on the real agent and envd.

use std::time::Duration;

use http::Method;
use serde_json::json;

use crate::world::{Sandbox, World, wait_for};

async fn post(w: &World, sandbox: &Sandbox, operation: &str, body: serde_json::Value) -> u16 {
    let path = format!("/sandboxes/{}/{operation}", sandbox.id);
    w.call(Method::POST, &path, Some(body)).await.status.as_u16()
}

async fn state(w: &World, sandbox: &Sandbox) -> String {
    let detail = w.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200).json();
    detail["state"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_paused_sandbox_comes_back_with_its_environment_if_with_its_memory() {
    let w = World::new().await;
    for (memory, environment) in [(true, "kept"), (false, "")] {
        let sandbox = w.create(json!({ "envVars": { "WORD": "kept" } })).await;
        assert_eq!(post(&w, &sandbox, "pause", json!({ "memory": memory })).await, 204);
        assert_eq!(post(&w, &sandbox, "pause", json!({})).await, 409);
        assert_eq!(w.envd(&sandbox, "/health").await.status, 502, "nobody reaches it");
        assert_eq!(state(&w, &sandbox).await, "paused");
        assert_eq!(post(&w, &sandbox, "connect", json!({ "timeout": 300 })).await, 201);
        assert_eq!(post(&w, &sandbox, "connect", json!({ "timeout": 300 })).await, 200);
        assert_eq!(w.run(&sandbox, "printf %s \"$WORD\"").await, environment, "with memory: {memory}");
    }
}

#[tokio::test]
async fn a_paused_sandbox_outlives_the_daemon() {
    let mut w = World::new().await;
    let paused = w.create(json!({})).await;
    let killed = w.create(json!({})).await;
    for sandbox in [&paused, &killed] {
        assert_eq!(post(&w, sandbox, "pause", json!({})).await, 204);
    }
    w.crash().await;
    w.boot().await;
    for sandbox in [&paused, &killed] {
        assert_eq!(state(&w, sandbox).await, "paused");
    }
    w.delete(&format!("/sandboxes/{}", killed.id)).await.expect(204);
    assert!(!w.has_instance(&killed));
    w.clock.advance(Duration::from_secs(90_000));
    assert_eq!(post(&w, &paused, "connect", json!({ "timeout": 300 })).await, 201);
    assert_eq!(w.run(&paused, "printf up").await, "up");
}

#[tokio::test]
async fn a_lease_that_ends_with_a_pause_does_so_after_a_restart() {
    let mut w = World::new().await;
    let sandbox = w.create(json!({ "timeout": 60, "autoPause": true })).await;
    w.crash().await;
    w.clock.advance(Duration::from_secs(61));
    w.boot().await;
    wait_for("the pause", async || {
        state(&w, &sandbox).await == "paused"
            && w.call(
                Method::POST,
                &format!("/sandboxes/{}/timeout", sandbox.id),
                Some(json!({ "timeout": 5 })),
            )
            .await
            .status
                == 404
    })
    .await;
    assert_eq!(post(&w, &sandbox, "connect", json!({ "timeout": 300 })).await, 201);
}

#[tokio::test]
async fn one_whose_row_is_gone_is_destroyed() {
    let mut w = World::new().await;
    let sandbox = w.create(json!({})).await;
    assert_eq!(post(&w, &sandbox, "pause", json!({})).await, 204);
    assert!(w.has_instance(&sandbox));
    w.crash().await;
    w.forget_everything();
    w.boot().await;
    wait_for("it to be gone", async || !w.has_instance(&sandbox)).await;
}
