//! Starting sandboxes.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{get, post};
use futures::future::join_all;
use hutch_node_api::{NodeClient, NodeErrorKind, RouteSource};
use hutch_runtime_fake::{Fault, Guest, Step};
use hutch_types::{BuildId, NetworkPolicy};
use serde_json::Value;

use crate::support::{Host, RESOURCES, request, wait_until, within};

/// A guest whose `/init` answers `status` and tells the channel what it was sent.
fn guest(status: StatusCode, seen: std::sync::mpsc::Sender<(Option<String>, Value)>) -> Guest {
    let seen = Arc::new(parking_lot::Mutex::new(seen));
    Guest::Custom(Arc::new(move |_| {
        let seen = seen.clone();
        let init = move |headers: HeaderMap, Json(body): Json<Value>| async move {
            let secret = headers.get("x-hutch-secret").and_then(|v| v.to_str().ok()).map(str::to_owned);
            seen.lock().send((secret, body)).unwrap();
            status
        };
        Router::new().route("/health", get(|| async { StatusCode::NO_CONTENT })).route("/init", post(init))
    }))
}

#[tokio::test]
async fn a_started_sandbox_has_its_identity_and_a_route() {
    let (tx, seen) = std::sync::mpsc::channel();
    let host = Host::with_guest(guest(StatusCode::NO_CONTENT, tx), |_| {}).await;
    let mut request = host.request();
    request.network = NetworkPolicy { allow_internet_access: false };
    let started = host.agent.start_sandbox(request.clone()).await.unwrap();
    assert_eq!((started.envd_version.as_str(), started.from_pool), ("0.0.1", false));

    let id = request.sandbox_id.as_str();
    let instances = host.kernel.labelled("hutch.sandbox", id);
    assert_eq!((instances.len(), host.kernel.instances().len()), (1, 1));
    let view = host.kernel.view(&instances[0]).unwrap();
    assert_eq!(view.hostname.as_deref(), Some(id));
    assert_eq!(view.network, Some(request.network.clone()));
    assert_eq!(view.labels["hutch.role"], "sandbox");
    assert_eq!(view.spec.resources, RESOURCES);

    let (secret, init) = seen.try_recv().unwrap();
    assert_eq!(secret.as_deref(), Some(view.spec.secret.expose()));
    assert_eq!(init["envVars"]["KEY"], "value");
    assert_eq!(init["accessToken"], "an-access-token");
    assert_eq!((&init["defaultUser"], &init["defaultWorkdir"]), (&"user".into(), &"/home/user".into()));
    assert_eq!((&init["hostname"], &init["sandboxId"]), (&id.into(), &id.into()));
    assert_eq!(init["templateId"], request.template_id.as_str());
    assert_eq!(init["memoryTotalBytes"], 512u64 << 20);
    assert_eq!((&init["cpuCount"], &init["diskTotalBytes"]), (&2.into(), &(1024u64 << 20).into()));
    assert!(init["timestamp"].as_str().unwrap().ends_with('Z'), "{init}");
    let machine_id = init["machineId"].as_str().unwrap();
    assert!(machine_id.len() == 32 && machine_id.bytes().all(|b| b.is_ascii_hexdigit()), "{machine_id}");

    let route = host.agent.route(&request.sandbox_id).await.unwrap();
    assert_eq!(route.secret, view.spec.secret);
    assert!(tokio::net::TcpStream::connect((route.address, route.envd_port)).await.is_ok());
}

#[tokio::test]
async fn two_sandboxes_have_nothing_in_common() {
    let (tx, seen) = std::sync::mpsc::channel();
    let host = Host::with_guest(guest(StatusCode::NO_CONTENT, tx), |_| {}).await;
    let (a, b) = (host.start().await, host.start().await);
    let (a, b) = (host.agent.route(&a).await.unwrap(), host.agent.route(&b).await.unwrap());
    assert_ne!(a.secret, b.secret);
    assert_ne!(a.envd_port, b.envd_port);
    let machine_ids: HashSet<String> =
        seen.try_iter().map(|(_, init)| init["machineId"].to_string()).collect();
    assert_eq!(machine_ids.len(), 2);
}

#[tokio::test]
async fn starting_one_id_many_times_makes_one_instance() {
    let host = Host::new().await;
    let request = host.request();
    let answers = join_all((0..20).map(|_| host.agent.start_sandbox(request.clone()))).await;
    let first = answers[0].clone().unwrap();
    assert!(answers.into_iter().all(|a| a == Ok(first.clone())));
    assert_eq!(host.agent.start_sandbox(request).await, Ok(first));
    assert_eq!((host.kernel.starts(), host.kernel.instances().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_starts_at_once_never_share_an_instance() {
    let host = Host::new().await;
    host.fill_pool(8).await;
    let begun: Vec<_> = (0..50).map(|_| host.begin()).collect();
    let ids: HashSet<_> = begun.iter().map(|b| b.id.clone()).collect();
    let mut from_pool = 0;
    for start in begun {
        from_pool += usize::from(start.answer().await.unwrap().from_pool);
    }
    assert_eq!(from_pool, 8);
    assert_eq!(host.running().await, ids);
    let mut instances = HashSet::new();
    for id in &ids {
        let found = host.kernel.labelled("hutch.sandbox", id.as_str());
        assert_eq!(found.len(), 1);
        instances.extend(found);
    }
    assert_eq!(instances.len(), 50);
    assert!(host.agent.destroy_all().await.is_ok());
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_failed_step_undoes_the_start() {
    for (step, kind) in [
        (Step::Start, NodeErrorKind::Internal),
        (Step::Labels, NodeErrorKind::Internal),
        (Step::Hostname, NodeErrorKind::Internal),
        (Step::Network, NodeErrorKind::Internal),
    ] {
        let host = Host::new().await;
        host.kernel.inject(step, Fault::Fail(1));
        let request = host.request();
        let error = host.agent.start_sandbox(request.clone()).await.unwrap_err();
        assert_eq!(error.kind, kind, "{step:?}");
        assert!(error.message.contains("injected"), "the cause is named: {error}");
        assert!(!host.has_route(&request.sandbox_id).await);
        host.assert_nothing_left().await;
        assert!(host.agent.start_sandbox(request).await.is_ok(), "{step:?}: the same id can be tried again");
    }
}

#[tokio::test]
async fn a_step_that_never_ends_undoes_the_start() {
    let host = Host::with(|c| c.step_timeout = Duration::from_millis(30)).await;
    host.kernel.inject(Step::Hostname, Fault::Stall);
    let error = within("an answer", host.agent.start_sandbox(host.request())).await.unwrap_err();
    assert_eq!(error.kind, NodeErrorKind::DeadlineExceeded);
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn an_envd_that_refuses_or_fails_its_identity_undoes_the_start() {
    for (status, kind) in [
        (StatusCode::BAD_REQUEST, NodeErrorKind::Internal),
        (StatusCode::INTERNAL_SERVER_ERROR, NodeErrorKind::Internal),
    ] {
        let (tx, seen) = std::sync::mpsc::channel();
        let host = Host::with_guest(guest(status, tx), |c| c.init_timeout = Duration::from_millis(50)).await;
        let error = host.agent.start_sandbox(host.request()).await.unwrap_err();
        assert_eq!(error.kind, kind, "{status}");
        assert!(error.message.contains(status.as_str()), "{error}");
        let tries = seen.try_iter().count();
        assert_eq!(tries > 1, status.is_server_error(), "only what may pass is tried again: {tries}");
        host.assert_nothing_left().await;
    }
}

#[tokio::test]
async fn a_guest_without_envd_is_given_up_at_the_deadline() {
    let guest = Guest::Custom(Arc::new(|_| Router::new()));
    let host = Host::with_guest(guest, |c| c.boot_timeout = Duration::from_millis(50)).await;
    let error = host.agent.start_sandbox(host.request()).await.unwrap_err();
    assert!(error.message.contains("404"), "{error}");
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_boot_that_hangs_is_answered_and_cleaned_up_when_it_comes_back() {
    let host = Host::with(|c| c.boot_timeout = Duration::from_millis(300)).await;
    host.kernel.inject(Step::Start, Fault::Stall);
    let error = host.agent.start_sandbox(host.request()).await.unwrap_err();
    assert_eq!(error.kind, NodeErrorKind::DeadlineExceeded);
    host.kernel.clear(Step::Start);
    host.assert_nothing_left().await;
    assert_eq!(host.kernel.starts(), 1);
    host.start().await;
}

#[tokio::test]
async fn an_instance_that_dies_while_it_starts_is_an_error_at_once() {
    let host = Host::new().await;
    host.kernel.inject(Step::Network, Fault::Stall);
    let start = host.begin();
    wait_until("the claim", || !host.kernel.labelled("hutch.role", "sandbox").is_empty()).await;
    host.kernel.die(&host.kernel.instances()[0]).await;
    let error = start.answer().await.unwrap_err();
    assert!(error.message.contains("ended"), "{error}");
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    let host = Host::new().await;
    let unknown = host.agent.start_sandbox(request(BuildId::random())).await.unwrap_err();
    assert_eq!(unknown.kind, NodeErrorKind::NotFound);
    host.start().await;
    host.kernel.set_capacity(1);
    let full = host.agent.start_sandbox(host.request()).await.unwrap_err();
    assert_eq!(full.kind, NodeErrorKind::Exhausted);
    assert_eq!(host.kernel.instances().len(), 1);
}

#[tokio::test]
async fn boots_and_the_queue_before_them_are_bounded() {
    let host = Host::with(|c| {
        c.max_concurrent_starts = 2;
        c.max_queued_starts = 5;
    })
    .await;
    host.kernel.inject(Step::Start, Fault::Stall);
    let begun: Vec<_> = (0..5).map(|_| host.begin()).collect();
    wait_until("five requests to wait", || host.agent.pool_status().iter().any(|s| s.waiting == 5)).await;
    wait_until("two boots", || host.kernel.starts() == 2).await;
    let sixth = host.agent.start_sandbox(host.request()).await.unwrap_err();
    assert_eq!(sixth.kind, NodeErrorKind::Exhausted);
    assert!(sixth.message.contains("max_queued_starts"), "{sixth}");
    assert_eq!((host.kernel.starts(), host.agent.pool_status()[0].booting), (2, 2));
    host.kernel.clear(Step::Start);
    for start in begun {
        assert!(start.answer().await.is_ok());
    }
    assert_eq!(host.kernel.instances().len(), 5);
}

#[tokio::test]
async fn waiting_in_the_queue_ends_at_a_deadline() {
    let host = Host::with(|c| {
        c.max_concurrent_starts = 1;
        c.queue_timeout = Duration::from_millis(50);
    })
    .await;
    host.kernel.inject(Step::Start, Fault::Stall);
    let error = host.agent.start_sandbox(host.request()).await.unwrap_err();
    assert_eq!(error.kind, NodeErrorKind::Exhausted);
    assert!(error.message.contains("queue_timeout"), "{error}");
    host.kernel.clear(Step::Start);
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_caller_who_leaves_does_not_stop_the_start() {
    let host = Host::new().await;
    host.kernel.inject(Step::Start, Fault::Stall);
    let request = host.request();
    let id = request.sandbox_id.clone();
    let left = tokio::time::timeout(Duration::from_millis(20), host.agent.start_sandbox(request.clone()));
    assert!(left.await.is_err());
    host.kernel.clear(Step::Start);
    assert!(host.agent.start_sandbox(request).await.is_ok());
    assert_eq!(host.kernel.labelled("hutch.sandbox", id.as_str()).len(), 1);
}
