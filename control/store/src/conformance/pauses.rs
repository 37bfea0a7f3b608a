//! Pausing and resuming.

use hutch_types::SandboxState as S;
use hutch_types::{KillReason, PauseMode, SandboxId, Timestamp};

use super::Subject;
use super::fixture::{
    assert_conflict, assert_not_found, at, default_team, ids, in_state, insert, new_sandbox, run,
};
use crate::{ResumeOutcome, Store};

const ALL: [S; 7] =
    [S::Creating, S::Running, S::Pausing, S::Paused, S::Resuming, S::Snapshotting, S::Killing];

/// Stores a sandbox that ran from 0 to 60000 and is paused since 1000.
async fn paused(store: &dyn Store, mode: PauseMode) -> SandboxId {
    let team = default_team(store).await;
    let id = in_state(store, team, S::Running).await;
    store.begin_pause(&id, mode, at(1000)).await.unwrap();
    store.mark_paused(&id, &[S::Pausing], mode, at(1500)).await.unwrap();
    id
}

pub(super) async fn a_pause_is_begun_done_and_remembered(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    for mode in [PauseMode::Full, PauseMode::Filesystem] {
        let id = in_state(&*store, team, S::Running).await;
        assert_eq!(store.sandbox(&id).await.unwrap().paused, None);
        let pausing = store.begin_pause(&id, mode, at(1000)).await.unwrap();
        assert_eq!((pausing.state, pausing.paused), (S::Pausing, Some((mode, at(1000)))));
        assert_eq!(store.sandbox(&id).await.unwrap(), pausing);
        assert_conflict(store.begin_pause(&id, mode, at(1001)).await);
        let paused = store.mark_paused(&id, &[S::Pausing], PauseMode::Filesystem, at(9000)).await.unwrap();
        let saved = Some((PauseMode::Filesystem, at(1000)));
        assert_eq!((paused.state, paused.paused), (S::Paused, saved), "since it began");
        assert_eq!((paused.started_at, paused.end_at), (at(0), at(60_000)));
        assert_eq!(store.sandbox(&id).await.unwrap(), paused);
        assert_conflict(store.begin_pause(&id, mode, at(1002)).await);
        assert_conflict(store.mark_paused(&id, &[S::Pausing], mode, at(9000)).await);
    }
    let seen = in_state(&*store, team, S::Running).await;
    let found = store.mark_paused(&seen, &[S::Running], PauseMode::Full, at(70)).await.unwrap();
    assert_eq!(found.paused, Some((PauseMode::Full, at(70))), "one that nobody had begun");
}

pub(super) async fn only_what_runs_is_paused(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    for state in ALL {
        let id = in_state(&*store, team, state).await;
        let begun = store.begin_pause(&id, PauseMode::Full, at(1)).await;
        if state.is_shown_running() {
            assert_eq!(begun.unwrap().state, S::Pausing, "{state}");
        } else {
            assert_conflict(begun);
            assert_eq!(store.sandbox(&id).await.unwrap().state, state);
        }
    }
    let id = SandboxId::random();
    assert_not_found(store.begin_pause(&id, PauseMode::Full, at(1)).await);
    assert_not_found(store.abort_pause(&id, at(1), at(1)).await);
    assert_not_found(store.mark_paused(&id, &ALL, PauseMode::Full, at(1)).await);
    assert_not_found(store.begin_resume(&id, at(1), Some(1)).await);
    assert_not_found(store.mark_resumed(&id, at(1), at(2), "v", "i", None).await);
    let gone = in_state(&*store, team, S::Running).await;
    store.end_sandbox(&gone, S::Gone, KillReason::Request, at(1)).await.unwrap();
    assert_not_found(store.begin_pause(&gone, PauseMode::Full, at(1)).await);
    assert_not_found(store.mark_paused(&gone, &[S::Gone], PauseMode::Full, at(1)).await);
}

pub(super) async fn a_pause_that_failed_costs_no_lease(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    for (end, now, at_least, expected) in [
        (60_000, 3000, 0, 62_000),
        (60_000, 500, 0, 60_000), // A clock that went back takes nothing away.
        (1500, 3000, 5000, 5000),
    ] {
        let id = run(&*store, new_sandbox(team), 0, end).await;
        store.begin_pause(&id, PauseMode::Full, at(1000)).await.unwrap();
        let back = store.abort_pause(&id, at(now), at(at_least)).await.unwrap();
        assert_eq!((back.state, back.paused, back.end_at), (S::Running, None, at(expected)));
        assert_eq!(store.sandbox(&id).await.unwrap(), back);
        assert_conflict(store.abort_pause(&id, at(now), at(at_least)).await);
    }
    let forever = in_state(&*store, team, S::Running).await;
    store.set_end_at(&forever, Timestamp(i64::MAX), false).await.unwrap();
    store.begin_pause(&forever, PauseMode::Full, at(1000)).await.unwrap();
    assert_eq!(store.abort_pause(&forever, at(2000), at(0)).await.unwrap().end_at, Timestamp(i64::MAX));
}

pub(super) async fn a_resumed_sandbox_begins_a_new_run(subject: &dyn Subject) {
    let store = subject.open().await;
    let id = paused(&*store, PauseMode::Full).await;
    let begun = store.begin_resume(&id, at(90_000), None).await.unwrap();
    let ResumeOutcome::Begun(resuming) = begun else { panic!("{begun:?}") };
    assert_eq!((resuming.state, resuming.started_at, resuming.end_at), (S::Resuming, at(0), at(90_000)));
    assert_eq!(resuming.paused, Some((PauseMode::Full, at(1000))));
    assert_conflict(store.begin_resume(&id, at(90_000), None).await);
    let back = store.mark_paused(&id, &[S::Resuming], PauseMode::Filesystem, at(7000)).await.unwrap();
    assert_eq!((back.state, back.paused), (S::Paused, Some((PauseMode::Filesystem, at(1000)))));
    assert_conflict(store.mark_resumed(&id, at(1), at(2), "v", "i", None).await);
    store.begin_resume(&id, at(90_000), None).await.unwrap();
    let running = store.mark_resumed(&id, at(80_000), at(99_000), "0.7.0", "microvm", None).await.unwrap();
    assert_eq!((running.state, running.paused), (S::Running, None));
    assert_eq!((running.started_at, running.end_at), (at(80_000), at(99_000)));
    assert_eq!((running.envd_version.as_str(), running.isolation.as_str()), ("0.7.0", "microvm"));
    assert_eq!(running.asked, resuming.asked, "what was asked for does not change");
    assert_eq!(store.sandbox(&id).await.unwrap(), running);
    assert_conflict(store.mark_resumed(&id, at(1), at(2), "v", "i", None).await);
}

pub(super) async fn what_happens_at_the_end_of_the_lease_is_remembered(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let (full, files) = (Some(PauseMode::Full), Some(PauseMode::Filesystem));
    for (before, change, after) in [
        (None, None, None),
        (None, Some(true), full),
        (None, Some(false), None),
        (full, None, full),
        (files, None, files),
        (files, Some(true), files),
        (files, Some(false), None),
    ] {
        let mut new = new_sandbox(team);
        new.auto_pause = before;
        let id = insert(&*store, new).await;
        let ran = store.mark_running(&id, at(0), at(1000), "v", "container").await.unwrap();
        assert_eq!(ran.asked.auto_pause, before);
        store.mark_paused(&id, &[S::Running], PauseMode::Full, at(1)).await.unwrap();
        store.begin_resume(&id, at(2000), None).await.unwrap();
        let again = store.mark_resumed(&id, at(2), at(2000), "v", "container", change).await.unwrap();
        assert_eq!(again.asked.auto_pause, after, "{before:?} {change:?}");
        assert_eq!(store.sandbox(&id).await.unwrap(), again);
    }
}

pub(super) async fn a_resume_needs_a_free_place(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let id = paused(&*store, PauseMode::Full).await;
    let other = in_state(&*store, team, S::Running).await;
    let refused = store.begin_resume(&id, at(90_000), Some(1)).await.unwrap();
    assert_eq!(refused, ResumeOutcome::LimitReached(1));
    assert_eq!(store.sandbox(&id).await.unwrap().state, S::Paused);
    assert_conflict(store.begin_resume(&other, at(90_000), Some(1)).await);
    let begun = store.begin_resume(&id, at(90_000), Some(2)).await.unwrap();
    assert!(matches!(begun, ResumeOutcome::Begun(_)), "{begun:?}");
}

pub(super) async fn paused_sandboxes_are_found_whatever_the_team(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    for state in ALL {
        in_state(&*store, team, state).await;
    }
    let id = paused(&*store, PauseMode::Full).await;
    let gone = paused(&*store, PauseMode::Full).await;
    store.end_sandbox(&gone, S::Gone, KillReason::Request, at(5)).await.unwrap();
    let found = ids(store.paused_sandboxes().await.unwrap());
    assert_eq!((found.len(), found.contains(&id)), (2, true));
}

pub(super) async fn the_clock_moves_pauses_along(subject: &dyn Subject) {
    let store = subject.open().await;
    let id = paused(&*store, PauseMode::Full).await;
    store.shift_leases(500).await.unwrap();
    assert_eq!(store.sandbox(&id).await.unwrap().paused, Some((PauseMode::Full, at(1500))));
}
