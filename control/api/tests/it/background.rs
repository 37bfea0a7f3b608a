use std::sync::Arc;
use std::time::Duration;

use hutch_app::Limits;
use hutch_node_api::{NodeEvent, StartSandbox};
use hutch_store::{SqliteStore, Store};
use hutch_types::{KillReason, NetworkPolicy, SandboxId, SandboxState, Secret};
use serde_json::json;

use crate::node::FakeNode;
use crate::world::{BASE_ID, World, add_template, resources, wait_for};

async fn reason(w: &World, id: &SandboxId) -> KillReason {
    w.store.sandbox(id).await.unwrap().ended.expect("it has ended").1
}

#[tokio::test]
async fn an_expired_lease_ends_the_sandbox_and_no_other() {
    let w = World::new().await;
    let short = w.create(json!({ "timeout": 10 })).await;
    let long = w.create(json!({ "timeout": 11 })).await;
    w.clock.advance(Duration::from_millis(10_000));
    w.wait_for_state(&short, SandboxState::Gone).await;
    assert_eq!(reason(&w, &short).await, KillReason::Timeout);
    assert!(!w.node.is_running(&short));
    assert_eq!(w.state(&long).await, SandboxState::Running);
    w.get(&format!("/sandboxes/{short}")).await.error(404);
    w.clock.advance(Duration::from_millis(1_000));
    w.wait_for_state(&long, SandboxState::Gone).await;
}

#[tokio::test]
async fn a_prolonged_lease_does_not_end() {
    let w = World::new().await;
    let kept = w.create(json!({ "timeout": 10 })).await;
    let ended = w.create(json!({ "timeout": 10 })).await;
    w.clock.advance(Duration::from_secs(9));
    assert_eq!(w.post(&format!("/sandboxes/{kept}/timeout"), json!({ "timeout": 60 })).await.status, 204);
    w.clock.advance(Duration::from_secs(2));
    w.wait_for_state(&ended, SandboxState::Gone).await;
    assert_eq!(w.state(&kept).await, SandboxState::Running);
}

#[tokio::test]
async fn setting_the_clock_neither_ends_nor_prolongs_a_lease() {
    for ms in [3_600_000, -3_600_000] {
        let w = World::new().await;
        let id = w.create(json!({ "timeout": 60 })).await;
        let end = w.store.sandbox(&id).await.unwrap().end_at;
        w.clock.set_by(ms);
        wait_for("the lease to move", async || w.store.sandbox(&id).await.unwrap().end_at.0 == end.0 + ms)
            .await;
        assert_eq!(w.state(&id).await, SandboxState::Running);
        // A new lease is counted by the new time.
        assert_eq!(w.post(&format!("/sandboxes/{id}/timeout"), json!({ "timeout": 60 })).await.status, 204);
        assert_eq!(w.store.sandbox(&id).await.unwrap().end_at.0, end.0 + ms);
        w.clock.advance(Duration::from_secs(59));
        assert_eq!(w.state(&id).await, SandboxState::Running);
        w.clock.advance(Duration::from_secs(1));
        w.wait_for_state(&id, SandboxState::Gone).await;
    }
}

#[tokio::test]
async fn many_leases_that_end_at_once_all_end() {
    let w = World::new().await;
    let mut ids = Vec::new();
    for _ in 0..150 {
        ids.push(w.create(json!({ "timeout": 30 })).await);
    }
    w.node.fail_stops(3);
    w.clock.advance(Duration::from_secs(30));
    for id in &ids {
        w.wait_for_state(id, SandboxState::Gone).await;
    }
    assert_eq!(w.node.running_count(), 0);
}

#[tokio::test]
async fn a_sandbox_that_dies_is_ended_with_the_nodes_reason() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    w.node.lose(&id);
    let event = NodeEvent::Exited {
        sandbox_id: id.clone(),
        reason: KillReason::Died,
        detail: "init exited with status 1".to_owned(),
    };
    w.node.report(event.clone());
    w.wait_for_state(&id, SandboxState::Gone).await;
    assert_eq!(reason(&w, &id).await, KillReason::Died);
    let told = async || w.get(&format!("/v2/sandboxes/{id}/logs?level=error")).await.text;
    wait_for("the log line", async || told().await.contains("init exited with status 1")).await;
    // Heard twice, or of an unknown one: nothing happens.
    w.node.report(event);
    w.node.report(NodeEvent::Exited {
        sandbox_id: SandboxId::random(),
        reason: KillReason::Died,
        detail: String::new(),
    });
    let other = w.create(json!({})).await;
    w.node.report(NodeEvent::Exited {
        sandbox_id: other.clone(),
        reason: KillReason::Orphaned,
        detail: String::new(),
    });
    w.wait_for_state(&other, SandboxState::Gone).await;
    assert_eq!(reason(&w, &other).await, KillReason::Orphaned);
}

/// A store and a node as a daemon leaves them that is killed.
async fn left_behind() -> (Arc<SqliteStore>, Arc<FakeNode>, World) {
    let w = World::new().await;
    (w.store.clone(), w.node.clone(), w)
}

fn a_start(id: &SandboxId) -> StartSandbox {
    StartSandbox {
        sandbox_id: id.clone(),
        template_id: BASE_ID.parse().unwrap(),
        build_id: hutch_types::BuildId::random(),
        resources: resources(),
        env: std::collections::BTreeMap::new(),
        access_token: Secret::new("t"),
        network: NetworkPolicy::default(),
        ingress: hutch_types::Ingress::default(),
    }
}

#[tokio::test]
async fn after_a_restart_store_and_node_agree() {
    let (store, node, before) = left_behind().await;
    let alive = before.create(json!({ "timeout": 3600 })).await;
    let lost = before.create(json!({ "timeout": 3600 })).await;
    let reported = before.create(json!({ "timeout": 3600 })).await;
    let overdue = before.create(json!({ "timeout": 10 })).await;
    let dying = before.create(json!({ "timeout": 3600 })).await;
    let interrupted = {
        node.hold_starts();
        let call = before.post("/v2/sandboxes", json!({ "templateID": "base" }));
        tokio::pin!(call);
        tokio::select! {
            _ = &mut call => panic!("it cannot be done yet"),
            () = wait_for("the start", async || node.starts().len() == 6) => {}
        }
        node.starts().pop().unwrap().sandbox_id
    };
    // The daemon is gone now; nothing of it goes on. What the node does meanwhile:
    before.supervisor.shutdown(Duration::ZERO).await;
    store.move_sandbox(&dying, &[SandboxState::Running], SandboxState::Killing).await.unwrap();
    let stranger = SandboxId::random();
    node.plant(a_start(&stranger));
    node.plant(a_start(&interrupted));
    node.lose(&lost);
    node.lose(&reported);
    node.report(NodeEvent::Exited {
        sandbox_id: reported.clone(),
        reason: KillReason::Died,
        detail: "it could not be adopted".to_owned(),
    });

    let after = World::over(store, node.clone(), Limits::default()).await;
    after.clock.advance(Duration::from_secs(20));
    after.app.start().await.unwrap();
    // Ended before anything is served.
    assert_eq!(after.state(&lost).await, SandboxState::Gone);
    assert_eq!(reason(&after, &lost).await, KillReason::Orphaned);
    assert_eq!(after.state(&reported).await, SandboxState::Gone);
    assert_eq!(reason(&after, &reported).await, KillReason::Died);
    assert_eq!(after.state(&interrupted).await, SandboxState::Failed);
    // And soon after.
    for id in [&overdue, &dying] {
        after.wait_for_state(id, SandboxState::Gone).await;
    }
    assert_eq!(reason(&after, &overdue).await, KillReason::Timeout);
    assert_eq!(reason(&after, &dying).await, KillReason::Request);
    for id in [&overdue, &dying, &interrupted, &stranger] {
        wait_for("the node to be clean", async || !node.is_running(id)).await;
    }
    assert_eq!(after.state(&alive).await, SandboxState::Running);
    assert!(node.is_running(&alive));
    assert_eq!(after.get(&format!("/sandboxes/{alive}")).await.status, 200);
}

#[tokio::test]
async fn a_shutdown_waits_for_no_lease_and_leaves_the_sandboxes() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    assert_eq!(w.supervisor.shutdown(Duration::from_secs(10)).await, 0);
    assert!(w.node.is_running(&id));
    assert_eq!(w.state(&id).await, SandboxState::Running);
}

#[tokio::test]
async fn old_records_are_forgotten() {
    let store = Arc::new(SqliteStore::open_in_memory().await.unwrap());
    let world = World::over(store.clone(), Arc::new(FakeNode::new()), Limits::default()).await;
    add_template(&*store, world.team, BASE_ID, "base", true).await;
    let id = world.create(json!({})).await;
    assert_eq!(world.delete(&format!("/sandboxes/{id}")).await.status, 204);
    world.clock.advance(Duration::from_secs(8 * 86_400));
    world.app.start().await.unwrap();
    wait_for("the record to be gone", async || store.sandbox(&id).await.is_err()).await;
    world.get(&format!("/sandboxes/{id}/logs")).await.error(404);
}
