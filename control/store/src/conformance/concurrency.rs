//! What holds when many ask at the same time, through one handle and through two.

use std::future::Future;
use std::sync::Arc;

use hutch_types::SandboxState as S;
use hutch_types::{KillReason, SandboxId};
use tokio::task::JoinSet;

use super::Subject;
use super::fixture::{at, default_team, everything, in_state, listed, new_sandbox, run};
use super::idempotency::claim;
use crate::{CreateOutcome, IdempotencyClaim, Store, StoreError};

/// Runs `n` calls at once, every other one on a handle of its own.
async fn at_once<T, F, Fut>(subject: &dyn Subject, n: usize, call: F) -> Vec<T>
where
    T: Send + 'static,
    F: Fn(Arc<dyn Store>, usize) -> Fut,
    Fut: Future<Output = T> + Send + 'static,
{
    let handles = [subject.open().await, subject.open().await];
    let mut calls = JoinSet::new();
    for i in 0..n {
        calls.spawn(call(Arc::clone(&handles[i % 2]), i));
    }
    calls.join_all().await
}

pub(super) async fn twenty_creates_at_a_limit_of_five_give_five(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let outcomes = at_once(subject, 20, |store, _| async move {
        let new = new_sandbox(team);
        let outcome = store.insert_sandbox(new.clone(), Some(5)).await.unwrap();
        if outcome == CreateOutcome::Created {
            store.mark_running(&new.id, at(1), at(1000), "v", "container").await.unwrap();
        }
        outcome
    })
    .await;
    assert_eq!(outcomes.iter().filter(|o| **o == CreateOutcome::Created).count(), 5, "{outcomes:?}");
    assert_eq!(outcomes.iter().filter(|o| **o == CreateOutcome::LimitReached(5)).count(), 15);
    assert_eq!(listed(&*store, everything(team)).await.len(), 5);
}

pub(super) async fn one_of_ten_claims_wins(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let claims =
        at_once(subject, 10, |store, _| async move { claim(&*store, team, "k", "f", 0).await }).await;
    assert_eq!(claims.iter().filter(|c| **c == IdempotencyClaim::Claimed).count(), 1, "{claims:?}");
    assert_eq!(claims.iter().filter(|c| **c == IdempotencyClaim::InProgress).count(), 9);
}

pub(super) async fn one_of_ten_ends_wins(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let id = in_state(&*store, team, S::Running).await;
    let ends = at_once(subject, 10, |store, n| {
        let id = id.clone();
        async move {
            store.end_sandbox(&id, S::Gone, KillReason::Request, at(i64::try_from(n).unwrap())).await.unwrap()
        }
    })
    .await;
    assert_eq!(ends.iter().filter(|won| **won).count(), 1);
}

pub(super) async fn one_of_ten_moves_wins(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let id = in_state(&*store, team, S::Running).await;
    let moves = at_once(subject, 10, |store, _| {
        let id = id.clone();
        async move { store.move_sandbox(&id, &[S::Running], S::Pausing).await }
    })
    .await;
    assert_eq!(moves.iter().filter(|m| m.is_ok()).count(), 1);
    assert_eq!(
        moves.iter().filter(|m| matches!(m, Err(StoreError::Conflict { .. }))).count(),
        9,
        "{moves:?}"
    );
}

pub(super) async fn a_failing_write_takes_back_only_itself(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let taken = new_sandbox(team);
    run(&*store, taken.clone(), 0, 1000).await;
    let created = at_once(subject, 40, |store, n| {
        let new = if n % 2 == 0 { taken.clone() } else { new_sandbox(team) };
        async move { store.insert_sandbox(new.clone(), None).await.is_ok().then_some(new.id) }
    })
    .await;
    let created: Vec<SandboxId> = created.into_iter().flatten().collect();
    assert_eq!(created.len(), 20);
    for id in &created {
        assert_eq!(store.sandbox(id).await.unwrap().state, S::Creating);
    }
    assert_eq!(store.sandbox(&taken.id).await.unwrap().state, S::Running);
}
