//! Stopping sandboxes, from every state, and sandboxes that stop by themselves.

use std::time::Duration;

use futures::FutureExt;
use hutch_node_api::{NodeClient, NodeErrorKind, NodeEvent};
use hutch_runtime_fake::{Fault, Step};
use hutch_types::{KillReason, NetworkPolicy, SandboxId};

use crate::support::{Host, wait_until, within};

const DENY: NetworkPolicy = NetworkPolicy { allow_internet_access: false };

#[tokio::test]
async fn stopping_leaves_nothing_and_may_be_repeated() {
    let host = Host::new().await;
    assert_eq!(host.agent.stop_sandbox(&SandboxId::random()).await, Ok(()));
    let id = host.start().await;
    let (a, b) = tokio::join!(host.agent.stop_sandbox(&id), host.agent.stop_sandbox(&id));
    assert_eq!((a, b), (Ok(()), Ok(())));
    assert!(!host.has_route(&id).await);
    host.assert_nothing_left().await;
    assert_eq!(host.agent.stop_sandbox(&id).await, Ok(()));
    let is_exit = |e: &NodeEvent| matches!(e, NodeEvent::Exited { .. });
    assert_eq!(host.events(|e| Some(e).filter(is_exit)).await, [], "what was asked for is no news");
}

#[tokio::test]
async fn a_start_that_waits_for_an_instance_is_stopped_at_once() {
    let host = Host::new().await;
    host.kernel.inject(Step::Start, Fault::Stall);
    let start = host.begin();
    wait_until("the boot", || host.kernel.starts() == 1).await;
    within("the stop", host.agent.stop_sandbox(&start.id)).await.unwrap();
    assert_eq!(start.answer().await.unwrap_err().kind, NodeErrorKind::Unavailable);
    host.kernel.clear(Step::Start);
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_start_that_has_its_instance_is_stopped_at_once() {
    for step in [Step::Hostname, Step::Network] {
        let host = Host::new().await;
        host.kernel.inject(step, Fault::Stall);
        let start = host.begin();
        wait_until("the claim", || !host.kernel.labelled("hutch.role", "sandbox").is_empty()).await;
        within("the stop", host.agent.stop_sandbox(&start.id)).await.unwrap();
        assert_eq!(host.kernel.instances(), [], "{step:?}");
        assert_eq!(start.answer().await.unwrap_err().kind, NodeErrorKind::Unavailable);
        host.assert_nothing_left().await;
    }
}

#[tokio::test]
async fn a_stop_interrupts_whatever_the_actor_does() {
    let host = Host::new().await;
    let id = host.start().await;
    host.kernel.inject(Step::Network, Fault::Stall);
    let mut change = host.agent.set_network(&id, DENY);
    assert!((&mut change).now_or_never().is_none());
    let (stopped, changed) = tokio::join!(within("the stop", host.agent.stop_sandbox(&id)), change);
    assert_eq!((stopped, changed.map_err(|e| e.kind)), (Ok(()), Err(NodeErrorKind::NotFound)));
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_mailbox_is_bounded_and_a_stop_does_not_queue_in_it() {
    let host = Host::with(|c| c.mailbox = 2).await;
    let id = host.start().await;
    host.kernel.inject(Step::Network, Fault::Stall);
    let changes = futures::future::join_all((0..10).map(|_| host.agent.set_network(&id, DENY)));
    let stop = async { within("the stop", host.agent.stop_sandbox(&id)).await.unwrap() };
    let (answers, ()) = tokio::join!(changes, stop);
    let (busy, interrupted): (Vec<_>, Vec<_>) =
        answers.into_iter().map(Result::unwrap_err).partition(|e| e.message.contains("busy"));
    assert!(busy.iter().all(|e| e.kind == NodeErrorKind::Unavailable), "{busy:?}");
    // Two wait, and one may be worked on already; the others are refused at once.
    assert!((2..=3).contains(&interrupted.len()), "{interrupted:?}");
    assert!(interrupted.iter().all(|e| e.kind == NodeErrorKind::NotFound), "{interrupted:?}");
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_network_policy_is_replaced_while_the_sandbox_runs() {
    let host = Host::new().await;
    let id = host.start().await;
    assert_eq!(host.agent.set_network(&id, DENY).await, Ok(()));
    let instance = &host.kernel.labelled("hutch.sandbox", id.as_str())[0];
    assert_eq!(host.kernel.view(instance).unwrap().network, Some(DENY));
    host.kernel.inject(Step::Network, Fault::Fail(1));
    assert_eq!(host.agent.set_network(&id, DENY).await.unwrap_err().kind, NodeErrorKind::Internal);
    assert_eq!(host.agent.set_network(&id, DENY).await, Ok(()), "one failure does not end the sandbox");
    let unknown = host.agent.set_network(&SandboxId::random(), DENY).await.unwrap_err();
    assert_eq!(unknown.kind, NodeErrorKind::NotFound);
}

#[tokio::test]
async fn a_kill_that_fails_is_tried_again() {
    let host = Host::new().await;
    let id = host.start().await;
    host.kernel.inject(Step::Kill, Fault::Fail(3));
    within("the stop", host.agent.stop_sandbox(&id)).await.unwrap();
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_kill_that_hangs_is_reported_and_goes_on() {
    let host = Host::with(|c| c.stop_timeout = Duration::from_millis(50)).await;
    let id = host.start().await;
    host.kernel.inject(Step::Kill, Fault::Stall);
    let error = host.agent.stop_sandbox(&id).await.unwrap_err();
    assert_eq!(error.kind, NodeErrorKind::DeadlineExceeded);
    assert!(!host.has_route(&id).await);
    assert!(host.running().await.is_empty(), "what is being stopped does not run");
    let again = host.agent.start_sandbox({
        let mut request = host.request();
        request.sandbox_id = id.clone();
        request
    });
    assert_eq!(again.await.unwrap_err().kind, NodeErrorKind::Unavailable);
    host.kernel.clear(Step::Kill);
    within("the stop", host.agent.stop_sandbox(&id)).await.unwrap();
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn slow_clean_up_goes_on_behind_and_is_waited_for_by_idle() {
    let host = Host::new().await;
    let id = host.start().await;
    host.kernel.inject(Step::CleanUp, Fault::Stall);
    within("the stop", host.agent.stop_sandbox(&id)).await.unwrap();
    assert_eq!(host.kernel.instances().len(), 1);
    assert!(host.agent.idle().now_or_never().is_none());
    host.kernel.clear(Step::CleanUp);
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn clean_up_behind_is_bounded() {
    let host = Host::with(|c| c.max_background_cleanups = 1).await;
    let (first, second) = (host.start().await, host.start().await);
    host.kernel.inject(Step::CleanUp, Fault::Stall);
    within("the first stop", host.agent.stop_sandbox(&first)).await.unwrap();
    let stop = host.agent.stop_sandbox(&second);
    let waits = tokio::time::timeout(Duration::from_millis(50), stop).await;
    assert!(waits.is_err(), "the second one waits for its own clean-up");
    host.kernel.clear(Step::CleanUp);
    within("the second stop", host.agent.stop_sandbox(&second)).await.unwrap();
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_sandbox_that_dies_is_told_and_cleaned_up() {
    let host = Host::new().await;
    let (id, other) = (host.start().await, host.start().await);
    let inventory = host.agent.inventory().await.unwrap();
    let news = host.agent.events(inventory.cursor, Duration::from_secs(10));
    let instance = host.kernel.labelled("hutch.sandbox", id.as_str()).remove(0);
    let (page, ()) = tokio::join!(news, host.kernel.die(&instance));
    let page = page.unwrap();
    let detail = "its first process ended".to_owned();
    let exited = NodeEvent::Exited { sandbox_id: id.clone(), reason: KillReason::Died, detail };
    assert_eq!((page.events, page.missed), (vec![exited], false));
    assert_eq!(host.running().await, [other.clone()].into(), "the event is contained in the inventory");
    assert!(!host.has_route(&id).await);
    assert!(host.has_route(&other).await);
    host.agent.idle().await;
    assert_eq!(host.kernel.instances().len(), 1);
}

#[tokio::test]
async fn everything_can_be_destroyed() {
    let host = Host::new().await;
    host.fill_pool(2).await;
    for _ in 0..3 {
        host.start().await;
    }
    within("the end of all", host.agent.destroy_all()).await.unwrap();
    host.assert_nothing_left().await;
}
