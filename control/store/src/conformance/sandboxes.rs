//! The life of a sandbox's record.

use hutch_types::SandboxState as S;
use hutch_types::{KillReason, SandboxId, Secret, TeamId, Timestamp};

use super::Subject;
use super::fixture::{
    assert_conflict, assert_not_found, at, default_team, everything, ids, in_state, insert, listed,
    new_sandbox, other_team, pairs, run,
};
use super::telemetry::{ROOM, line, sample};
use crate::{CreateOutcome, LogQuery, SortOrder};

pub(super) async fn a_new_sandbox_is_kept_as_asked_for(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    for allow_internet_access in [None, Some(false), Some(true)] {
        let mut new = new_sandbox(team);
        new.allow_internet_access = allow_internet_access;
        new.traffic_token = allow_internet_access.map(|_| Secret::random(16));
        new.alias = allow_internet_access.map(|_| "python-3".to_owned());
        new.metadata = pairs(&[("user", "ann"), ("run", "7")]);
        new.extra = serde_json::json!({"network": {"denyOut": ["10.0.0.0/8"]}, "n": 1.5, "none": null});
        insert(&*store, new.clone()).await;
        let s = store.sandbox(&new.id).await.unwrap();
        assert_eq!(s.asked, new);
        assert_eq!(s.asked.access_token.expose(), new.access_token.expose());
        assert_eq!(
            s.asked.traffic_token.as_ref().map(Secret::expose),
            new.traffic_token.as_ref().map(Secret::expose)
        );
        assert_eq!((s.state, s.started_at, s.end_at), (S::Creating, new.created_at, new.end_at));
        assert_eq!((s.envd_version.as_str(), s.isolation.as_str(), s.ended), ("", "", None));
    }
    assert_not_found(store.insert_sandbox(new_sandbox(TeamId::random()), None).await);
}

pub(super) async fn metadata_may_be_any_text(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let texts = [
        "",
        " ",
        "a&b=c",
        "ключ",
        "🦫\u{200d}🪵",
        "e\u{301}",
        "\u{e9}",
        "\"'\\;--",
        "\n\t\u{0}\u{7f}",
        "$.a[0]",
        "%_*",
        "1",
        "null",
        "true",
    ];
    for key in texts {
        for value in [key, "x"] {
            let mut new = new_sandbox(team);
            new.metadata = pairs(&[(key, value), ("other", key)]);
            let id = run(&*store, new.clone(), 0, 1000).await;
            assert_eq!(store.sandbox(&id).await.unwrap().asked.metadata, new.metadata);
            let mut filter = everything(team);
            filter.metadata = pairs(&[(key, value), ("other", key)]);
            let found = listed(&*store, filter).await;
            let expected = if key == "x" { 2 } else { 1 };
            assert_eq!((found.len(), found.contains(&id)), (expected, true), "{key:?} {value:?}");
        }
    }
}

pub(super) async fn an_id_is_used_once(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let new = new_sandbox(team);
    insert(&*store, new.clone()).await;
    assert_conflict(store.insert_sandbox(new.clone(), None).await);
    assert!(store.end_sandbox(&new.id, S::Gone, KillReason::Request, at(1)).await.unwrap());
    assert_conflict(store.insert_sandbox(new, None).await);
}

pub(super) async fn only_a_creating_sandbox_becomes_running(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let new = new_sandbox(team);
    insert(&*store, new.clone()).await;
    let s = store.mark_running(&new.id, at(40), at(300_040), "0.6.13", "container").await.unwrap();
    assert_eq!(s.asked, new, "what was asked for does not change");
    assert_eq!((s.state, s.started_at, s.end_at), (S::Running, at(40), at(300_040)));
    assert_eq!((s.envd_version.as_str(), s.isolation.as_str()), ("0.6.13", "container"));
    assert_eq!(store.sandbox(&new.id).await.unwrap(), s);
    assert_conflict(store.mark_running(&new.id, at(50), at(60), "x", "y").await);
    assert_eq!(store.sandbox(&new.id).await.unwrap(), s);
    let killing = in_state(&*store, team, S::Killing).await;
    assert_conflict(store.mark_running(&killing, at(50), at(60), "x", "y").await);
    store.end_sandbox(&killing, S::Gone, KillReason::Request, at(1)).await.unwrap();
    assert_not_found(store.mark_running(&killing, at(50), at(60), "x", "y").await);
}

pub(super) async fn states_move_only_from_where_they_may(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let id = in_state(&*store, team, S::Running).await;
    assert_eq!(
        store.move_sandbox(&id, &[S::Snapshotting, S::Running], S::Pausing).await.unwrap().state,
        S::Pausing
    );
    assert_conflict(store.move_sandbox(&id, &[S::Running], S::Killing).await);
    assert_conflict(store.move_sandbox(&id, &[], S::Killing).await);
    assert_conflict(store.move_sandbox(&id, &[S::Pausing], S::Gone).await);
    assert_conflict(store.move_sandbox(&id, &[S::Pausing], S::Failed).await);
    assert_eq!(store.sandbox(&id).await.unwrap().state, S::Pausing);
    let before = store.move_sandbox(&id, &[S::Pausing], S::Killing).await.unwrap();
    assert_eq!(store.sandbox(&id).await.unwrap(), before);
    store.end_sandbox(&id, S::Gone, KillReason::Admin, at(9)).await.unwrap();
    assert_not_found(store.move_sandbox(&id, &[S::Gone, S::Killing], S::Running).await);
}

pub(super) async fn an_ended_sandbox_stays_ended(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    for (state, reason) in [
        (S::Gone, KillReason::Request),
        (S::Gone, KillReason::Timeout),
        (S::Gone, KillReason::Admin),
        (S::Gone, KillReason::Orphaned),
        (S::Gone, KillReason::Died),
        (S::Failed, KillReason::StartFailed),
    ] {
        let id = in_state(&*store, team, if state == S::Failed { S::Creating } else { S::Running }).await;
        assert!(store.end_sandbox(&id, state, reason, at(5)).await.unwrap());
        assert!(
            !store.end_sandbox(&id, S::Gone, KillReason::Orphaned, at(6)).await.unwrap(),
            "the second end"
        );
        let s = store.sandbox(&id).await.unwrap();
        assert_eq!((s.state, s.ended), (state, Some((at(5), reason))));
    }
    let id = in_state(&*store, team, S::Running).await;
    assert_conflict(store.end_sandbox(&id, S::Killing, KillReason::Request, at(5)).await);
    assert_eq!(store.sandbox(&id).await.unwrap().ended, None);
}

pub(super) async fn unknown_sandboxes_are_not_found(subject: &dyn Subject) {
    let store = subject.open().await;
    let id = SandboxId::random();
    assert_not_found(store.sandbox(&id).await);
    assert_not_found(store.mark_running(&id, at(0), at(1), "v", "i").await);
    assert_not_found(store.set_end_at(&id, at(1), false).await);
    assert_not_found(store.move_sandbox(&id, &[S::Running], S::Killing).await);
    assert_not_found(store.end_sandbox(&id, S::Gone, KillReason::Request, at(1)).await);
}

pub(super) async fn the_limit_counts_what_occupies_a_place(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    let mut live = 0;
    for state in [S::Creating, S::Running, S::Pausing, S::Resuming, S::Snapshotting] {
        in_state(&*store, team, state).await;
        live += 1;
        assert_eq!(
            store.insert_sandbox(new_sandbox(team), Some(live)).await.unwrap(),
            CreateOutcome::LimitReached(live),
            "{state}"
        );
    }
    for state in [S::Paused, S::Killing] {
        in_state(&*store, team, state).await;
    }
    let ended = in_state(&*store, team, S::Running).await;
    store.end_sandbox(&ended, S::Gone, KillReason::Request, at(1)).await.unwrap();
    in_state(&*store, other, S::Running).await;
    let rejected = new_sandbox(team);
    assert_eq!(
        store.insert_sandbox(rejected.clone(), Some(5)).await.unwrap(),
        CreateOutcome::LimitReached(5)
    );
    assert_not_found(store.sandbox(&rejected.id).await);
    assert_eq!(store.insert_sandbox(rejected, Some(6)).await.unwrap(), CreateOutcome::Created);
    assert_eq!(
        store.insert_sandbox(new_sandbox(team), Some(2)).await.unwrap(),
        CreateOutcome::LimitReached(2)
    );
    assert_eq!(
        store.insert_sandbox(new_sandbox(other), Some(0)).await.unwrap(),
        CreateOutcome::LimitReached(0)
    );
    assert_eq!(store.insert_sandbox(new_sandbox(team), None).await.unwrap(), CreateOutcome::Created);
}

pub(super) async fn live_sandboxes_are_those_that_may_have_an_instance(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    let mut expected = vec![in_state(&*store, other, S::Running).await];
    for state in [S::Creating, S::Running, S::Pausing, S::Paused, S::Resuming, S::Snapshotting, S::Killing] {
        let id = in_state(&*store, team, state).await;
        if state.has_instance() {
            expected.push(id);
        }
    }
    let gone = in_state(&*store, team, S::Running).await;
    store.end_sandbox(&gone, S::Gone, KillReason::Died, at(1)).await.unwrap();
    let mut live = ids(store.live_sandboxes().await.unwrap());
    live.sort();
    expected.sort();
    assert_eq!(live, expected);
}

pub(super) async fn the_tokens_of_running_sandboxes_are_found(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    let mut expected = Vec::new();
    for team in [team, other] {
        for state in
            [S::Creating, S::Running, S::Pausing, S::Paused, S::Resuming, S::Snapshotting, S::Killing]
        {
            let id = in_state(&*store, team, state).await;
            if state.is_shown_running() {
                let token = store.sandbox(&id).await.unwrap().asked.access_token;
                expected.push((id, token.expose().to_owned()));
            }
        }
    }
    let gone = in_state(&*store, team, S::Running).await;
    store.end_sandbox(&gone, S::Gone, KillReason::Died, at(1)).await.unwrap();
    let found = store.running_tokens().await.unwrap();
    let mut found: Vec<_> = found.into_iter().map(|(id, token)| (id, token.expose().to_owned())).collect();
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
}

pub(super) async fn purging_forgets_ended_sandboxes_with_their_telemetry(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let (old, recent, live) = (
        in_state(&*store, team, S::Running).await,
        in_state(&*store, team, S::Running).await,
        in_state(&*store, team, S::Running).await,
    );
    for id in [&old, &recent, &live] {
        store.insert_metrics(&[sample(id, 1), sample(id, 2)]).await.unwrap();
        store.insert_logs(&[line(id, 1, "info", "hello")], ROOM).await.unwrap();
    }
    store.end_sandbox(&old, S::Gone, KillReason::Request, at(100)).await.unwrap();
    store.end_sandbox(&recent, S::Gone, KillReason::Request, at(200)).await.unwrap();
    assert_eq!(store.purge(at(100)).await.unwrap(), 0, "it ended at that time, not before");
    assert_eq!(store.purge(at(200)).await.unwrap(), 1);
    assert_eq!(store.purge(at(200)).await.unwrap(), 0);
    assert_not_found(store.sandbox(&old).await);
    for (id, samples, lines) in [(&old, 0, 0), (&recent, 2, 1), (&live, 2, 1)] {
        assert_eq!(store.metrics(id, None, None, 1).await.unwrap().len(), samples);
        let query = LogQuery {
            sandbox: id.clone(),
            cursor: None,
            order: SortOrder::Asc,
            min_level: None,
            search: None,
            limit: 10,
        };
        assert_eq!(store.logs(query).await.unwrap().len(), lines);
    }
    assert_eq!(store.purge(Timestamp(i64::MAX)).await.unwrap(), 1);
    assert_eq!(store.sandbox(&live).await.unwrap().state, S::Running);
}
