//! The warm pool.

use std::collections::HashSet;
use std::time::Duration;

use hutch_node_api::NodeClient;
use hutch_runtime_fake::{Fault, Step};
use hutch_types::{BuildId, Resources};

use crate::support::{Host, RESOURCES, wait_until};

#[tokio::test]
async fn a_pool_fills_with_instances_that_answer_and_may_reach_nothing() {
    let host = Host::with(|c| c.pool.size = 3).await;
    host.agent.set_pool_target(host.build, RESOURCES, None);
    assert!(host.agent.wait_pool(host.build, RESOURCES, 3, Duration::from_secs(10)).await);
    host.agent.idle().await;
    let instances = host.kernel.labelled("hutch.role", "pool");
    assert_eq!((instances.len(), host.kernel.starts()), (3, 3));
    let secrets: HashSet<String> = instances
        .iter()
        .map(|id| {
            let view = host.kernel.view(id).unwrap();
            assert_eq!((view.network, view.hostname), (None, None));
            view.spec.secret.expose().to_owned()
        })
        .collect();
    assert_eq!(secrets.len(), 3);
    assert!(host.running().await.is_empty(), "nobody's instances are no sandboxes");
}

#[tokio::test]
async fn a_claim_takes_a_ready_instance_and_the_pool_refills() {
    let host = Host::new().await;
    host.fill_pool(2).await;
    let before: HashSet<_> = host.kernel.instances().into_iter().collect();
    let request = host.request();
    assert!(host.agent.start_sandbox(request.clone()).await.unwrap().from_pool);
    let claimed = host.kernel.labelled("hutch.sandbox", request.sandbox_id.as_str());
    assert!(claimed.len() == 1 && before.contains(&claimed[0]));
    assert!(host.agent.wait_pool(host.build, RESOURCES, 2, Duration::from_secs(10)).await);
    host.agent.idle().await;
    assert_eq!((host.kernel.instances().len(), host.kernel.starts()), (3, 3));
}

#[tokio::test]
async fn other_resources_do_not_find_the_pool() {
    let host = Host::new().await;
    host.fill_pool(1).await;
    let mut request = host.request();
    request.resources = Resources { memory_mib: 1024, ..RESOURCES };
    assert!(!host.agent.start_sandbox(request).await.unwrap().from_pool);
    assert_eq!(host.ready(), 1);
}

#[tokio::test]
async fn a_pool_is_kept_quiet_after_a_claim_unless_it_runs_low() {
    let host = Host::with(|c| c.pool.refill_quiet = Duration::from_secs(3600)).await;
    host.fill_pool(2).await;
    host.start().await;
    host.agent.idle().await;
    assert_eq!((host.ready(), host.kernel.starts()), (1, 2));
    host.start().await;
    wait_until("the refill of the empty shelf", || host.ready() == 1).await;
    host.agent.idle().await;
    assert_eq!(host.kernel.starts(), 3);
}

#[tokio::test]
async fn refills_wait_while_a_request_waits() {
    let host = Host::new().await;
    host.kernel.inject(Step::Start, Fault::Stall);
    let start = host.begin();
    wait_until("the boot for the request", || host.kernel.starts() == 1).await;
    let other = BuildId::random();
    host.kernel.add_build(other);
    host.agent.set_pool_target(other, RESOURCES, Some(2));
    let booting = |build| host.agent.pool_status().iter().find(|s| s.build == build).map(|s| s.booting);
    assert_eq!((booting(other), booting(host.build)), (Some(0), Some(1)));
    host.kernel.clear(Step::Start);
    assert!(start.answer().await.is_ok());
    assert!(host.agent.wait_pool(other, RESOURCES, 2, Duration::from_secs(10)).await);
}

#[tokio::test]
async fn a_refill_under_way_serves_a_request() {
    let host = Host::new().await;
    host.kernel.inject(Step::Start, Fault::Stall);
    host.agent.set_pool_target(host.build, RESOURCES, Some(1));
    wait_until("the refill", || host.kernel.starts() == 1).await;
    let start = host.begin();
    wait_until("the request", || host.agent.pool_status().iter().any(|s| s.waiting == 1)).await;
    assert_eq!(host.kernel.starts(), 1);
    host.kernel.clear(Step::Start);
    assert!(start.answer().await.is_ok());
    assert!(host.agent.wait_pool(host.build, RESOURCES, 1, Duration::from_secs(10)).await);
    host.agent.idle().await;
    assert_eq!(host.kernel.starts(), 2);
}

#[tokio::test]
async fn an_instance_that_died_or_went_bad_on_the_shelf_is_not_handed_out() {
    let host = Host::with(|c| c.init_timeout = Duration::from_millis(500)).await;
    host.fill_pool(2).await;
    let [dead, bad] = host.kernel.instances().try_into().unwrap();
    host.kernel.end_envd(&bad).await;
    host.kernel.die(&dead).await;
    let id = host.start().await;
    let instance = &host.kernel.labelled("hutch.sandbox", id.as_str())[0];
    assert!(*instance != dead && *instance != bad);
    host.agent.set_pool_target(host.build, RESOURCES, Some(0));
    host.agent.idle().await;
    assert_eq!(host.kernel.instances(), std::slice::from_ref(instance));
}

#[tokio::test]
async fn an_instance_that_dies_on_the_shelf_is_removed_and_replaced() {
    let host = Host::new().await;
    host.fill_pool(1).await;
    let dead = host.kernel.instances().remove(0);
    host.kernel.die(&dead).await;
    wait_until("the dead one to go", || host.kernel.view(&dead).is_none()).await;
    assert!(host.agent.wait_pool(host.build, RESOURCES, 1, Duration::from_secs(10)).await);
    assert_eq!(host.kernel.starts(), 2);
}

#[tokio::test]
async fn the_pool_shrinks_when_the_host_is_short_of_memory_and_comes_back() {
    let host = Host::new().await;
    host.fill_pool(4).await;
    host.set_free_memory(100);
    wait_until("the pool to shrink", || host.ready() == 0).await;
    host.agent.idle().await;
    assert_eq!(host.kernel.instances(), []);
    assert!(
        !host.agent.start_sandbox(host.request()).await.unwrap().from_pool,
        "requests are served all the same"
    );
    assert_eq!((host.ready(), host.kernel.starts()), (0, 5));
    host.set_free_memory(16_000);
    assert!(host.agent.wait_pool(host.build, RESOURCES, 4, Duration::from_secs(10)).await);
}

#[tokio::test]
async fn a_lower_target_ends_the_surplus() {
    let host = Host::new().await;
    host.fill_pool(3).await;
    host.agent.set_pool_target(host.build, RESOURCES, Some(1));
    host.agent.idle().await;
    assert_eq!((host.kernel.instances().len(), host.ready()), (1, 1));
    host.agent.set_pool_target(host.build, RESOURCES, Some(0));
    host.assert_nothing_left().await;
    assert_eq!(host.agent.pool_status(), []);
}

#[tokio::test]
async fn a_refill_that_fails_is_not_repeated_at_once() {
    let host = Host::new().await;
    host.kernel.inject(Step::Start, Fault::Fail(1));
    host.agent.set_pool_target(host.build, RESOURCES, Some(1));
    wait_until("the failed boot", || host.kernel.starts() == 1).await;
    host.agent.idle().await;
    let status = host.agent.pool_status()[0];
    assert_eq!((status.target, status.ready, status.booting), (1, 0, 0));
    assert!(host.agent.start_sandbox(host.request()).await.is_ok(), "a request does not wait for the pause");
    assert!(host.agent.wait_pool(host.build, RESOURCES, 1, Duration::from_secs(10)).await);
}
