use std::time::Duration;

use hutch_app::Limits;
use hutch_node_api::NodeErrorKind;
use hutch_store::Store;
use hutch_types::{KillReason, PauseMode, SandboxId, SandboxState};
use serde_json::json;

use crate::world::{START, World, wait_for};

fn at(seconds: u64) -> String {
    START.plus(Duration::from_secs(seconds)).to_rfc3339()
}

fn path(id: &SandboxId, operation: &str) -> String {
    format!("/sandboxes/{id}/{operation}")
}

async fn ids(w: &World, query: &str) -> Vec<String> {
    let rows = w.get(&format!("/v2/sandboxes{query}")).await.json();
    rows.as_array().unwrap().iter().map(|row| row["sandboxID"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn a_pause_saves_the_sandbox_and_shows_it_as_paused() {
    let w = World::new().await;
    for (body, mode, name) in [
        ("", PauseMode::Full, "full"),
        ("{}", PauseMode::Full, "full"),
        (r#"{"memory":null,"requireHealthyGuest":false}"#, PauseMode::Full, "full"),
        (r#"{"memory":false}"#, PauseMode::Filesystem, "filesystem"),
    ] {
        let id = w.create(json!({ "timeout": 600, "metadata": { "a": "b" } })).await;
        let began = w.clock.now();
        let reply = w.post_text(&path(&id, "pause"), body).await;
        assert_eq!((reply.status.as_u16(), reply.text.as_str()), (204, ""));
        assert_eq!(w.node.saved(&id), Some(mode));
        assert!(!w.node.is_running(&id));
        let detail = w.get(&format!("/sandboxes/{id}")).await.json();
        assert_eq!(detail["state"], "paused");
        assert_eq!(detail["pauseMode"], name);
        assert_eq!(detail["endAt"], began.to_rfc3339(), "when it was paused");
        assert_eq!(detail["metadata"], json!({ "a": "b" }));
        assert_eq!(ids(&w, "?state=paused&limit=1").await, [id.as_str()]);
        assert_eq!(ids(&w, "?state=running").await, Vec::<String>::new());
        // A second time it is a conflict, which clients take for "paused already".
        let again = w.post(&path(&id, "pause"), json!({})).await;
        assert!(again.error(409).contains("already paused"));
        w.clock.advance(Duration::from_secs(1));
    }
    let reply = w.get("/v2/sandboxes?state=running,paused").await;
    assert_eq!(reply.json().as_array().unwrap().len(), 4);
    assert_eq!(reply.header("x-total-running"), Some("0"));
    assert_eq!(w.get("/sandboxes").await.json(), json!([]), "the older list has running ones alone");
}

#[tokio::test]
async fn while_it_is_being_saved_it_is_shown_as_paused() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    w.node.hold_pauses();
    let pause = async { w.post(&path(&id, "pause"), json!({})).await };
    let meanwhile = async {
        wait_for("the pause", async || w.node.pauses().len() == 1).await;
        assert_eq!(w.state(&id).await, SandboxState::Pausing);
        assert_eq!(w.get(&format!("/sandboxes/{id}")).await.json()["state"], "paused");
        assert_eq!(ids(&w, "?state=paused").await, [id.as_str()]);
        w.post(&path(&id, "pause"), json!({})).await.error(409);
        w.post(&path(&id, "timeout"), json!({ "timeout": 5 })).await.error(409);
        w.node.pause_gate.add_permits(1);
    };
    let (reply, ()) = tokio::join!(pause, meanwhile);
    assert_eq!(reply.status, 204, "{}", reply.text);
    assert_eq!(w.state(&id).await, SandboxState::Paused);
    assert_eq!(w.node.pauses().len(), 1);
}

#[tokio::test]
async fn what_cannot_be_paused_is_told_so() {
    let w = World::new().await;
    w.post(&path(&"nonexistingsandbox".parse().unwrap(), "pause"), json!({})).await.error(404);
    let id = w.create(json!({})).await;
    let text = w.post(&path(&id, "pause"), json!({ "requireHealthyGuest": true })).await.error(400);
    assert!(text.starts_with("requireHealthyGuest"), "{text}");
    w.post(&path(&id, "pause"), json!({ "memory": "no" })).await.error(400);
    assert_eq!(w.state(&id).await, SandboxState::Running);
    assert_eq!(w.delete(&format!("/sandboxes/{id}")).await.status, 204);
    w.post(&path(&id, "pause"), json!({})).await.error(404);
    assert_eq!(w.node.pauses().len(), 0);
}

#[tokio::test]
async fn a_pause_that_fails_leaves_it_running_with_its_lease() {
    let w = World::new().await;
    let id = w.create(json!({ "timeout": 60 })).await;
    for (kind, status, retry) in [
        (NodeErrorKind::Unavailable, 503, Some("true")),
        (NodeErrorKind::Exhausted, 503, Some("true")),
        (NodeErrorKind::DeadlineExceeded, 503, Some("true")),
        (NodeErrorKind::Unsupported, 400, None),
        (NodeErrorKind::Internal, 500, Some("false")),
    ] {
        w.node.fail_pauses(kind, &[PauseMode::Full]);
        let reply = w.post(&path(&id, "pause"), json!({})).await;
        let text = reply.error(status);
        assert!(text.contains(id.as_str()) && !text.contains("internal words"), "{text}");
        assert_eq!(reply.header("should-retry"), retry, "{kind:?}");
        assert_eq!(w.state(&id).await, SandboxState::Running);
        assert!(w.node.is_running(&id));
        let detail = w.get(&format!("/sandboxes/{id}")).await.json();
        assert_eq!((detail["state"].as_str(), detail.get("pauseMode")), (Some("running"), None));
        assert_eq!(detail["endAt"], at(60));
    }
    let told = async || w.get(&format!("/v2/sandboxes/{id}/logs?level=error")).await.text;
    wait_for("the log", async || told().await.contains("not paused (the node failed)")).await;
    assert_eq!(w.post(&path(&id, "pause"), json!({ "memory": false })).await.status, 204);
}

#[tokio::test]
async fn a_sandbox_that_the_node_lost_is_not_shown_as_paused() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    w.node.lose(&id);
    w.post(&path(&id, "pause"), json!({})).await.error(404);
    assert_eq!(w.state(&id).await, SandboxState::Gone);
    assert_eq!(w.store.sandbox(&id).await.unwrap().ended.unwrap().1, KillReason::Orphaned);
}

#[tokio::test]
async fn a_paused_sandbox_has_no_lease_and_no_place() {
    let w = World::with(Limits { max_sandboxes_per_team: 1, ..Limits::default() }).await;
    let id = w.create(json!({ "timeout": 10 })).await;
    assert_eq!(w.post(&path(&id, "pause"), json!({})).await.status, 204);
    w.clock.advance(Duration::from_secs(90_000));
    let other = w.create(json!({ "timeout": 10 })).await;
    w.clock.advance(Duration::from_secs(10));
    w.wait_for_state(&other, SandboxState::Gone).await;
    assert_eq!(w.state(&id).await, SandboxState::Paused);
    for (operation, body) in [("timeout", json!({ "timeout": 5 })), ("refreshes", json!({ "duration": 60 }))]
    {
        w.post(&path(&id, operation), body).await.error(404);
    }
    assert_eq!(w.get(&path(&id, "logs")).await.status, 200);
    assert_eq!(w.get(&path(&id, "metrics")).await.status, 200);
    for operation in ["snapshots", "fork"] {
        w.post(&path(&id, operation), json!({})).await.error(501);
    }
}

#[tokio::test]
async fn a_paused_sandbox_can_be_killed() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    assert_eq!(w.post(&path(&id, "pause"), json!({})).await.status, 204);
    assert_eq!(w.delete(&format!("/sandboxes/{id}")).await.status, 204);
    assert_eq!(w.node.saved(&id), None);
    assert_eq!(w.state(&id).await, SandboxState::Gone);
    w.get(&format!("/sandboxes/{id}")).await.error(404);
    w.post(&path(&id, "pause"), json!({})).await.error(404);
    w.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.error(404);
}

#[tokio::test]
async fn a_kill_wins_over_a_pause() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    w.node.hold_pauses();
    let pause = async { w.post(&path(&id, "pause"), json!({})).await };
    let kill = async {
        wait_for("the pause", async || w.node.pauses().len() == 1).await;
        let reply = w.delete(&format!("/sandboxes/{id}")).await;
        w.node.pause_gate.add_permits(1);
        reply
    };
    let (paused, killed) = tokio::join!(pause, kill);
    assert_eq!(killed.status, 204);
    paused.error(404);
    assert_eq!(w.state(&id).await, SandboxState::Gone);
    assert_eq!((w.node.saved(&id), w.node.is_running(&id)), (None, false));
}

#[tokio::test]
async fn a_lease_may_end_with_a_pause() {
    let w = World::new().await;
    for (body, mode) in [
        (json!({ "timeout": 10, "autoPause": true }), PauseMode::Full),
        (json!({ "timeout": 10, "autoPause": true, "autoPauseMemory": false }), PauseMode::Filesystem),
    ] {
        let id = w.create(body).await;
        let detail = w.get(&format!("/sandboxes/{id}")).await.json();
        assert_eq!(detail["lifecycle"], json!({ "onTimeout": "pause", "autoResume": false }));
        // It is remembered over a resume.
        for _ in 0..2 {
            w.clock.advance(Duration::from_secs(10));
            w.wait_for_state(&id, SandboxState::Paused).await;
            assert_eq!(w.node.saved(&id), Some(mode));
            let reply = w.post(&path(&id, "connect"), json!({ "timeout": 10 })).await;
            assert_eq!(reply.status, 201, "{}", reply.text);
        }
        w.delete(&format!("/sandboxes/{id}")).await;
    }
}

#[tokio::test]
async fn an_expired_sandbox_is_saved_by_the_best_mode_that_works() {
    for kind in [NodeErrorKind::Unsupported, NodeErrorKind::Internal, NodeErrorKind::Exhausted] {
        let w = World::new().await;
        w.node.fail_pauses(kind, &[PauseMode::Full]);
        let id = w.create(json!({ "timeout": 10, "autoPause": true })).await;
        w.clock.advance(Duration::from_secs(10));
        w.wait_for_state(&id, SandboxState::Paused).await;
        assert_eq!(w.node.saved(&id), Some(PauseMode::Filesystem));
        assert_eq!(w.get(&format!("/sandboxes/{id}")).await.json()["pauseMode"], "filesystem");
        let logs = w.get(&format!("/v2/sandboxes/{id}/logs?level=error")).await.text;
        assert!(logs.contains("its files are saved alone"), "{logs}");
    }
}

#[tokio::test]
async fn an_expired_sandbox_that_cannot_be_saved_runs_on_and_is_tried_again() {
    let w = World::new().await;
    w.node.fail_pauses(NodeErrorKind::Internal, &[PauseMode::Full, PauseMode::Filesystem]);
    let id = w.create(json!({ "timeout": 10, "autoPause": true })).await;
    w.clock.advance(Duration::from_secs(10));
    wait_for("both modes", async || w.node.pauses().len() == 2).await;
    w.wait_for_state(&id, SandboxState::Running).await;
    assert!(w.node.is_running(&id));
    assert_eq!(w.get(&format!("/sandboxes/{id}")).await.json()["endAt"], at(20));
    w.node.fail_pauses(NodeErrorKind::Internal, &[]);
    w.clock.advance(Duration::from_secs(10));
    w.wait_for_state(&id, SandboxState::Paused).await;
    assert_eq!(w.node.saved(&id), Some(PauseMode::Full));
}

#[tokio::test]
async fn a_pause_without_memory_needs_a_pause_and_no_resume_by_traffic() {
    let w = World::new().await;
    let create = async |body| w.post("/v2/sandboxes", body).await;
    for body in [
        json!({ "templateID": "base", "autoPauseMemory": false }),
        json!({ "templateID": "base", "autoPause": true, "autoPauseMemory": false, "autoResume": { "enabled": true } }),
    ] {
        assert!(create(body).await.error(400).starts_with("autoPauseMemory"));
    }
    let body = json!({ "templateID": "base", "autoPause": true, "autoResume": { "enabled": true } });
    assert!(create(body).await.error(400).starts_with("autoResume.enabled"));
    let body = json!({ "templateID": "base", "autoPause": true, "autoResume": { "enabled": false } });
    assert_eq!(create(body).await.status, 201);
}
