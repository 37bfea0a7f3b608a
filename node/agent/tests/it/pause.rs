//! Sandboxes that are paused and resumed.

use std::time::Duration;

use hutch_node_api::{NodeClient, NodeErrorKind, NodeEvent, PausedSandbox, RouteSource, StartSandbox};
use hutch_runtime_fake::{Fault, Step};
use hutch_types::{PauseMode, SandboxId};

use crate::support::{Host, within};

async fn started(host: &Host) -> StartSandbox {
    let request = host.request();
    host.agent.start_sandbox(request.clone()).await.unwrap();
    request
}

async fn paused(host: &Host) -> Vec<PausedSandbox> {
    host.agent.inventory().await.unwrap().paused
}

fn one(id: &SandboxId, mode: PauseMode) -> Vec<PausedSandbox> {
    vec![PausedSandbox { sandbox_id: id.clone(), mode }]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_sandbox_has_no_route_until_it_is_resumed() {
    let host = Host::new().await;
    for mode in [PauseMode::Full, PauseMode::Filesystem] {
        let request = started(&host).await;
        let id = request.sandbox_id.clone();
        host.agent.pause_sandbox(&id, mode).await.unwrap();
        assert!(host.agent.route(&id).await.is_none());
        assert_eq!(paused(&host).await, one(&id, mode));
        assert!(!host.running().await.contains(&id));
        // Again is no error.
        host.agent.pause_sandbox(&id, mode).await.unwrap();
        host.agent.resume_sandbox(request.clone(), mode).await.unwrap();
        assert!(host.agent.route(&id).await.is_some());
        assert!(paused(&host).await.is_empty());
        // Nor is resuming what runs.
        host.agent.resume_sandbox(request, mode).await.unwrap();
        host.agent.stop_sandbox(&id).await.unwrap();
    }
    host.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_who_resume_get_one_instance() {
    let host = Host::new().await;
    let request = started(&host).await;
    host.agent.pause_sandbox(&request.sandbox_id, PauseMode::Full).await.unwrap();
    let resumes = (0..10).map(|_| host.agent.resume_sandbox(request.clone(), PauseMode::Full));
    let answers = futures::future::join_all(resumes).await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    assert_eq!(host.kernel.instances().len(), 1);
    host.agent.stop_sandbox(&request.sandbox_id).await.unwrap();
    host.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pause_that_fails_leaves_it_running() {
    let host = Host::new().await;
    let id = started(&host).await.sandbox_id;
    host.kernel.inject(Step::Pause, Fault::Fail(1));
    let error = host.agent.pause_sandbox(&id, PauseMode::Full).await.unwrap_err();
    assert_eq!(error.kind, NodeErrorKind::Internal);
    assert!(host.agent.route(&id).await.is_some());
    assert!(host.running().await.contains(&id));
    host.agent.pause_sandbox(&id, PauseMode::Full).await.unwrap();
    host.agent.stop_sandbox(&id).await.unwrap();
    host.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resume_that_fails_leaves_it_paused() {
    let host = Host::new().await;
    let request = started(&host).await;
    let id = request.sandbox_id.clone();
    host.agent.pause_sandbox(&id, PauseMode::Full).await.unwrap();
    host.kernel.inject(Step::Resume, Fault::Fail(1));
    host.agent.resume_sandbox(request.clone(), PauseMode::Full).await.unwrap_err();
    assert_eq!(paused(&host).await, one(&id, PauseMode::Full));
    // When it came back but could not be set up, its files are saved.
    host.kernel.inject(Step::Network, Fault::Fail(1));
    host.agent.resume_sandbox(request.clone(), PauseMode::Full).await.unwrap_err();
    assert_eq!(paused(&host).await, one(&id, PauseMode::Filesystem));
    let unsaved = host.agent.resume_sandbox(request.clone(), PauseMode::Full).await.unwrap_err();
    assert_eq!(unsaved.kind, NodeErrorKind::Unsupported);
    host.agent.resume_sandbox(request, PauseMode::Filesystem).await.unwrap();
    host.agent.stop_sandbox(&id).await.unwrap();
    host.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_does_not_wait_for_a_pause() {
    let host = Host::new().await;
    let id = started(&host).await.sandbox_id;
    host.kernel.inject(Step::Pause, Fault::Stall);
    let kill = async {
        within("the pause", async {
            while host.agent.route(&id).await.is_some() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        })
        .await;
        let ended = async {
            while !host.kernel.instances().is_empty() {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            host.kernel.clear(Step::Pause);
        };
        tokio::join!(host.agent.stop_sandbox(&id), ended).0
    };
    let both = async { tokio::join!(host.agent.pause_sandbox(&id, PauseMode::Full), kill) };
    let (paused, killed) = within("the kill", both).await;
    killed.unwrap();
    paused.unwrap_err();
    host.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_daemon_finds_it_paused() {
    let host = Host::new().await;
    let (kept, dropped) = (started(&host).await, started(&host).await);
    host.agent.pause_sandbox(&kept.sandbox_id, PauseMode::Full).await.unwrap();
    host.agent.pause_sandbox(&dropped.sandbox_id, PauseMode::Full).await.unwrap();
    let host = host.restart(|_| {}).await;
    assert_eq!(paused(&host).await.len(), 2);
    host.agent.stop_sandbox(&dropped.sandbox_id).await.unwrap();
    assert_eq!(paused(&host).await, one(&kept.sandbox_id, PauseMode::Full));
    host.agent.resume_sandbox(kept.clone(), PauseMode::Full).await.unwrap();
    let exits = host.events(|e| matches!(e, NodeEvent::Exited { .. }).then_some(())).await;
    assert!(exits.is_empty());
    host.agent.stop_sandbox(&kept.sandbox_id).await.unwrap();
    host.assert_nothing_left().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_here_is_not_found() {
    let host = Host::new().await;
    let request = host.request();
    let pause = host.agent.pause_sandbox(&request.sandbox_id, PauseMode::Full).await.unwrap_err();
    let resume = host.agent.resume_sandbox(request, PauseMode::Full).await.unwrap_err();
    assert_eq!((pause.kind, resume.kind), (NodeErrorKind::NotFound, NodeErrorKind::NotFound));
}
