//! Idempotency keys.

use hutch_types::{TeamId, Timestamp};

use super::Subject;
use super::fixture::{assert_conflict, assert_not_found, at, default_team, other_team};
use crate::{IdempotencyClaim as Claim, IdempotencyRecord, Store};

const DAY: i64 = 24 * 60 * 60 * 1000;

/// Claims `key` at `now_ms` for a minute.
pub(super) async fn claim(store: &dyn Store, team: TeamId, key: &str, print: &str, now_ms: i64) -> Claim {
    let now = at(now_ms);
    store.claim_idempotency(team, key, print, now, Timestamp(now.0 + 60_000)).await.unwrap()
}

fn answer(status: u16, body: &str) -> IdempotencyRecord {
    IdempotencyRecord { status, body: body.to_owned() }
}

pub(super) async fn a_key_is_claimed_answered_and_replayed(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    assert_eq!(claim(&*store, team, "k", "f", 0).await, Claim::Claimed);
    assert_eq!(claim(&*store, team, "k", "f", 1).await, Claim::InProgress);
    let first = answer(201, "{\"sandboxID\":\"ä\"}");
    store.finish_idempotency(team, "k", first.clone()).await.unwrap();
    for ms in [2, 60_001, DAY - 1] {
        assert_eq!(claim(&*store, team, "k", "f", ms).await, Claim::Answered(first.clone()));
    }
    assert_conflict(store.finish_idempotency(team, "k", answer(500, "")).await);
    assert_eq!(claim(&*store, team, "k", "f", 3).await, Claim::Answered(first));
    assert_not_found(store.finish_idempotency(team, "other", answer(201, "")).await);
}

pub(super) async fn another_request_with_the_key_is_a_mismatch(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    claim(&*store, team, "k", "f", 0).await;
    assert_eq!(claim(&*store, team, "k", "g", 1).await, Claim::Mismatch);
    assert_eq!(claim(&*store, team, "k", "g", 60_001).await, Claim::Mismatch);
    store.finish_idempotency(team, "k", answer(201, "")).await.unwrap();
    assert_eq!(claim(&*store, team, "k", "g", 2).await, Claim::Mismatch);
}

pub(super) async fn a_claim_that_ran_out_is_an_unknown_outcome(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    claim(&*store, team, "k", "f", 0).await;
    assert_eq!(claim(&*store, team, "k", "f", 59_999).await, Claim::InProgress);
    assert_eq!(claim(&*store, team, "k", "f", 60_000).await, Claim::OutcomeUnknown);
    store.finish_idempotency(team, "k", answer(201, "late")).await.unwrap();
    assert_eq!(claim(&*store, team, "k", "f", 60_002).await, Claim::Answered(answer(201, "late")));
}

pub(super) async fn a_released_key_can_be_claimed_again(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    claim(&*store, team, "k", "f", 0).await;
    store.release_idempotency(team, "k").await.unwrap();
    assert_eq!(claim(&*store, team, "k", "g", 1).await, Claim::Claimed);
    store.finish_idempotency(team, "k", answer(201, "")).await.unwrap();
    store.release_idempotency(team, "k").await.unwrap();
    assert_eq!(claim(&*store, team, "k", "g", 2).await, Claim::Answered(answer(201, "")), "an answer stays");
    store.release_idempotency(team, "never claimed").await.unwrap();
}

pub(super) async fn keys_are_forgotten_after_a_day(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    claim(&*store, team, "k", "f", 0).await;
    store.finish_idempotency(team, "k", answer(201, "")).await.unwrap();
    assert_eq!(claim(&*store, team, "k", "g", DAY - 1).await, Claim::Mismatch);
    assert_eq!(claim(&*store, team, "k", "g", DAY).await, Claim::Claimed);
}

pub(super) async fn keys_belong_to_a_team(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    assert_eq!(claim(&*store, team, "k", "f", 0).await, Claim::Claimed);
    assert_eq!(claim(&*store, other, "k", "g", 0).await, Claim::Claimed);
    store.finish_idempotency(other, "k", answer(201, "theirs")).await.unwrap();
    assert_eq!(claim(&*store, team, "k", "f", 1).await, Claim::InProgress);
    let nobody = TeamId::random();
    assert_not_found(store.claim_idempotency(nobody, "k", "f", at(0), at(1)).await);
}
