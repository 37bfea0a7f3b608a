//! Samples, log lines and the cursor.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::Router;
use axum::extract::Query;
use axum::http::StatusCode;
use axum::routing::{get, post};
use hutch_node_api::{LogLine, NodeClient, NodeEvent, ResourceSample};
use hutch_runtime::InstanceStats;
use hutch_runtime_fake::{Fault, Guest, Step};
use hutch_types::{Clock, SandboxId};
use serde_json::{Value, json};

use crate::support::{Host, within};

const QUICK: Duration = Duration::from_millis(20);

/// Follows the events from the start until `pick` finds what it looks for.
async fn follow<T>(host: &Host, pick: impl Fn(NodeEvent) -> Option<T>) -> T {
    within("an event", async {
        let mut cursor = 0;
        loop {
            let page = host.agent.events(cursor, Duration::from_secs(1)).await.unwrap();
            assert!(!page.missed);
            cursor = page.cursor;
            if let Some(found) = page.events.into_iter().find_map(&pick) {
                return found;
            }
        }
    })
    .await
}

fn sample_of(
    id: &SandboxId,
    is_wanted: impl Fn(&ResourceSample) -> bool,
) -> impl Fn(NodeEvent) -> Option<ResourceSample> {
    move |event| match event {
        NodeEvent::Sample { sandbox_id, sample } if sandbox_id == *id && is_wanted(&sample) => Some(sample),
        _ => None,
    }
}

#[tokio::test]
async fn samples_carry_the_figures_of_the_host() {
    let host = Host::with(|c| c.sample_interval = QUICK).await;
    let id = host.start().await;
    let instance = &host.kernel.labelled("hutch.sandbox", id.as_str())[0];
    let idle = follow(&host, sample_of(&id, |_| true)).await;
    assert_eq!((idle.cpu_count, idle.cpu_used_pct, idle.mem_total_bytes), (2, 0.0, 512 << 20));
    let stats = InstanceStats {
        cpu_usage_us: 1_000_000_000,
        memory_used_bytes: 11,
        memory_cache_bytes: 22,
        disk_used_bytes: 33,
        disk_total_bytes: 44,
        processes: 5,
    };
    host.kernel.set_stats(instance, stats);
    let busy = follow(&host, sample_of(&id, |s| s.cpu_used_pct > 0.0)).await;
    assert_eq!(busy.cpu_used_pct, 100.0);
    let figures = [busy.mem_used_bytes, busy.mem_cache_bytes, busy.disk_used_bytes, busy.disk_total_bytes];
    assert_eq!(figures, [11, 22, 33, 44]);
    assert!(busy.at >= idle.at && busy.at <= Clock::system().now());
}

#[tokio::test]
async fn figures_that_cannot_be_had_do_not_end_the_sampling() {
    let host = Host::with(|c| c.sample_interval = QUICK).await;
    host.kernel.inject(Step::Stats, Fault::Fail(3));
    let id = host.start().await;
    follow(&host, sample_of(&id, |_| true)).await;
}

/// A guest whose `/logs` answers what `page` makes of the cursor.
fn guest(page: impl Fn(u64) -> Value + Clone + Send + Sync + 'static) -> Guest {
    Guest::Custom(Arc::new(move |_| {
        let page = page.clone();
        let logs = move |Query(query): Query<std::collections::HashMap<String, u64>>| async move {
            Json(page(query["after"]))
        };
        Router::new()
            .route("/health", get(|| async { StatusCode::NO_CONTENT }))
            .route("/init", post(|| async { StatusCode::NO_CONTENT }))
            .route("/logs", get(logs))
    }))
}

fn lines_of(id: &SandboxId) -> impl Fn(NodeEvent) -> Option<Vec<LogLine>> {
    move |event| match event {
        NodeEvent::Logs { sandbox_id, lines } if sandbox_id == *id => Some(lines),
        _ => None,
    }
}

fn one_line_a_page(after: u64) -> Value {
    let lines = if after < 2 {
        vec![
            json!({"seq": after + 1, "level": "info", "timestamp": "2099-01-01T00:00:00Z", "message": format!("line {after}"),
                    "fields": {"sandbox_id": "somebody-else"}}),
        ]
    } else {
        vec![]
    };
    json!({"next": (after + 1).min(2), "lines": lines})
}

#[tokio::test]
async fn log_lines_are_taken_once_also_across_a_restart() {
    let host = Host::with_guest(guest(one_line_a_page), |c| c.sample_interval = QUICK).await;
    let id = host.start().await;
    let has_second = |event| lines_of(&id)(event).filter(|l| l[0].message == "line 1");
    let second = follow(&host, has_second).await;
    assert!(second[0].at <= Clock::system().now(), "not in the future");
    let told: Vec<Vec<LogLine>> = host.events(lines_of(&id)).await;
    assert_eq!(told.iter().flatten().map(|l| l.message.as_str()).collect::<Vec<_>>(), ["line 0", "line 1"]);

    let host = host.restart(|_| {}).await;
    follow(&host, sample_of(&id, |_| true)).await;
    let third = follow(&host, sample_of(&id, |_| true)).await;
    assert!(third.cpu_count == 2);
    assert_eq!(host.events(lines_of(&id)).await, Vec::<Vec<LogLine>>::new());
}

#[tokio::test]
async fn the_last_lines_of_a_stopped_sandbox_are_kept() {
    let host =
        Host::with_guest(guest(one_line_a_page), |c| c.sample_interval = Duration::from_secs(3600)).await;
    let id = host.start().await;
    host.agent.stop_sandbox(&id).await.unwrap();
    assert_eq!(host.events(lines_of(&id)).await.len(), 1);
}

#[tokio::test]
async fn a_guest_that_floods_or_hangs_does_no_harm() {
    let flood = guest(|_| json!({"next": 1, "lines": ["x".repeat(8 << 20)]}));
    let host = Host::with_guest(flood, |c| c.sample_interval = QUICK).await;
    let id = host.start().await;
    follow(&host, sample_of(&id, |_| true)).await;
    assert!(host.events(lines_of(&id)).await.is_empty());
    host.agent.stop_sandbox(&id).await.unwrap();

    let hang = Guest::Custom(Arc::new(|_| {
        Router::new()
            .route("/health", get(|| async { StatusCode::NO_CONTENT }))
            .route("/init", post(|| async { StatusCode::NO_CONTENT }))
            .route("/logs", get(std::future::pending::<()>))
    }));
    let host = Host::with_guest(hang, |c| c.sample_interval = QUICK).await;
    let id = host.start().await;
    follow(&host, sample_of(&id, |_| true)).await;
    let begin = std::time::Instant::now();
    host.agent.stop_sandbox(&id).await.unwrap();
    assert!(begin.elapsed() < Duration::from_secs(1), "a guest cannot delay its end: {:?}", begin.elapsed());
    host.assert_nothing_left().await;
}

#[tokio::test]
async fn a_reader_who_is_too_slow_learns_that_it_missed_something() {
    let host = Host::with(|c| c.max_events = 3).await;
    let mut cursors = Vec::new();
    for _ in 0..5 {
        let id = host.start().await;
        let before = host.agent.inventory().await.unwrap().cursor;
        host.kernel.die(&host.kernel.labelled("hutch.sandbox", id.as_str())[0]).await;
        let page = host.agent.events(before, Duration::from_secs(10)).await.unwrap();
        assert_eq!((page.events.len(), page.missed), (1, false));
        cursors.push(page.cursor);
    }
    let ask = async |after| host.agent.events(after, Duration::ZERO).await.unwrap();
    let page = ask(cursors[0]).await;
    assert_eq!((page.events.len(), page.missed, page.cursor), (3, true, cursors[4]));
    let page = ask(cursors[1]).await;
    assert_eq!((page.events.len(), page.missed), (3, false));
    let page = ask(cursors[4]).await;
    assert_eq!((page.events.len(), page.missed, page.cursor), (0, false, cursors[4]));

    let host = host.restart(|_| {}).await;
    let page = host.agent.events(cursors[4], Duration::from_secs(10)).await.unwrap();
    assert!(page.missed, "a cursor of the daemon before is never taken for one of this");
}

#[tokio::test]
async fn a_node_says_what_it_is() {
    let host = Host::with(|c| c.isolation_reason = "for tests".into()).await;
    let info = host.agent.info().await.unwrap();
    assert_eq!((info.id.as_str(), info.envd_version.as_str()), ("test", "0.0.1"));
    assert_eq!((info.builds, info.memory_mib), (vec![host.build], 32_000));
    assert_eq!((info.isolation, info.isolation_reason.as_str()), (hutch_types::Isolation::Fake, "for tests"));
    assert!(info.cpus >= 1);
}
