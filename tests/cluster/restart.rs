//! The daemon ends and another one takes over.

use std::time::Duration;

use http::Method;
use hutch_runtime_fake::{Fault, Step};
use serde_json::json;

use crate::world::{Settings, World, wait_for};

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_survive_a_crash_with_their_leases_and_tokens() {
    let mut w = World::with(Settings { pool: 2, ..Settings::default() }).await;
    w.fill_pool(2).await;
    let sandboxes =
        [w.create(json!({})).await, w.create(json!({ "timeout": 1000 })).await, w.create(json!({})).await];
    for sandbox in &sandboxes {
        w.run(sandbox, &format!("echo {} > $HOME/mine", sandbox.id)).await;
    }
    let detail = async |w: &World, n: usize| {
        w.get(&format!("/sandboxes/{}", sandboxes[n].id)).await.expect(200).json()
    };
    let before = detail(&w, 1).await;
    let mut listed = w.listed().await;
    listed.sort();

    for clean in [false, true] {
        if clean {
            w.shut_down().await;
        } else {
            w.crash().await;
        }
        w.boot().await;
        let mut now = w.listed().await;
        now.sort();
        assert_eq!(now, listed);
        assert_eq!(detail(&w, 1).await, before);
        for sandbox in &sandboxes {
            assert_eq!(w.run(sandbox, "cat $HOME/mine").await, format!("{}\n", sandbox.id));
        }
    }
    for sandbox in &sandboxes {
        w.delete(&format!("/sandboxes/{}", sandbox.id)).await.expect(204);
        wait_for("the instance to go", async || !w.has_instance(sandbox)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_did_not_survive_is_told_and_cleared_away() {
    let mut w = World::new().await;
    let (kept, died, lost) =
        (w.create(json!({})).await, w.create(json!({})).await, w.create(json!({})).await);
    let instance = |w: &World, id: &str| w.kernel.labelled("hutch.sandbox", id).remove(0);
    let (dead, unusable) = (instance(&w, died.id.as_str()), instance(&w, lost.id.as_str()));
    w.crash().await;
    w.kernel.die(&dead).await;
    w.kernel.lose(&unusable, "its disk is gone");
    w.boot().await;
    assert_eq!(w.listed().await, std::slice::from_ref(&kept.id));
    for gone in [&died, &lost] {
        assert!(!w.is_found(gone).await);
        w.envd(gone, "/health").await.expect(502);
    }
    assert_eq!(w.run(&kept, "echo on").await, "on\n");
    wait_for("the rest to go", async || w.kernel.instances().len() == 1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_ended_meanwhile_are_enforced_at_the_start() {
    let mut w = World::new().await;
    let short = w.create(json!({ "timeout": 60 })).await;
    let long = w.create(json!({ "timeout": 600 })).await;
    w.crash().await;
    w.clock.advance(Duration::from_secs(61));
    assert!(w.has_instance(&short), "nobody ends it meanwhile");
    w.boot().await;
    let begun = std::time::Instant::now();
    wait_for("its end", async || !w.is_found(&short).await && !w.has_instance(&short)).await;
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert_eq!(w.listed().await, std::slice::from_ref(&long.id));
    w.clock.advance(Duration::from_secs(540));
    wait_for("the other's end", async || !w.has_instance(&long)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_that_was_begun_is_finished_by_the_next_daemon() {
    let mut w = World::new().await;
    let sandbox = w.create(json!({})).await;
    w.kernel.inject(Step::Kill, Fault::Stall);
    let path = format!("/sandboxes/{}", sandbox.id);
    {
        let kill = w.call(Method::DELETE, &path, None);
        tokio::pin!(kill);
        tokio::select! {
            reply = &mut kill => assert_eq!(reply.status, 204),
            () = wait_for("the API to forget it", async || !w.is_found(&sandbox).await) => {}
        }
    }
    w.crash().await;
    assert!(w.has_instance(&sandbox));
    w.kernel.clear(Step::Kill);
    w.boot().await;
    assert!(!w.is_found(&sandbox).await);
    wait_for("its end", async || w.kernel.instances().is_empty()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_create_that_was_cut_leaves_no_ghost() {
    let mut w = World::new().await;
    w.kernel.inject(Step::Network, Fault::Stall);
    {
        let create = w.try_create(json!({}));
        tokio::pin!(create);
        tokio::select! {
            reply = &mut create => panic!("it cannot be done yet: {reply:?}"),
            () = wait_for("the boot", async || !w.kernel.instances().is_empty()) => {}
        }
    }
    w.crash().await;
    w.kernel.clear(Step::Network);
    w.boot().await;
    assert_eq!(w.listed().await, []);
    wait_for("its end", async || w.kernel.instances().is_empty()).await;
    w.create(json!({})).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sandboxes_that_no_record_knows_are_destroyed() {
    let mut w = World::new().await;
    let sandbox = w.create(json!({})).await;
    w.shut_down().await;
    w.forget_everything();
    w.boot().await;
    wait_for("its end", async || w.kernel.instances().is_empty()).await;
    assert!(!w.has_instance(&sandbox));
}
