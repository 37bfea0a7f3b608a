use std::time::Duration;

use hutch_app::Limits;
use hutch_types::{SandboxId, SandboxState};
use serde_json::{Value, json};

use crate::world::{START, World, wait_for};

async fn end_of(w: &World, id: &SandboxId) -> String {
    w.get(&format!("/sandboxes/{id}")).await.json()["endAt"].as_str().unwrap().to_owned()
}

fn at(seconds: u64) -> String {
    START.plus(Duration::from_secs(seconds)).to_rfc3339()
}

#[tokio::test]
async fn a_timeout_is_set_from_now_and_may_shorten() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    w.clock.advance(Duration::from_secs(10));
    for seconds in [600, 5, 60] {
        let reply = w.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": seconds })).await;
        assert_eq!(reply.status, 204, "{}", reply.text);
        assert_eq!(reply.text, "");
        assert_eq!(end_of(&w, &id).await, at(10 + seconds));
    }
}

#[tokio::test]
async fn a_timeout_of_zero_ends_the_sandbox_at_once() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    assert_eq!(w.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 0 })).await.status, 204);
    w.wait_for_state(&id, SandboxState::Gone).await;
    assert!(!w.node.is_running(&id));
    w.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 5 })).await.error(404);
}

#[tokio::test]
async fn nobody_lives_longer_than_the_operator_allows() {
    let w = World::with(Limits { max_timeout_seconds: 3600, ..Limits::default() }).await;
    let id = w.create(json!({ "timeout": 3600 })).await;
    let path = format!("/sandboxes/{id}/timeout");
    let text = w.post(&path, json!({ "timeout": 3601 })).await.error(400);
    assert_eq!(text, "Timeout cannot be greater than 1 hour (limits.max_timeout_seconds)");
    w.clock.advance(Duration::from_secs(3000));
    // Capped by what is left of the longest run.
    assert_eq!(w.post(&path, json!({ "timeout": 3600 })).await.status, 204);
    assert_eq!(end_of(&w, &id).await, at(3600));
}

#[tokio::test]
async fn a_refresh_only_prolongs() {
    let w = World::new().await;
    let id = w.create(json!({ "timeout": 60 })).await;
    let path = format!("/sandboxes/{id}/refreshes");
    assert_eq!(w.post(&path, json!({ "duration": 30 })).await.status, 204);
    assert_eq!(end_of(&w, &id).await, at(60));
    assert_eq!(w.post(&path, json!({ "duration": 90 })).await.status, 204);
    assert_eq!(end_of(&w, &id).await, at(90));
    w.clock.advance(Duration::from_secs(80));
    // No body means the least, 15 seconds; less than that counts as that.
    assert_eq!(w.post_text(&path, "").await.status, 204);
    assert_eq!(end_of(&w, &id).await, at(95));
    w.clock.advance(Duration::from_secs(2));
    assert_eq!(w.post(&path, json!({ "duration": 1 })).await.status, 204);
    assert_eq!(end_of(&w, &id).await, at(97));
    w.post(&path, json!({ "duration": 3601 })).await.error(400);
}

#[tokio::test]
async fn connecting_to_a_running_sandbox_prolongs_and_returns_it() {
    let w = World::new().await;
    let created = w.post("/v2/sandboxes", json!({ "templateID": "base", "timeout": 60 })).await.json();
    let id: SandboxId = created["sandboxID"].as_str().unwrap().parse().unwrap();
    for (path, body, end) in [
        ("/v2", json!({ "timeout": 5 }), 60),
        ("/v2", json!({ "timeout": 33, "memory": false }), 60),
        ("/v2", json!({ "timeout": 100 }), 100),
        ("/v2", json!({}), 300),
        ("", json!({ "timeout": 0 }), 300),
        ("", json!({ "timeout": 400, "memory": null }), 400),
    ] {
        let reply = w.post(&format!("{path}/sandboxes/{id}/connect"), body.clone()).await;
        assert_eq!(reply.status, 200, "{body}: {}", reply.text);
        assert_eq!(reply.json(), created);
        assert_eq!(end_of(&w, &id).await, at(end), "{body}");
    }
    for empty in ["", " ", "null"] {
        assert_eq!(w.post_text(&format!("/v2/sandboxes/{id}/connect"), empty).await.status, 200);
    }
    w.post(&format!("/v2/sandboxes/{id}/connect"), json!({ "timeout": 0 })).await.error(400);
    w.post(&format!("/v2/sandboxes/{id}/connect"), json!({ "timeout": 90_000 })).await.error(400);
    w.post(&format!("/sandboxes/{id}/connect"), json!({})).await.error(400);
}

#[tokio::test]
async fn a_killed_sandbox_is_gone_for_every_operation() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    let reply = w.delete(&format!("/sandboxes/{id}")).await;
    assert_eq!(reply.status, 204);
    assert_eq!(reply.text, "");
    assert_eq!(w.state(&id).await, SandboxState::Gone);
    assert!(!w.node.is_running(&id));
    check_not_found(&w, id.as_str()).await;
    check_not_found(&w, "nonexistingsandbox").await;
    check_not_found(&w, "abc").await;
}

async fn check_not_found(w: &World, id: &str) {
    let missing = format!("Sandbox \"{id}\" doesn't exist or you don't have access to it");
    assert_eq!(w.get(&format!("/sandboxes/{id}")).await.error(404), missing);
    assert_eq!(w.delete(&format!("/sandboxes/{id}")).await.error(404), missing);
    for (path, body) in [
        ("/sandboxes/ID/timeout", json!({ "timeout": 5 })),
        ("/sandboxes/ID/refreshes", json!({ "duration": 60 })),
        ("/sandboxes/ID/connect", json!({ "timeout": 5 })),
        ("/v2/sandboxes/ID/connect", json!({})),
    ] {
        assert_eq!(w.post(&path.replace("ID", id), body).await.error(404), missing, "{path}");
    }
}

#[tokio::test]
async fn another_teams_sandbox_is_not_found() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    let other = w.other_key().await;
    w.get_as(&other, &format!("/sandboxes/{id}")).await.error(404);
    w.get_as(&other, &format!("/sandboxes/{id}/logs")).await.error(404);
    w.get_as(&other, &format!("/sandboxes/{id}/metrics")).await.error(404);
    assert_eq!(w.get_as(&other, "/v2/sandboxes").await.json(), json!([]));
    let latest = w.get_as(&other, &format!("/sandboxes/metrics?sandbox_ids={id}")).await.json();
    assert_eq!(latest, json!({ "sandboxes": {} }));
}

#[tokio::test]
async fn the_older_form_of_an_id_works_and_malformed_ones_are_refused() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    assert_eq!(w.get(&format!("/sandboxes/{id}-hutch")).await.status, 200);
    for bad in ["a-b-c", "..%2F..%2Fetc", "%00", "UPPERCASE1", "%ff%fe", "a%20b"] {
        assert_eq!(w.get(&format!("/sandboxes/{bad}")).await.status, 400, "{bad}");
        assert_eq!(w.delete(&format!("/sandboxes/{bad}")).await.status, 400, "{bad}");
    }
    assert_eq!(w.get("/sandboxes/a-b-c").await.error(400), "Invalid sandbox ID");
    assert_eq!(w.delete(&format!("/sandboxes/{id}-hutch")).await.status, 204);
}

#[tokio::test]
async fn malformed_timeouts_are_refused() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    for body in
        ["", "{}", r#"{"timeout":null}"#, r#"{"timeout":-1}"#, r#"{"timeout":"1"}"#, r#"{"timeout":1.5}"#]
    {
        w.post_text(&format!("/sandboxes/{id}/timeout"), body).await.error(400);
    }
}

#[tokio::test]
async fn a_sandbox_that_does_not_die_is_hidden_and_killed_again() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    w.node.fail_stops(2);
    let kill = async { w.delete(&format!("/sandboxes/{id}")).await };
    let meanwhile = async {
        wait_for("the kill to begin", async || w.state(&id).await == SandboxState::Killing).await;
        let (get, connect): (u16, u16) = (
            w.get(&format!("/sandboxes/{id}")).await.status.as_u16(),
            w.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status.as_u16(),
        );
        (get, connect)
    };
    let (reply, (get, connect)) = tokio::join!(kill, meanwhile);
    assert_eq!(reply.status, 204);
    assert_eq!((get, connect), (404, 409));
    assert_eq!(w.state(&id).await, SandboxState::Gone);
    assert!(!w.node.is_running(&id));
}

#[tokio::test]
async fn the_detail_has_what_clients_need() {
    let w = World::new().await;
    let id = w.create(json!({ "metadata": { "a": "b" }, "timeout": 60 })).await;
    let body = w.get(&format!("/sandboxes/{id}")).await.json();
    assert_eq!(body["sandboxID"], id.as_str());
    assert_eq!(body["state"], "running");
    assert_eq!(body["cpuCount"], 2);
    assert_eq!(body["memoryMB"], 512);
    assert_eq!(body["diskSizeMB"], 1024);
    assert_eq!(body["metadata"], json!({ "a": "b" }));
    assert_eq!(body["lifecycle"], json!({ "onTimeout": "kill", "autoResume": false }));
    assert_eq!(body["volumeMounts"], json!([]));
    assert_eq!(body["startedAt"], at(0));
    assert_eq!(body["endAt"], at(60));
    assert!(body["envdAccessToken"].is_string());
    assert!(body["clientID"].is_string());
    assert!(body["envdVersion"].is_string());
    // Left out rather than null.
    assert_eq!(body.get("network"), None::<&Value>);
}
