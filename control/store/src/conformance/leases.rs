//! Deadlines.

use hutch_types::SandboxState as S;
use hutch_types::{KillReason, Timestamp};

use super::Subject;
use super::fixture::{
    assert_conflict, assert_not_found, at, default_team, ids, in_state, insert, new_sandbox, run,
};

pub(super) async fn a_deadline_moves_only_while_it_runs(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    for state in [S::Running, S::Snapshotting] {
        let id = in_state(&*store, team, state).await;
        let s = store.set_end_at(&id, at(5), false).await.unwrap();
        assert_eq!((s.end_at, s.state, s.asked.end_at), (at(5), state, at(60_000)));
        assert_eq!(store.sandbox(&id).await.unwrap(), s);
    }
    for state in [S::Creating, S::Pausing, S::Paused, S::Resuming, S::Killing] {
        let id = in_state(&*store, team, state).await;
        assert_conflict(store.set_end_at(&id, at(5), false).await);
        assert_eq!(store.sandbox(&id).await.unwrap().end_at, at(60_000), "{state}");
    }
    let id = in_state(&*store, team, S::Running).await;
    store.end_sandbox(&id, S::Gone, KillReason::Timeout, at(1)).await.unwrap();
    assert_not_found(store.set_end_at(&id, at(5), true).await);
}

pub(super) async fn extending_never_shortens(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let id = run(&*store, new_sandbox(team), 0, 1000).await;
    for (ms, only_extend, expected) in
        [(500, true, 1000), (1000, true, 1000), (2000, true, 2000), (700, false, 700), (699, true, 700)]
    {
        assert_eq!(store.set_end_at(&id, at(ms), only_extend).await.unwrap().end_at, at(expected));
        assert_eq!(store.sandbox(&id).await.unwrap().end_at, at(expected));
    }
}

pub(super) async fn expired_sandboxes_come_longest_overdue_first(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    assert_eq!(store.expired(at(1000), 10).await.unwrap(), []);
    let mut expected = Vec::new();
    for end in [300, 100, 200] {
        expected.push((end, run(&*store, new_sandbox(team), 0, end).await));
    }
    run(&*store, new_sandbox(team), 0, 301).await;
    // Deadlines of what does not run are nobody's business here.
    for state in [S::Pausing, S::Paused, S::Resuming, S::Snapshotting, S::Killing] {
        let id = run(&*store, new_sandbox(team), 0, 50).await;
        store.move_sandbox(&id, &[S::Running], state).await.unwrap();
    }
    let mut creating = new_sandbox(team);
    creating.end_at = at(50);
    insert(&*store, creating).await;
    expected.sort();
    let expected: Vec<_> = expected.into_iter().map(|(_, id)| id).collect();
    assert_eq!(ids(store.expired(at(300), 10).await.unwrap()), expected);
    assert_eq!(ids(store.expired(at(300), 2).await.unwrap()), expected[..2]);
    assert_eq!(ids(store.expired(at(99), 10).await.unwrap()), []);
    assert_eq!(ids(store.expired(at(100), 10).await.unwrap()), expected[..1]);
}

pub(super) async fn the_next_deadline_is_the_earliest_of_the_running(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    assert_eq!(store.next_deadline().await.unwrap(), None);
    in_state(&*store, team, S::Paused).await;
    in_state(&*store, team, S::Creating).await;
    assert_eq!(store.next_deadline().await.unwrap(), None);
    let late = run(&*store, new_sandbox(team), 0, 900).await;
    let soon = run(&*store, new_sandbox(team), 0, 400).await;
    assert_eq!(store.next_deadline().await.unwrap(), Some(at(400)));
    store.set_end_at(&soon, at(1000), false).await.unwrap();
    assert_eq!(store.next_deadline().await.unwrap(), Some(at(900)));
    store.end_sandbox(&late, S::Gone, KillReason::Request, at(1)).await.unwrap();
    assert_eq!(store.next_deadline().await.unwrap(), Some(at(1000)));
}

pub(super) async fn shifting_moves_every_live_lease_and_no_other(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let running = run(&*store, new_sandbox(team), 10, 1000).await;
    let paused = in_state(&*store, team, S::Paused).await;
    let creating = in_state(&*store, team, S::Creating).await;
    let forever = run(&*store, new_sandbox(team), 0, 1000).await;
    store.set_end_at(&forever, Timestamp(i64::MAX), false).await.unwrap();
    let gone = run(&*store, new_sandbox(team), 10, 1000).await;
    store.end_sandbox(&gone, S::Gone, KillReason::Request, at(20)).await.unwrap();
    assert_eq!(store.shift_leases(3_600_000).await.unwrap(), 4);
    let lease = async |id| {
        let s = store.sandbox(id).await.unwrap();
        (s.started_at, s.end_at)
    };
    assert_eq!(lease(&running).await, (at(3_600_010), at(3_601_000)));
    assert_eq!(lease(&paused).await, (at(3_600_000), at(3_660_000)));
    assert_eq!(lease(&creating).await, (at(3_600_000), at(3_660_000)));
    assert_eq!(lease(&gone).await, (at(10), at(1000)));
    assert_eq!(lease(&forever).await.1, Timestamp(i64::MAX), "no deadline stays no deadline");
    assert_eq!(store.sandbox(&running).await.unwrap().asked.created_at, at(0));
    assert_eq!(store.shift_leases(-3_600_000).await.unwrap(), 4);
    assert_eq!(lease(&running).await, (at(10), at(1000)));
}
