//! More than there is room for.

use std::collections::HashSet;
use std::time::Duration;

use futures::future::join_all;
use hutch_app::Limits;
use hutch_runtime_fake::{Fault, Step};
use serde_json::json;

use crate::world::{Reply, Settings, World, wait_for};

#[track_caller]
fn assert_sent_away(reply: &Reply, status: u16, named: &str) {
    assert_eq!(reply.status.as_u16(), status, "{}", reply.text);
    assert!(reply.json()["message"].as_str().unwrap().contains(named), "{}", reply.text);
    let retry_after: u32 = reply.headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!(retry_after >= 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_a_hundred_on_a_pool_of_eight_is_served_whole() {
    let w = World::with(Settings { pool: 8, ..Settings::default() }).await;
    w.fill_pool(8).await;
    w.kernel.inject(Step::Start, Fault::Delay(Duration::from_millis(5)));
    let replies = join_all((0..100).map(|_| w.try_create(json!({})))).await;
    let mut ids = HashSet::new();
    for reply in replies {
        ids.insert(reply.expect(201).json()["sandboxID"].as_str().unwrap().to_owned());
    }
    assert_eq!(ids.len(), 100);
    assert_eq!(w.listed().await.len(), 100);
    let killed =
        join_all(ids.iter().map(async |id| w.delete(&format!("/sandboxes/{id}")).await.status)).await;
    assert!(killed.iter().all(|status| *status == 204));
    wait_for("all but the pool to go", async || w.kernel.labelled("hutch.role", "sandbox").is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_line_of_starts_clients_are_sent_away_to_come_back() {
    let limits = Limits { max_concurrent_starts: 1, max_queued_starts: 3, ..Limits::default() };
    let w = World::with(Settings { limits, boots: 1, ..Settings::default() }).await;
    w.kernel.inject(Step::Start, Fault::Delay(Duration::from_millis(30)));
    let replies = join_all((0..40).map(|_| w.try_create(json!({})))).await;
    let (made, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 201);
    assert!(made.len() >= 4, "the line is served");
    assert!(!refused.is_empty());
    for reply in &refused {
        assert_sent_away(reply, 429, "limits.max_queued_starts");
    }
    assert_eq!(w.listed().await.len(), made.len());
    // The line is empty again.
    w.create(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn beyond_the_number_of_a_teams_sandboxes_the_limit_is_named() {
    let limits = Limits { max_sandboxes_per_team: 3, ..Limits::default() };
    let w = World::with(Settings { limits, ..Settings::default() }).await;
    let replies = join_all((0..10).map(|_| w.try_create(json!({})))).await;
    let (made, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 201);
    assert_eq!((made.len(), refused.len()), (3, 7));
    for reply in &refused {
        assert_sent_away(reply, 429, "limits.max_sandboxes_per_team");
    }
    let one = made[0].json()["sandboxID"].as_str().unwrap().to_owned();
    w.delete(&format!("/sandboxes/{one}")).await.expect(204);
    w.create(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_host_says_so_and_keeps_nothing_of_what_it_refused() {
    let w = World::new().await;
    w.kernel.set_capacity(2);
    let replies = join_all((0..6).map(|_| w.try_create(json!({})))).await;
    let (made, refused): (Vec<_>, Vec<_>) = replies.into_iter().partition(|reply| reply.status == 201);
    assert_eq!(made.len(), 2);
    for reply in &refused {
        assert_sent_away(reply, 503, "no capacity");
        assert_eq!(reply.json()["error_code"], "sandbox_capacity_unavailable");
    }
    assert_eq!((w.listed().await.len(), w.kernel.instances().len()), (2, 2));
    w.kernel.set_capacity(3);
    w.create(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn creates_and_kills_side_by_side_leave_nothing() {
    let w = World::with(Settings { pool: 4, ..Settings::default() }).await;
    let lives = (0..60).map(async |n| {
        let sandbox = w.create(json!({})).await;
        if n % 3 == 0 {
            assert_eq!(w.run(&sandbox, "echo $E2B_SANDBOX_ID").await, format!("{}\n", sandbox.id));
        }
        w.delete(&format!("/sandboxes/{}", sandbox.id)).await.expect(204);
    });
    join_all(lives).await;
    assert_eq!(w.listed().await, []);
    wait_for("all but the pool to go", async || {
        w.kernel.instances().len() == 4 && w.agent().pool_status()[0].ready == 4
    })
    .await;
}
