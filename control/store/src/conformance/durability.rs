//! What an answer means.

use hutch_types::SandboxState as S;
use hutch_types::{KillReason, SandboxId};

use super::Subject;
use super::fixture::{at, build, default_team, in_state, key, new_sandbox, run, template};
use super::idempotency::claim;
use super::telemetry::{ROOM, line, sample};
use crate::{IdempotencyClaim, IdempotencyRecord, LogQuery, SortOrder};

pub(super) async fn a_second_handle_sees_what_was_acknowledged(subject: &dyn Subject) {
    let store = subject.open().await;
    let elsewhere = subject.open().await;
    let team = default_team(&*store).await;
    assert_eq!(default_team(&*elsewhere).await, team);
    for n in 0..20 {
        let id = run(&*store, new_sandbox(team), 0, 1000 + n).await;
        assert_eq!(elsewhere.sandbox(&id).await.unwrap(), store.sandbox(&id).await.unwrap());
        elsewhere.set_end_at(&id, at(5000 + n), true).await.unwrap();
        assert_eq!(store.sandbox(&id).await.unwrap().end_at, at(5000 + n));
    }
}

/// The first handle is dropped as a crash would: nothing is closed or flushed.
pub(super) async fn what_was_acknowledged_is_there_after_reopening(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = store.default_team(at(0)).await.unwrap();
    let k = key(team.id, "ci", "h");
    store.insert_api_key(k.clone()).await.unwrap();
    let t = template(team.id, &["py", "python"]);
    store.upsert_template(t.clone()).await.unwrap();
    let b = build(&t.id, "ready", 1);
    store.insert_build(b.clone(), &["default".to_owned()]).await.unwrap();
    let mut running = Vec::new();
    for n in 0..50 {
        let id = run(&*store, new_sandbox(team.id), n, 1000 + n).await;
        running.push(store.sandbox(&id).await.unwrap());
    }
    let gone = in_state(&*store, team.id, S::Running).await;
    store.end_sandbox(&gone, S::Gone, KillReason::Died, at(9)).await.unwrap();
    claim(&*store, team.id, "k", "f", 0).await;
    let answer = IdempotencyRecord { status: 201, body: "{}".to_owned() };
    store.finish_idempotency(team.id, "k", answer.clone()).await.unwrap();
    let id = SandboxId::random();
    store.insert_metrics(&[sample(&id, 1)]).await.unwrap();
    store.insert_logs(&[line(&id, 1, "info", "hello")], ROOM).await.unwrap();
    drop(store);

    let store = subject.open().await;
    assert_eq!(store.default_team(at(77)).await.unwrap(), team);
    assert_eq!(store.api_key_by_hash("h").await.unwrap(), k);
    assert_eq!(store.find_template(team.id, "python").await.unwrap().id, t.id);
    assert_eq!(store.build_by_tag(&t.id, "default").await.unwrap(), b);
    assert_eq!(store.live_sandboxes().await.unwrap(), running);
    assert_eq!(store.sandbox(&gone).await.unwrap().ended, Some((at(9), KillReason::Died)));
    assert_eq!(claim(&*store, team.id, "k", "f", 1).await, IdempotencyClaim::Answered(answer));
    assert_eq!(store.metrics(&id, None, None, 1).await.unwrap(), [sample(&id, 1)]);
    let query = LogQuery {
        sandbox: id.clone(),
        cursor: None,
        order: SortOrder::Asc,
        min_level: None,
        search: None,
        limit: 10,
    };
    assert_eq!(store.logs(query).await.unwrap(), [line(&id, 1, "info", "hello")]);
}

pub(super) async fn an_abandoned_call_leaves_the_store_usable(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    for polls in 0..20 {
        let new = new_sandbox(team);
        {
            let call = store.insert_sandbox(new.clone(), Some(1000));
            tokio::pin!(call);
            for _ in 0..polls {
                tokio::select! {
                    biased;
                    _ = &mut call => break,
                    () = tokio::task::yield_now() => {}
                }
            }
        }
        // Whatever became of it, it is one of two things, and stays so.
        let before = store.sandbox(&new.id).await.is_ok();
        let id = run(&*store, new_sandbox(team), 0, 1000).await;
        assert_eq!(store.sandbox(&id).await.unwrap().state, S::Running);
        let after = store.sandbox(&new.id).await.is_ok();
        assert!(after || !before);
    }
}
