//! A daemon that takes over from another one.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use hutch_node_api::{NodeClient, NodeErrorKind, NodeEvent, RouteSource};
use hutch_runtime_fake::{Fault, Step};
use hutch_types::{KillReason, SandboxId};

use crate::support::{Host, RESOURCES, request, wait_until};

fn exits(event: NodeEvent) -> Option<(SandboxId, KillReason, String)> {
    match event {
        NodeEvent::Exited { sandbox_id, reason, detail } => Some((sandbox_id, reason, detail)),
        NodeEvent::Sample { .. } | NodeEvent::Logs { .. } => None,
    }
}

#[tokio::test]
async fn sandboxes_and_warm_instances_are_taken_over() {
    let host = Host::new().await;
    host.fill_pool(2).await;
    let mut guarded = host.request();
    guarded.ingress.traffic_token = Some(hutch_types::TokenHash::of(&hutch_types::Secret::new("token")));
    guarded.ingress.https_ports.insert(8443);
    host.agent.start_sandbox(guarded.clone()).await.unwrap();
    let ids = HashSet::from([host.start().await, guarded.sandbox_id.clone()]);
    assert!(host.agent.wait_pool(host.build, RESOURCES, 2, Duration::from_secs(10)).await);
    host.agent.idle().await;
    let mut routes = BTreeMap::new();
    for id in &ids {
        routes.insert(id.clone(), host.agent.route(id).await.unwrap());
    }
    let (instances, starts) = (host.kernel.instances(), host.kernel.starts());

    let host = host.restart(|_| {}).await;
    assert_eq!(host.running().await, ids);
    for (id, route) in &routes {
        assert_eq!(host.agent.route(id).await.as_ref(), Some(route));
    }
    assert_eq!(*host.agent.route(&guarded.sandbox_id).await.unwrap().ingress, guarded.ingress);
    host.fill_pool(2).await;
    assert_eq!(host.kernel.starts(), starts, "the warm instances are still good");
    assert_eq!(HashSet::<_>::from_iter(host.kernel.instances()), HashSet::from_iter(instances));
    assert_eq!(host.events(exits).await, []);

    // They are full members: known by id, claimed, stopped.
    let id = ids.iter().next().unwrap();
    let again = hutch_node_api::StartSandbox { sandbox_id: id.clone(), ..host.request() };
    assert!(host.agent.start_sandbox(again).await.is_ok());
    assert!(host.agent.start_sandbox(host.request()).await.unwrap().from_pool);
    host.agent.destroy_all().await.unwrap();
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn what_did_not_survive_is_told_with_its_reason_and_cleaned_up() {
    let host = Host::new().await;
    let [alive, died, lost, mute] =
        [host.start().await, host.start().await, host.start().await, host.start().await];
    let instance = |id: &SandboxId| host.kernel.labelled("hutch.sandbox", id.as_str()).remove(0);
    let (d, l, m) = (instance(&died), instance(&lost), instance(&mute));
    host.agent.shutdown().await;
    host.kernel.die(&d).await;
    host.kernel.lose(&l, "its disk is gone");
    host.kernel.end_envd(&m).await;

    let host = host.restart(|c| c.adoption_timeout = Duration::from_millis(500)).await;
    wait_until("the mute one to go", || host.kernel.view(&m).is_none()).await;
    assert_eq!(host.running().await, [alive].into());
    let mut told = host.events(exits).await;
    told.sort_by_key(|(_, _, detail)| detail.clone());
    let reasons = [
        (lost, KillReason::Orphaned, "its disk is gone"),
        (mute, KillReason::Died, "its envd did not answer after a restart of the node"),
        (died, KillReason::Orphaned, "its first process ended"),
    ];
    assert_eq!(told, reasons.map(|(id, reason, detail)| (id, reason, detail.to_owned())));
    host.agent.idle().await;
    assert_eq!(host.kernel.instances().len(), 1);
}

#[tokio::test]
async fn instances_of_nobody_are_removed() {
    let host = Host::new().await;
    host.start().await;
    host.start().await;
    let [a, b] = host.kernel.instances().try_into().unwrap();
    host.kernel.set_labels(&a, BTreeMap::new());
    host.kernel.set_labels(&b, [("hutch.role".to_owned(), "king".to_owned())].into());
    let host = host.restart(|_| {}).await;
    host.assert_nothing_left().await;
    assert_eq!(host.events(exits).await, []);
}

#[tokio::test]
async fn of_two_instances_of_one_sandbox_one_is_kept() {
    let host = Host::new().await;
    let id = host.start().await;
    host.start().await;
    let labels = host.kernel.view(&host.kernel.labelled("hutch.sandbox", id.as_str())[0]).unwrap().labels;
    for instance in host.kernel.instances() {
        host.kernel.set_labels(&instance, labels.clone());
    }
    let host = host.restart(|_| {}).await;
    host.agent.idle().await;
    assert_eq!((host.running().await, host.kernel.instances().len()), ([id].into(), 1));
}

#[tokio::test]
async fn warm_instances_that_nobody_wants_are_ended_after_a_while() {
    let host = Host::new().await;
    host.fill_pool(2).await;
    let host = host.restart(|c| c.pool.adoption_grace = Duration::from_millis(30)).await;
    assert_eq!(host.kernel.instances().len(), 2);
    wait_until("the unwanted to go", || host.kernel.instances().is_empty()).await;
    host.assert_nothing_left().await;
}

/// The daemon's threads vanish in the middle of a claim: the next one finds an instance that is labelled, and no
/// instance that looks untouched but is not.
#[test]
fn a_daemon_that_is_killed_in_the_middle_of_a_claim_leaves_no_touched_instance_in_the_pool() {
    let daemon = tokio::runtime::Runtime::new().unwrap();
    let (host, id) = daemon.block_on(async {
        let host = Host::new().await;
        host.fill_pool(1).await;
        host.kernel.inject(Step::Network, Fault::Stall);
        let begun = host.begin();
        wait_until("the claim", || !host.kernel.labelled("hutch.role", "sandbox").is_empty()).await;
        let id = begun.id.clone();
        (host, id)
    });
    daemon.shutdown_timeout(Duration::from_secs(10));
    host.kernel.clear(Step::Network);

    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let host = host.start_again(|_| {}).await;
        assert_eq!(host.running().await, [id.clone()].into());
        host.agent.stop_sandbox(&id).await.unwrap();
        host.agent.destroy_all().await.unwrap();
        host.assert_nothing_left().await;
    });
}

#[tokio::test]
async fn a_shut_down_agent_leaves_everything_and_refuses_everything() {
    let host = Host::new().await;
    host.fill_pool(1).await;
    let id = host.start().await;
    host.agent.idle().await;
    host.agent.shutdown().await;
    assert!(host.kernel.labelled("hutch.sandbox", id.as_str()).len() == 1);
    let start = host.agent.start_sandbox(request(host.build)).await.unwrap_err();
    assert_eq!(start.kind, NodeErrorKind::Unavailable);
    assert_eq!(host.agent.stop_sandbox(&id).await.unwrap_err().kind, NodeErrorKind::Unavailable);
    assert_eq!(host.kernel.labelled("hutch.sandbox", id.as_str()).len(), 1, "it was not stopped");
}

#[tokio::test]
async fn a_start_that_waits_is_refused_by_a_shutdown() {
    let host = Host::with(|c| c.stop_timeout = Duration::from_secs(5)).await;
    host.kernel.inject(Step::Start, Fault::Stall);
    let start = host.begin();
    wait_until("the boot", || host.kernel.starts() == 1).await;
    let clear = async {
        assert_eq!(start.answer().await.unwrap_err().kind, NodeErrorKind::Unavailable);
        host.kernel.clear(Step::Start);
    };
    tokio::join!(host.agent.shutdown(), clear);
    assert_eq!(host.kernel.labelled("hutch.role", "sandbox"), []);
}
