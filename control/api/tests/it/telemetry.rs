use std::collections::BTreeMap;

use hutch_node_api::{LogLine, NodeEvent, ResourceSample};
use hutch_types::{SandboxId, Timestamp};
use serde_json::{Value, json};

use crate::world::{START, World, wait_for};

fn sample(seconds: i64, mem_used_bytes: u64) -> ResourceSample {
    ResourceSample {
        at: Timestamp(START.0 + seconds * 1000),
        cpu_count: 2,
        cpu_used_pct: 12.5,
        mem_used_bytes,
        mem_total_bytes: 512 << 20,
        mem_cache_bytes: 3,
        disk_used_bytes: 4,
        disk_total_bytes: 1 << 30,
    }
}

fn line(seconds: i64, level: &str, message: &str) -> LogLine {
    LogLine {
        at: Timestamp(START.0 + seconds * 1000),
        level: level.to_owned(),
        message: message.to_owned(),
        fields: BTreeMap::from([("logger".to_owned(), "process".to_owned())]),
    }
}

async fn with_logs(w: &World) -> SandboxId {
    let id = w.create(json!({})).await;
    let lines = vec![line(1, "debug", "one"), line(2, "info", "two Two"), line(3, "error", "three")];
    w.node.report(NodeEvent::Logs { sandbox_id: id.clone(), lines });
    wait_for("the lines", async || {
        w.get(&format!("/v2/sandboxes/{id}/logs")).await.json()["logs"].as_array().unwrap().len() == 3
    })
    .await;
    id
}

fn messages(logs: &Value) -> Vec<&str> {
    logs.as_array().unwrap().iter().map(|l| l["message"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn older_logs_come_as_lines_and_entries_oldest_first() {
    let w = World::new().await;
    let id = with_logs(&w).await;
    let body = w.get(&format!("/sandboxes/{id}/logs")).await.json();
    assert_eq!(messages(&body["logEntries"]), ["one", "two Two", "three"]);
    let first: Value = serde_json::from_str(body["logs"][0]["line"].as_str().unwrap()).unwrap();
    assert_eq!(first["level"], "debug");
    assert_eq!(first["logger"], "process");
    assert_eq!(first["message"], "one");
    assert_eq!(first["timestamp"], body["logs"][0]["timestamp"]);
    let from = START.0 + 2000;
    let body = w.get(&format!("/sandboxes/{id}/logs?start={from}&limit=1")).await.json();
    assert_eq!(messages(&body["logEntries"]), ["two Two"]);
    w.get(&format!("/sandboxes/{id}/logs?start=x")).await.error(400);
}

#[tokio::test]
async fn newer_logs_go_both_ways_and_are_filtered() {
    let w = World::new().await;
    let id = with_logs(&w).await;
    let cursor = START.0 + 2000;
    for (query, expected) in [
        ("", vec!["three", "two Two", "one"]),
        ("direction=backward&limit=1", vec!["three"]),
        ("direction=forward", vec!["one", "two Two", "three"]),
        (&format!("cursor={cursor}"), vec!["two Two", "one"]),
        (&format!("cursor={cursor}&direction=forward"), vec!["two Two", "three"]),
        ("level=info", vec!["three", "two Two"]),
        ("level=error", vec!["three"]),
        ("search=Two", vec!["two Two"]),
        ("search=TWO", vec![]),
    ] {
        let body = w.get(&format!("/v2/sandboxes/{id}/logs?{query}")).await.json();
        assert_eq!(messages(&body["logs"]), expected, "{query}");
    }
    for bad in ["direction=up", "level=fatal", "limit=0", "cursor=-1", &format!("search={}", "x".repeat(257))]
    {
        w.get(&format!("/v2/sandboxes/{id}/logs?{bad}")).await.error(400);
    }
}

#[tokio::test]
async fn logs_outlive_their_sandbox_and_tell_its_end() {
    let w = World::new().await;
    let id = with_logs(&w).await;
    assert_eq!(w.delete(&format!("/sandboxes/{id}")).await.status, 204);
    let body = w.get(&format!("/sandboxes/{id}/logs")).await.json();
    assert!(messages(&body["logEntries"]).contains(&"sandbox ended: request"), "{body}");
    w.get("/sandboxes/iunknown12345/logs").await.error(404);
    w.get("/v2/sandboxes/iunknown12345/logs").await.error(404);
}

#[tokio::test]
async fn samples_become_metrics() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    let idle = w.create(json!({})).await;
    let path = format!("/sandboxes/{id}/metrics");
    assert_eq!(w.get(&path).await.json(), json!([]));
    for seconds in [0, 5, 10] {
        let sample = sample(seconds, seconds as u64);
        w.node.report(NodeEvent::Sample { sandbox_id: id.clone(), sample });
    }
    wait_for("the samples", async || w.get(&path).await.json().as_array().unwrap().len() == 3).await;
    let body = w.get(&path).await.json();
    assert_eq!(
        body[1],
        json!({
            "timestamp": Timestamp(START.0 + 5000).to_rfc3339(), "timestampUnix": START.0 / 1000 + 5,
            "cpuCount": 2, "cpuUsedPct": 12.5, "memUsed": 5, "memTotal": 512 << 20, "memCache": 3,
            "diskUsed": 4, "diskTotal": 1 << 30,
        })
    );
    let used = |body: &Value| -> Vec<u64> {
        body.as_array().unwrap().iter().map(|m| m["memUsed"].as_u64().unwrap()).collect()
    };
    let second = |s: i64| START.0 / 1000 + s;
    let range = w.get(&format!("{path}?start={}&end={}", second(1), second(5))).await.json();
    assert_eq!(used(&range), [5]);
    let range = w.get(&format!("{path}?start={}", second(5))).await.json();
    assert_eq!(used(&range), [5, 10]);
    for bad in [format!("start={}&end={}", second(5), second(4)), "start=-1".to_owned(), "end=x".to_owned()] {
        w.get(&format!("{path}?{bad}")).await.error(400);
    }
    w.get("/sandboxes/iunknown12345/metrics").await.error(404);

    let latest =
        w.get(&format!("/sandboxes/metrics?sandbox_ids={id},{idle},iunknown12345,short")).await.json();
    let latest = latest["sandboxes"].as_object().unwrap();
    assert_eq!(latest.len(), 1);
    assert_eq!(latest[id.as_str()]["memUsed"], 10);
}

#[tokio::test]
async fn longer_ranges_have_fewer_samples_with_the_peaks() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    let path = format!("/sandboxes/{id}/metrics");
    // Two hours of a sample every 5 seconds, counted up.
    for n in 0..1441 {
        w.node.report(NodeEvent::Sample { sandbox_id: id.clone(), sample: sample(n * 5, n.unsigned_abs()) });
    }
    let newest = |body: &Value| body.as_array().unwrap().last().map(|m| m["memUsed"].clone());
    wait_for("the samples", async || newest(&w.get(&path).await.json()) == Some(json!(1440))).await;
    let body = w.get(&path).await.json();
    let count = body.as_array().unwrap().len();
    assert!((240..=242).contains(&count), "one for every 30 seconds of two hours, not {count}");
    let second = |s: i64| START.0 / 1000 + s;
    let hour = w.get(&format!("{path}?start={}&end={}", second(0), second(3500))).await.json();
    assert_eq!(hour.as_array().unwrap().len(), 701, "every sample of less than an hour");
    let wide = w.get(&format!("{path}?start=0&end={}", second(3500))).await.json();
    assert_eq!(wide, hour, "what counts is the time that there are samples of");
}

#[tokio::test]
async fn the_latest_metrics_need_between_one_and_a_hundred_ids() {
    let w = World::new().await;
    w.get("/sandboxes/metrics").await.error(400);
    let many = |n: usize| vec!["iabcdefgh12"; n].join(",");
    let text = w.get(&format!("/sandboxes/metrics?sandbox_ids={}", many(101))).await.error(400);
    assert_eq!(text, "Too many sandboxes requested, maximum is 100");
    assert_eq!(w.get(&format!("/sandboxes/metrics?sandbox_ids={}", many(100))).await.status, 200);
    w.get("/sandboxes/metrics?sandbox_ids=a-b-c").await.error(400);
}
