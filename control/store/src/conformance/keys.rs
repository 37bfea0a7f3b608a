//! Teams and API keys.

use hutch_types::TeamId;

use super::Subject;
use super::fixture::{assert_conflict, assert_not_found, at, default_team, key, other_team};
use crate::Team;

pub(super) async fn the_default_team_is_made_once(subject: &dyn Subject) {
    let store = subject.open().await;
    let first = store.default_team(at(0)).await.unwrap();
    assert_eq!(first.created_at, at(0));
    assert!(
        first.slug.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-'),
        "{}",
        first.slug
    );
    assert_eq!(store.default_team(at(1000)).await.unwrap(), first);
    assert_eq!(store.team(first.id).await.unwrap(), first);
}

pub(super) async fn team_slugs_are_unique(subject: &dyn Subject) {
    let store = subject.open().await;
    let team =
        Team { id: TeamId::random(), name: "Ä".to_owned(), slug: "acme".to_owned(), created_at: at(3) };
    store.insert_team(team.clone()).await.unwrap();
    assert_eq!(store.team(team.id).await.unwrap(), team);
    assert_conflict(store.insert_team(Team { id: TeamId::random(), ..team.clone() }).await);
    assert_conflict(store.insert_team(Team { slug: "other".to_owned(), ..team }).await);
}

pub(super) async fn an_unknown_team_is_not_found(subject: &dyn Subject) {
    let store = subject.open().await;
    let nobody = TeamId::random();
    assert_not_found(store.team(nobody).await);
    assert_not_found(store.insert_api_key(key(nobody, "ci", "h")).await);
    assert_eq!(store.api_keys(nobody).await.unwrap(), []);
}

pub(super) async fn a_key_is_found_by_its_hash_alone(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let a = key(team, "a", "$sha256$AAA");
    let b = key(team, "b", "$sha256$aaa");
    store.insert_api_key(a.clone()).await.unwrap();
    store.insert_api_key(b.clone()).await.unwrap();
    assert_eq!(store.api_key_by_hash("$sha256$AAA").await.unwrap(), a);
    assert_eq!(store.api_key_by_hash("$sha256$aaa").await.unwrap(), b);
    for unknown in ["", "$sha256$", "$sha256$AAA ", "%", "a", &a.id] {
        assert_not_found(store.api_key_by_hash(unknown).await);
    }
    assert_conflict(store.insert_api_key(key(team, "c", "$sha256$AAA")).await);
}

pub(super) async fn a_revoked_key_is_gone_at_once(subject: &dyn Subject) {
    let store = subject.open().await;
    let elsewhere = subject.open().await;
    let team = default_team(&*store).await;
    store.insert_api_key(key(team, "ci", "h1")).await.unwrap();
    elsewhere.api_key_by_hash("h1").await.unwrap();
    let revoked = store.revoke_api_key(team, "ci", at(5)).await.unwrap();
    assert_eq!(revoked.revoked_at, Some(at(5)));
    assert_not_found(store.api_key_by_hash("h1").await);
    assert_not_found(elsewhere.api_key_by_hash("h1").await);
    assert_not_found(store.revoke_api_key(team, "ci", at(6)).await);
    assert_eq!(store.api_keys(team).await.unwrap(), [revoked], "a revoked key is still listed");
}

pub(super) async fn a_key_is_revoked_by_name_or_id_within_its_team(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    let mine = key(team, "ci", "h1");
    let theirs = key(other, "ci", "h2");
    store.insert_api_key(mine.clone()).await.unwrap();
    store.insert_api_key(theirs.clone()).await.unwrap();
    assert_not_found(store.revoke_api_key(team, &theirs.id, at(1)).await);
    assert_not_found(store.revoke_api_key(team, "unknown", at(1)).await);
    assert_eq!(store.revoke_api_key(team, "ci", at(1)).await.unwrap().id, mine.id);
    assert_eq!(store.api_key_by_hash("h2").await.unwrap(), theirs);
    assert_eq!(store.revoke_api_key(other, &theirs.id, at(1)).await.unwrap().id, theirs.id);
}

pub(super) async fn an_id_wins_over_a_name_when_revoking(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let target = key(team, "target", "h1");
    let decoy = key(team, &target.id, "h2");
    store.insert_api_key(decoy).await.unwrap();
    store.insert_api_key(target.clone()).await.unwrap();
    assert_eq!(store.revoke_api_key(team, &target.id, at(1)).await.unwrap().id, target.id);
}

pub(super) async fn live_key_names_are_unique_in_a_team(subject: &dyn Subject) {
    let store = subject.open().await;
    let (team, other) = (default_team(&*store).await, other_team(&*store, "acme").await);
    store.insert_api_key(key(team, "ci", "h1")).await.unwrap();
    assert_conflict(store.insert_api_key(key(team, "ci", "h2")).await);
    assert_not_found(store.api_key_by_hash("h2").await);
    store.insert_api_key(key(other, "ci", "h3")).await.unwrap();
    store.revoke_api_key(team, "ci", at(1)).await.unwrap();
    store.insert_api_key(key(team, "ci", "h4")).await.unwrap();
    assert_eq!(store.api_keys(team).await.unwrap().len(), 2);
}

pub(super) async fn the_last_use_of_a_key_never_goes_back(subject: &dyn Subject) {
    let store = subject.open().await;
    let team = default_team(&*store).await;
    let k = key(team, "ci", "h1");
    store.insert_api_key(k.clone()).await.unwrap();
    store.touch_api_key(&k.id, at(50)).await.unwrap();
    store.touch_api_key(&k.id, at(20)).await.unwrap();
    store.touch_api_key("unknown", at(20)).await.unwrap();
    assert_eq!(store.api_key_by_hash("h1").await.unwrap().last_used_at, Some(at(50)));
}
