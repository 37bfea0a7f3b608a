use std::time::Duration;

use futures::future::join_all;
use hutch_app::Limits;
use hutch_node_api::NodeErrorKind;
use hutch_store::{ResumeOutcome, Store};
use hutch_types::{KillReason, PauseMode, SandboxId, SandboxState};
use serde_json::{Value, json};

use crate::world::{START, World, wait_for};

fn at(seconds: u64) -> String {
    START.plus(Duration::from_secs(seconds)).to_rfc3339()
}

async fn paused(w: &World, create: Value, pause: Value) -> SandboxId {
    let id = w.create(create).await;
    let reply = w.post(&format!("/sandboxes/{id}/pause"), pause).await;
    assert_eq!(reply.status, 204, "{}", reply.text);
    id
}

#[tokio::test]
async fn connecting_to_a_paused_sandbox_resumes_it() {
    let w = World::new().await;
    let body = json!({ "templateID": "base", "timeout": 60, "allow_internet_access": false,
                       "metadata": { "a": "b" }, "envVars": { "SECRET": "x" } });
    let created = w.post("/v2/sandboxes", body).await.json();
    let id: SandboxId = created["sandboxID"].as_str().unwrap().parse().unwrap();
    for (n, path, body, lease) in [
        (1, "/v2/sandboxes/ID/connect", json!({}), 300),
        (2, "/v2/sandboxes/ID/connect", json!({ "timeout": 33, "memory": true }), 33),
        (3, "/sandboxes/ID/connect", json!({ "timeout": 44 }), 44),
        (4, "/sandboxes/ID/resume", json!({}), 15),
        (5, "/sandboxes/ID/resume", json!({ "timeout": 55 }), 55),
    ] {
        assert_eq!(w.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
        w.clock.advance(Duration::from_secs(100));
        let reply = w.post(&path.replace("ID", id.as_str()), body).await;
        assert_eq!(reply.status, 201, "{path}: {}", reply.text);
        assert_eq!(reply.json(), created, "id, token and template stay");
        let detail = w.get(&format!("/sandboxes/{id}")).await.json();
        assert_eq!(detail["state"], "running");
        assert_eq!(detail["startedAt"], at(n * 100), "a new run");
        assert_eq!(detail["endAt"], at(n * 100 + lease));
        assert_eq!(detail["metadata"], json!({ "a": "b" }));
        assert_eq!(detail.get("pauseMode"), None);
        assert!(w.node.is_running(&id));
    }
    for (request, mode) in w.node.resumes() {
        assert_eq!(mode, PauseMode::Full);
        assert!(request.env.is_empty(), "the environment is stored nowhere");
        assert!(!request.network.allow_internet_access);
        assert_eq!(request.access_token.expose(), created["envdAccessToken"]);
    }
}

#[tokio::test]
async fn what_is_asked_for_and_what_was_saved_decide_how_it_comes_back() {
    let w = World::new().await;
    for (saved, asked, mode) in [
        (json!({}), json!({}), PauseMode::Full),
        (json!({}), json!({ "memory": false }), PauseMode::Filesystem),
        (json!({ "memory": false }), json!({}), PauseMode::Filesystem),
        (json!({ "memory": false }), json!({ "memory": true }), PauseMode::Filesystem),
    ] {
        let id = paused(&w, json!({}), saved).await;
        assert_eq!(w.post(&format!("/v2/sandboxes/{id}/connect"), asked).await.status, 201);
        assert_eq!(w.node.resumes().pop().unwrap().1, mode);
    }
}

#[tokio::test]
async fn however_many_connect_it_is_resumed_once() {
    let w = World::new().await;
    let id = paused(&w, json!({}), json!({})).await;
    w.node.hold_pauses();
    let path = format!("/v2/sandboxes/{id}/connect");
    let all = join_all((0..20u64).map(|n| w.post(&path, json!({ "timeout": 100 + n }))));
    let meanwhile = async {
        wait_for("the resume", async || w.node.resumes().len() == 1).await;
        let detail = w.get(&format!("/sandboxes/{id}")).await.json();
        w.post(&format!("/sandboxes/{id}/pause"), json!({})).await.error(409);
        w.node.pause_gate.add_permits(1);
        detail["state"].clone()
    };
    let (replies, state) = tokio::join!(all, meanwhile);
    assert_eq!(state, "paused");
    for reply in &replies {
        assert_eq!(reply.status, 201, "{}", reply.text);
        assert_eq!(reply.json(), replies[0].json());
    }
    assert_eq!(w.node.resumes().len(), 1);
    assert_eq!(w.get(&format!("/sandboxes/{id}")).await.json()["endAt"], at(119), "the longest wish counts");
}

#[tokio::test]
async fn all_who_wait_for_a_resume_are_told_that_it_failed() {
    let w = World::new().await;
    let id = paused(&w, json!({}), json!({})).await;
    w.node.hold_pauses();
    w.node.fail_resumes(Some(NodeErrorKind::Internal));
    let path = format!("/v2/sandboxes/{id}/connect");
    let all = join_all((0..5).map(|_| w.post(&path, json!({}))));
    let meanwhile = async {
        wait_for("the resume", async || w.node.resumes().len() == 1).await;
        w.node.pause_gate.add_permits(1);
    };
    let (replies, ()) = tokio::join!(all, meanwhile);
    for reply in replies {
        assert!(reply.error(500).contains("stays paused"), "{}", reply.text);
    }
    assert_eq!(w.node.resumes().len(), 1);
    assert_eq!(w.state(&id).await, SandboxState::Paused);
}

#[tokio::test]
async fn a_resume_that_fails_leaves_it_paused() {
    let w = World::new().await;
    let id = paused(&w, json!({}), json!({})).await;
    for (kind, status, code) in [
        (NodeErrorKind::Exhausted, 503, Some("sandbox_capacity_unavailable")),
        (NodeErrorKind::Unavailable, 503, Some("sandbox_capacity_unavailable")),
        (NodeErrorKind::DeadlineExceeded, 504, Some("sandbox_placement_timeout")),
        (NodeErrorKind::Unsupported, 400, None),
        (NodeErrorKind::Internal, 500, None),
    ] {
        w.node.fail_resumes(Some(kind));
        for path in [format!("/v2/sandboxes/{id}/connect"), format!("/sandboxes/{id}/resume")] {
            let reply = w.post(&path, json!({})).await;
            let text = reply.error(status);
            assert!(!text.contains("internal words"), "{text}");
            assert_eq!(reply.json()["error_code"].as_str(), code);
            assert_eq!(w.state(&id).await, SandboxState::Paused);
            assert_eq!(w.node.saved(&id), Some(PauseMode::Full));
        }
    }
    w.node.fail_resumes(None);
    assert_eq!(w.post(&format!("/sandboxes/{id}/resume"), json!({})).await.status, 201);
}

#[tokio::test]
async fn one_that_the_node_lost_ends() {
    let w = World::new().await;
    let id = paused(&w, json!({}), json!({})).await;
    w.node.lose(&id);
    w.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.error(404);
    assert_eq!(w.state(&id).await, SandboxState::Gone);
    assert_eq!(w.store.sandbox(&id).await.unwrap().ended.unwrap().1, KillReason::Orphaned);
}

#[tokio::test]
async fn connecting_waits_for_a_pause_and_then_resumes() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    w.node.hold_pauses();
    let pause = async { w.post_text(&format!("/sandboxes/{id}/pause"), "").await };
    let connect = async {
        wait_for("the pause", async || w.node.pauses().len() == 1).await;
        let connect = async { w.post_text(&format!("/v2/sandboxes/{id}/connect"), "").await };
        let gates = async {
            w.node.pause_gate.add_permits(1);
            wait_for("the resume", async || w.node.resumes().len() == 1).await;
            w.node.pause_gate.add_permits(1);
        };
        tokio::join!(connect, gates).0
    };
    let (paused, connected) = tokio::join!(pause, connect);
    assert_eq!(paused.status, 204, "{}", paused.text);
    assert_eq!(connected.status, 201, "{}", connected.text);
    assert_eq!(w.state(&id).await, SandboxState::Running);
}

#[tokio::test]
async fn the_older_resume_refuses_a_running_one_and_may_change_the_end() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    let path = format!("/sandboxes/{id}/resume");
    assert!(w.post(&path, json!({})).await.error(409).contains("is already running"));
    let on_timeout =
        async || w.get(&format!("/sandboxes/{id}")).await.json()["lifecycle"]["onTimeout"].clone();
    for (body, expected) in [
        (json!({}), "kill"),
        (json!({ "autoPause": true }), "pause"),
        (json!({}), "pause"),
        (json!({ "autoPause": false }), "kill"),
    ] {
        assert_eq!(w.post(&format!("/sandboxes/{id}/pause"), json!({})).await.status, 204);
        assert_eq!(w.post(&path, body).await.status, 201);
        assert_eq!(on_timeout().await, expected);
    }
    w.post("/sandboxes/nonexistingsandbox/resume", json!({})).await.error(404);
    w.post(&path, json!({ "timeout": 90_000 })).await.error(400);
}

#[tokio::test]
async fn a_resume_needs_a_place() {
    let w = World::with(Limits { max_sandboxes_per_team: 1, ..Limits::default() }).await;
    let id = paused(&w, json!({}), json!({})).await;
    let other = w.create(json!({})).await;
    let text = w.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.error(429);
    assert!(text.contains("limits.max_sandboxes_per_team"), "{text}");
    assert_eq!(w.state(&id).await, SandboxState::Paused);
    assert_eq!(w.delete(&format!("/sandboxes/{other}")).await.status, 204);
    assert_eq!(w.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status, 201);
}

#[tokio::test]
async fn a_kill_wins_over_a_resume() {
    let w = World::new().await;
    let id = paused(&w, json!({}), json!({})).await;
    w.node.hold_pauses();
    let connect = async { w.post_text(&format!("/v2/sandboxes/{id}/connect"), "").await };
    let kill = async {
        wait_for("the resume", async || w.node.resumes().len() == 1).await;
        let reply = w.delete(&format!("/sandboxes/{id}")).await;
        w.node.pause_gate.add_permits(1);
        reply
    };
    let (connected, killed) = tokio::join!(connect, kill);
    assert_eq!(killed.status, 204);
    connected.error(404);
    assert_eq!(w.state(&id).await, SandboxState::Gone);
    assert_eq!((w.node.saved(&id), w.node.is_running(&id)), (None, false));
}

#[tokio::test]
async fn a_slow_resume_goes_on_when_its_client_is_sent_away() {
    let limits = Limits { start_queue_seconds: 0, start_timeout_seconds: 1, ..Limits::default() };
    let w = World::with(limits).await;
    let id = paused(&w, json!({}), json!({})).await;
    w.node.hold_pauses();
    let reply = w.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await;
    assert!(reply.error(504).contains("Try again in a moment"), "{}", reply.text);
    assert_eq!(reply.header("should-retry"), Some("true"));
    w.node.pause_gate.add_permits(1);
    w.wait_for_state(&id, SandboxState::Running).await;
    assert_eq!(w.post(&format!("/v2/sandboxes/{id}/connect"), json!({})).await.status, 200);
}

#[tokio::test]
async fn what_a_dead_daemon_left_in_the_middle_is_settled_by_what_the_node_has() {
    let before = World::new().await;
    let (store, node) = (before.store.clone(), before.node.clone());
    let lease = json!({ "timeout": 3600 });
    let running = async || before.create(lease.clone()).await;
    let saved = async || paused(&before, lease.clone(), json!({})).await;
    let [pausing_runs, pausing_saved, pausing_lost] = [running().await, running().await, running().await];
    let [resuming_runs, resuming_saved, resuming_lost] = [saved().await, saved().await, saved().await];
    let [paused_saved, paused_less, paused_lost, paused_runs] =
        [saved().await, saved().await, saved().await, saved().await];
    let [stranger, ended] = [saved().await, running().await];
    before.supervisor.shutdown(Duration::ZERO).await;
    for id in [&pausing_runs, &pausing_saved, &pausing_lost] {
        store.begin_pause(id, PauseMode::Full, before.clock.now()).await.unwrap();
    }
    for id in [&resuming_runs, &resuming_saved, &resuming_lost] {
        let begun = store.begin_resume(id, before.clock.now(), None).await.unwrap();
        assert!(matches!(begun, ResumeOutcome::Begun(_)), "{begun:?}");
    }
    node.save(&pausing_saved, PauseMode::Full);
    node.unsave(&resuming_runs);
    node.unsave(&paused_runs);
    node.unsave(&paused_less);
    node.save(&paused_less, PauseMode::Filesystem);
    for id in [&pausing_lost, &resuming_lost, &paused_lost] {
        node.lose(id);
    }
    for id in [&stranger, &ended] {
        store.end_sandbox(id, SandboxState::Gone, KillReason::Request, START).await.unwrap();
    }
    node.save(&ended, PauseMode::Full);

    let after = World::over(store.clone(), node.clone(), Limits::default()).await;
    after.app.start().await.unwrap();
    for (id, state) in [
        (&pausing_runs, SandboxState::Running),
        (&pausing_saved, SandboxState::Paused),
        (&resuming_runs, SandboxState::Running),
        (&resuming_saved, SandboxState::Paused),
        (&paused_saved, SandboxState::Paused),
        (&paused_less, SandboxState::Paused),
        (&paused_runs, SandboxState::Paused),
        (&pausing_lost, SandboxState::Gone),
        (&resuming_lost, SandboxState::Gone),
        (&paused_lost, SandboxState::Gone),
    ] {
        assert_eq!(after.state(id).await, state, "{id}");
        let row = store.sandbox(id).await.unwrap();
        match state {
            SandboxState::Gone => assert_eq!(row.ended.unwrap().1, KillReason::Orphaned),
            SandboxState::Paused => assert_eq!(row.paused.map(|(mode, _)| mode), node.saved(id)),
            _ => {
                assert!(node.is_running(id));
                assert!(row.end_at >= START.plus(Duration::from_secs(300)), "time to come back");
            }
        }
    }
    for id in [&stranger, &ended] {
        wait_for("the node to be clean", async || node.saved(id).is_none() && !node.is_running(id)).await;
    }
    assert_eq!(after.post(&format!("/v2/sandboxes/{pausing_saved}/connect"), json!({})).await.status, 201);
}
