//! One sandbox from its creation to its end.

use hutch_runtime::InstanceStats;
use serde_json::json;

use crate::world::{Settings, World, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_is_created_runs_a_command_and_is_killed() {
    let w = World::new().await;
    let sandbox = w.create(json!({ "envVars": { "GREETING": "hello" }, "metadata": { "a": "b" } })).await;
    let script = "echo $GREETING from $E2B_SANDBOX_ID in $E2B_TEMPLATE_ID";
    let detail = w.get(&format!("/sandboxes/{}", sandbox.id)).await.expect(200).json();
    let said = w.run(&sandbox, script).await;
    assert_eq!(said, format!("hello from {} in {}\n", sandbox.id, detail["templateID"].as_str().unwrap()));
    assert_eq!((&detail["state"], &detail["metadata"]["a"]), (&json!("running"), &json!("b")));
    assert_eq!(w.listed().await, std::slice::from_ref(&sandbox.id));
    w.envd(&sandbox, "/health").await.expect(204);

    w.delete(&format!("/sandboxes/{}", sandbox.id)).await.expect(204);
    assert_eq!(w.listed().await, []);
    let gone = w.envd(&sandbox, "/health").await.expect(502).json();
    assert_eq!(gone["message"], "The sandbox was not found");
    wait_for("the instance to go", async || w.kernel.instances().is_empty()).await;
    w.delete(&format!("/sandboxes/{}", sandbox.id)).await.expect(404);
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_from_the_pool_have_names_tokens_and_environments_of_their_own() {
    let w = World::with(Settings { pool: 2, ..Settings::default() }).await;
    w.fill_pool(2).await;
    let a = w.create(json!({ "envVars": { "WHO": "a" } })).await;
    let b = w.create(json!({ "envVars": { "WHO": "b" }, "allow_internet_access": false })).await;
    assert_ne!(a.token, b.token);
    for (sandbox, who) in [(&a, "a"), (&b, "b")] {
        assert_eq!(w.run(sandbox, "echo $WHO $E2B_SANDBOX_ID").await, format!("{who} {}\n", sandbox.id));
    }
    let view = |s: &crate::world::Sandbox| {
        w.kernel.view(&w.kernel.labelled("hutch.sandbox", s.id.as_str())[0]).unwrap()
    };
    assert_ne!(view(&a).hostname, view(&b).hostname);
    assert!(view(&a).network.unwrap().allow_internet_access);
    assert!(!view(&b).network.unwrap().allow_internet_access);
    // A token opens its own sandbox alone.
    let stranger = crate::world::Sandbox { id: a.id.clone(), token: b.token.clone() };
    w.envd(&stranger, "/envs").await.expect(401);
    w.envd(&a, "/envs").await.expect(200);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sandbox_that_dies_by_itself_is_told_as_gone() {
    let w = World::new().await;
    let sandbox = w.create(json!({})).await;
    let instance = w.kernel.labelled("hutch.sandbox", sandbox.id.as_str()).remove(0);
    w.kernel.die(&instance).await;
    wait_for("the API to know", async || !w.is_found(&sandbox).await).await;
    wait_for("the clean-up", async || w.kernel.instances().is_empty()).await;
    w.envd(&sandbox, "/health").await.expect(502);
}

#[tokio::test(flavor = "multi_thread")]
async fn figures_and_log_lines_travel_from_the_node_to_the_api() {
    let w = World::new().await;
    let sandbox = w.create(json!({})).await;
    let instance = w.kernel.labelled("hutch.sandbox", sandbox.id.as_str()).remove(0);
    let stats = InstanceStats {
        memory_used_bytes: 12_345_678,
        disk_total_bytes: 1 << 30,
        ..InstanceStats::default()
    };
    w.kernel.set_stats(&instance, stats);
    let metrics = format!("/sandboxes/{}/metrics", sandbox.id);
    wait_for("a sample", async || {
        let samples = w.get(&metrics).await.expect(200).json();
        samples.as_array().unwrap().iter().any(|s| s["memUsed"] == 12_345_678 && s["diskTotal"] == 1 << 30)
    })
    .await;
    w.run(&sandbox, "echo something to tell about").await;
    let logs = format!("/v2/sandboxes/{}/logs", sandbox.id);
    wait_for("log lines", async || {
        !w.get(&logs).await.expect(200).json()["logs"].as_array().unwrap().is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_lease_is_the_end_of_a_sandbox() {
    let w = World::new().await;
    let short = w.create(json!({ "timeout": 60 })).await;
    let long = w.create(json!({ "timeout": 120 })).await;
    w.clock.advance(std::time::Duration::from_secs(59));
    assert!(w.is_found(&short).await);
    w.clock.advance(std::time::Duration::from_secs(1));
    wait_for("its end", async || !w.is_found(&short).await && !w.has_instance(&short)).await;
    assert_eq!(w.run(&long, "echo on").await, "on\n");
}
