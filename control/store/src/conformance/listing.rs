//! Lists and pages of sandboxes.

use std::collections::BTreeSet;
use std::slice;

use hutch_types::SandboxState as S;
use hutch_types::{KillReason, SandboxId, TeamId};

use super::Subject;
use super::fixture::{
    at, default_team, everything, ids, in_state, listed, new_sandbox, other_team, pairs, run,
};
use crate::{SandboxFilter, SortOrder, Store};

pub(super) async fn a_list_shows_what_clients_may_see(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    let mut expected = BTreeSet::new();
    for state in [S::Creating, S::Running, S::Pausing, S::Paused, S::Resuming, S::Snapshotting, S::Killing] {
        let id = in_state(&*store, team, state).await;
        if !matches!(state, S::Creating | S::Killing) {
            expected.insert(id);
        }
    }
    for (from, to) in [(S::Running, S::Gone), (S::Creating, S::Failed)] {
        let id = in_state(&*store, team, from).await;
        store.end_sandbox(&id, to, KillReason::Request, at(1)).await.unwrap();
    }
    in_state(&*store, other, S::Running).await;
    let page = store.sandboxes(everything(team)).await.unwrap();
    assert_eq!((page.total_running, page.next), (2, None));
    assert_eq!(BTreeSet::from_iter(ids(page.sandboxes)), expected);
    let nobody = store.sandboxes(everything(TeamId::random())).await.unwrap();
    assert_eq!((nobody.sandboxes.len(), nobody.total_running), (0, 0));
}

pub(super) async fn a_list_is_filtered_by_state_metadata_time_and_template(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let all = |f: fn(&mut SandboxFilter)| {
        let mut filter = everything(team);
        f(&mut filter);
        filter
    };
    let mut py = new_sandbox(team);
    py.template = "py".parse().unwrap();
    let py = run(&*store, py, 10, 1000).await;
    let mut tagged = new_sandbox(team);
    tagged.metadata = pairs(&[("a", "1")]);
    let tagged = run(&*store, tagged, 20, 1000).await;
    let paused = run(&*store, new_sandbox(team), 30, 1000).await;
    store.move_sandbox(&paused, &[S::Running], S::Paused).await.unwrap();

    assert_eq!(listed(&*store, everything(team)).await, [paused.clone(), tagged.clone(), py.clone()]);
    assert_eq!(listed(&*store, all(|f| f.paused = false)).await, [tagged.clone(), py.clone()]);
    assert_eq!(listed(&*store, all(|f| f.running = false)).await, slice::from_ref(&paused));
    assert_eq!(listed(&*store, all(|f| (f.running, f.paused) = (false, false))).await, []);
    assert_eq!(
        listed(&*store, all(|f| f.started_after = Some(at(20)))).await,
        [paused, tagged.clone()],
        "inclusive"
    );
    assert_eq!(listed(&*store, all(|f| f.template = "py".parse().ok())).await, slice::from_ref(&py));
    assert_eq!(listed(&*store, all(|f| f.metadata = pairs(&[("a", "1")]))).await, [tagged]);

    let page = store.sandboxes(all(|f| f.limit = 1)).await.unwrap();
    assert_eq!((page.total_running, page.sandboxes.len()), (2, 1), "counted before paging");
    let page = store.sandboxes(all(|f| f.started_after = Some(at(20)))).await.unwrap();
    assert_eq!(page.total_running, 1, "counted after the filter");
    let page = store.sandboxes(all(|f| f.running = false)).await.unwrap();
    assert_eq!(page.total_running, 0, "none of the running match");
    let page = store.sandboxes(all(|f| f.limit = 0)).await.unwrap();
    assert_eq!((page.sandboxes.len(), page.next, page.total_running), (0, None, 2));
}

pub(super) async fn every_metadata_pair_must_match_exactly(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let mut new = new_sandbox(team);
    new.metadata = pairs(&[("user", "Ann"), ("run", "7"), ("empty", "")]);
    let id = run(&*store, new, 0, 1000).await;
    run(&*store, new_sandbox(team), 0, 1000).await;
    for (wanted, matches) in [
        (vec![("user", "Ann")], true),
        (vec![("user", "Ann"), ("run", "7"), ("empty", "")], true),
        (vec![("user", "ann")], false),
        (vec![("User", "Ann")], false),
        (vec![("user", "An")], false),
        (vec![("user", "Ann ")], false),
        (vec![("user", "%")], false),
        (vec![("run", "7.0")], false),
        (vec![("user", "Ann"), ("run", "8")], false),
        (vec![("user", "Ann"), ("missing", "")], false),
        (vec![("user", "7")], false),
    ] {
        let mut filter = everything(team);
        filter.metadata = pairs(&wanted);
        let expected = if matches { vec![id.clone()] } else { Vec::new() };
        assert_eq!(listed(&*store, filter).await, expected, "{wanted:?}");
    }
}

/// Reads all pages of `limit`, doing `between` after each of them.
async fn read_pages<F: AsyncFnMut(usize)>(
    store: &dyn Store,
    mut filter: SandboxFilter,
    mut between: F,
) -> Vec<SandboxId> {
    let mut seen = Vec::new();
    for n in 0.. {
        let page = store.sandboxes(filter.clone()).await.unwrap();
        assert!(page.sandboxes.len() <= usize::try_from(filter.limit).unwrap());
        seen.extend(ids(page.sandboxes));
        match page.next {
            Some(next) => filter.after = Some(next),
            None => break,
        }
        between(n).await;
    }
    seen
}

pub(super) async fn pages_cover_everything_in_either_order(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let mut started = Vec::new();
    for n in 0..12 {
        // Several start in the same millisecond: the id decides.
        let ms = n / 3;
        started.push((ms, run(&*store, new_sandbox(team), ms, 1000).await));
    }
    started.sort();
    let oldest_first: Vec<_> = started.into_iter().map(|(_, id)| id).collect();
    for limit in [1, 2, 5, 6, 11, 12, 13] {
        for order in [SortOrder::Asc, SortOrder::Desc] {
            let filter = SandboxFilter { order, limit, ..everything(team) };
            let mut seen = read_pages(&*store, filter, async |_| ()).await;
            if order == SortOrder::Desc {
                seen.reverse();
            }
            assert_eq!(seen, oldest_first, "{limit} {order:?}");
        }
    }
}

pub(super) async fn pages_are_stable_under_churn(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let mut stay = Vec::new();
    let mut leave = Vec::new();
    for n in 0..10 {
        stay.push(run(&*store, new_sandbox(team), n * 10, 1000).await);
        leave.push(run(&*store, new_sandbox(team), n * 10 + 5, 1000).await);
    }
    let filter = SandboxFilter { limit: 3, ..everything(team) };
    let mut seen = read_pages(&*store, filter, async |n| {
        // Also the row that the next page starts after may go.
        if let Some(id) = leave.pop() {
            store.end_sandbox(&id, S::Gone, KillReason::Request, at(1)).await.unwrap();
        }
        run(&*store, new_sandbox(team), 500 + i64::try_from(n).unwrap(), 1000).await;
    })
    .await;
    assert_eq!(BTreeSet::from_iter(&seen).len(), seen.len(), "no row comes twice");
    seen.reverse();
    let seen_of_those_that_stay: Vec<_> = seen.into_iter().filter(|id| stay.contains(id)).collect();
    assert_eq!(seen_of_those_that_stay, stay, "no row that stays is missed");
}
