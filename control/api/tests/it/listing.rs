use std::time::Duration;

use hutch_types::SandboxId;
use serde_json::{Value, json};

use crate::world::{START, World, add_template};

fn ids(list: &Value) -> Vec<SandboxId> {
    list.as_array()
        .expect("a list")
        .iter()
        .map(|s| s["sandboxID"].as_str().unwrap().parse().unwrap())
        .collect()
}

/// Sandboxes that start a second apart, oldest first.
async fn some(w: &World, n: usize) -> Vec<SandboxId> {
    let mut created = Vec::new();
    for _ in 0..n {
        created.push(w.create(json!({ "timeout": 3600 })).await);
        w.clock.advance(Duration::from_secs(1));
    }
    created
}

#[tokio::test]
async fn a_list_is_newest_first_unless_said_otherwise() {
    let w = World::new().await;
    let mut created = some(&w, 3).await;
    assert_eq!(ids(&w.get("/v2/sandboxes?order=asc").await.json()), created);
    created.reverse();
    let reply = w.get("/v2/sandboxes").await;
    assert_eq!(ids(&reply.json()), created);
    assert_eq!(reply.header("x-total-running"), Some("3"));
    assert_eq!(reply.header("x-next-token"), None);
    assert_eq!(ids(&w.get("/sandboxes").await.json()), created);
    assert!(w.get("/v2/sandboxes?order=up").await.error(400).starts_with("Invalid order parameter"));
}

#[tokio::test]
async fn a_row_has_what_clients_need_and_no_token() {
    let w = World::new().await;
    let id = w.create(json!({ "timeout": 60 })).await;
    let list = w.get("/v2/sandboxes").await.json();
    let row = &list[0];
    assert_eq!(row["sandboxID"], id.as_str());
    assert_eq!(row["state"], "running");
    assert_eq!(row["alias"], "base");
    assert_eq!(row["metadata"], json!({}));
    assert_eq!(row["startedAt"], START.to_rfc3339());
    for needed in ["templateID", "clientID", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "envdVersion"] {
        assert!(row.get(needed).is_some_and(|v| !v.is_null()), "{needed}");
    }
    assert_eq!(row.get("envdAccessToken"), None);
}

#[tokio::test]
async fn pages_follow_one_another_without_gaps() {
    let w = World::new().await;
    let created = some(&w, 5).await;
    for order in ["asc", "desc"] {
        let mut seen = Vec::new();
        let mut token = String::new();
        loop {
            let reply = w.get(&format!("/v2/sandboxes?order={order}&limit=2{token}")).await;
            seen.extend(ids(&reply.json()));
            assert_eq!(reply.header("x-total-running"), Some("5"));
            match reply.header("x-next-token") {
                Some(next) => token = format!("&nextToken={next}"),
                None => break,
            }
            assert!(seen.len() < 10);
        }
        if order == "desc" {
            seen.reverse();
        }
        assert_eq!(seen, created, "{order}");
    }
}

#[tokio::test]
async fn a_page_token_is_bound_to_its_order() {
    let w = World::new().await;
    some(&w, 2).await;
    let reply = w.get("/v2/sandboxes?limit=1").await;
    let token = reply.header("x-next-token").unwrap();
    assert_eq!(w.get(&format!("/v2/sandboxes?limit=1&nextToken={token}")).await.status, 200);
    let text = w.get(&format!("/v2/sandboxes?limit=1&order=asc&nextToken={token}")).await.error(400);
    assert_eq!(text, "Invalid next token");
    assert_eq!(w.get("/v2/sandboxes?nextToken=zzz").await.error(400), "Invalid next token");
}

#[tokio::test]
async fn page_sizes_are_checked() {
    let w = World::new().await;
    for bad in ["0", "-1", "x"] {
        w.get(&format!("/v2/sandboxes?limit={bad}")).await.error(400);
    }
    assert_eq!(w.get("/v2/sandboxes?limit=1000").await.status, 200);
}

#[tokio::test]
async fn states_come_in_both_forms() {
    let w = World::new().await;
    let id = w.create(json!({})).await;
    for query in
        ["state=running", "state=running,paused", "state=running%2Cpaused", "state=running&state=paused", ""]
    {
        let reply = w.get(&format!("/v2/sandboxes?{query}")).await;
        assert_eq!(ids(&reply.json()), std::slice::from_ref(&id), "{query}");
        assert_eq!(reply.header("x-total-running"), Some("1"), "{query}");
    }
    let reply = w.get("/v2/sandboxes?state=paused").await;
    assert_eq!(reply.json(), json!([]));
    assert_eq!(reply.header("x-total-running"), None);
    w.get("/v2/sandboxes?state=dead").await.error(400);
}

#[tokio::test]
async fn metadata_selects_with_its_triple_encoding() {
    let w = World::new().await;
    let id = w.create(json!({ "metadata": { "a&b": "c d=", "x": "1" } })).await;
    w.create(json!({ "metadata": { "x": "1" } })).await;
    w.create(json!({})).await;
    for path in ["/v2/sandboxes", "/sandboxes"] {
        // As sent by Python and JavaScript.
        let reply = w.get(&format!("{path}?metadata=a%252526b%3Dc%252520d%25253D")).await;
        assert_eq!(ids(&reply.json()), std::slice::from_ref(&id), "{path}");
        let both = w.get(&format!("{path}?metadata=a%252526b%3Dc%252520d%25253D%26x%3D1")).await;
        assert_eq!(ids(&both.json()), std::slice::from_ref(&id), "{path}");
        assert_eq!(ids(&w.get(&format!("{path}?metadata=x%3D1")).await.json()).len(), 2);
        assert_eq!(w.get(&format!("{path}?metadata=x%3D2")).await.json(), json!([]));
        w.get(&format!("{path}?metadata=x")).await.error(400);
    }
    let reply = w.get("/v2/sandboxes?metadata=x%3D1&limit=1").await;
    assert_eq!(reply.header("x-total-running"), Some("2"));
}

#[tokio::test]
async fn started_after_is_inclusive() {
    let w = World::new().await;
    let created = some(&w, 3).await;
    let at = START.plus(Duration::from_secs(1));
    for text in [at.to_rfc3339(), "2026-01-02T04:04:06%2B01:00".to_owned()] {
        let reply = w.get(&format!("/v2/sandboxes?order=asc&startedAfter={text}")).await;
        assert_eq!(ids(&reply.json()), created[1..], "{text}");
    }
    w.get("/v2/sandboxes?startedAfter=yesterday").await.error(400);
}

#[tokio::test]
async fn a_template_selects_by_id_or_name() {
    let w = World::new().await;
    add_template(&*w.store, w.team, "othertemplateid00000", "other", false).await;
    let id = w.create(json!({ "templateID": "other" })).await;
    w.create(json!({})).await;
    let slug = w.store_slug().await;
    for text in ["other", "othertemplateid00000", "OTHER", &format!("{slug}%2Fother")] {
        let reply = w.get(&format!("/v2/sandboxes?template={text}")).await;
        assert_eq!(ids(&reply.json()), std::slice::from_ref(&id), "{text}");
        assert_eq!(reply.header("x-total-running"), Some("1"));
    }
    assert_eq!(w.get("/v2/sandboxes?template=unknown").await.json(), json!([]));
    w.get("/v2/sandboxes?template=other:v1").await.error(400);
}
