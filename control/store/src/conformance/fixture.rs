//! Records to test with.

use std::collections::BTreeMap;

use hutch_types::{BuildId, Resources, SandboxId, SandboxState, Secret, TeamId, TemplateId, Timestamp};

use crate::{
    ApiKey, CreateOutcome, NewSandbox, Sandbox, SandboxFilter, SortOrder, Store, StoreError, Team, Template,
    TemplateBuild,
};

/// Some time; the suite never reads a clock.
pub(super) const T0: i64 = 1_767_323_045_006;

/// `ms` after [`T0`].
pub(super) fn at(ms: i64) -> Timestamp {
    Timestamp(T0 + ms)
}

pub(super) async fn default_team(store: &dyn Store) -> TeamId {
    store.default_team(at(0)).await.unwrap().id
}

pub(super) async fn other_team(store: &dyn Store, slug: &str) -> TeamId {
    let team = Team { id: TeamId::random(), name: slug.to_owned(), slug: slug.to_owned(), created_at: at(0) };
    store.insert_team(team.clone()).await.unwrap();
    team.id
}

pub(super) fn key(team: TeamId, name: &str, hash: &str) -> ApiKey {
    ApiKey {
        id: BuildId::random().to_string(),
        team,
        name: name.to_owned(),
        hash: hash.to_owned(),
        mask_prefix: "ab".to_owned(),
        mask_suffix: "wxyz".to_owned(),
        created_at: at(0),
        last_used_at: None,
        revoked_at: None,
    }
}

pub(super) fn template(team: TeamId, names: &[&str]) -> Template {
    Template {
        id: TemplateId::random(),
        team,
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        public: false,
        created_at: at(0),
        updated_at: at(0),
        spawn_count: 0,
        last_spawned_at: None,
        build_count: 0,
    }
}

pub(super) fn resources() -> Resources {
    Resources { vcpus: 2, memory_mib: 512, disk_mib: 1024, max_processes: 300 }
}

pub(super) fn build(template: &TemplateId, status: &str, created_ms: i64) -> TemplateBuild {
    TemplateBuild {
        id: BuildId::random(),
        template: template.clone(),
        status: status.to_owned(),
        resources: resources(),
        envd_version: "0.6.13".to_owned(),
        created_at: at(created_ms),
        updated_at: at(created_ms),
        finished_at: (status == "ready").then(|| at(created_ms)),
    }
}

pub(super) fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

pub(super) fn new_sandbox(team: TeamId) -> NewSandbox {
    NewSandbox {
        id: SandboxId::random(),
        team,
        template: "base".parse().unwrap(),
        build: BuildId::random(),
        alias: Some("base".to_owned()),
        resources: resources(),
        metadata: BTreeMap::new(),
        access_token: Secret::random(16),
        traffic_token: None,
        allow_internet_access: None,
        auto_pause: None,
        extra: serde_json::json!({}),
        created_at: at(0),
        end_at: at(60_000),
    }
}

pub(super) async fn insert(store: &dyn Store, new: NewSandbox) -> SandboxId {
    let id = new.id.clone();
    assert_eq!(store.insert_sandbox(new, None).await.unwrap(), CreateOutcome::Created);
    id
}

/// Stores a sandbox that runs from `start_ms` to `end_ms`.
pub(super) async fn run(store: &dyn Store, new: NewSandbox, start_ms: i64, end_ms: i64) -> SandboxId {
    let id = insert(store, new).await;
    store.mark_running(&id, at(start_ms), at(end_ms), "0.6.13", "container").await.unwrap();
    id
}

/// Stores a sandbox and moves it to `state`, which is not a final one.
pub(super) async fn in_state(store: &dyn Store, team: TeamId, state: SandboxState) -> SandboxId {
    if state == SandboxState::Creating {
        return insert(store, new_sandbox(team)).await;
    }
    let id = run(store, new_sandbox(team), 0, 60_000).await;
    if state != SandboxState::Running {
        store.move_sandbox(&id, &[SandboxState::Running], state).await.unwrap();
    }
    id
}

/// Everything a client may see, newest first, on one page.
pub(super) fn everything(team: TeamId) -> SandboxFilter {
    SandboxFilter {
        team,
        running: true,
        paused: true,
        metadata: BTreeMap::new(),
        started_after: None,
        template: None,
        order: SortOrder::Desc,
        after: None,
        limit: 1000,
    }
}

pub(super) async fn listed(store: &dyn Store, filter: SandboxFilter) -> Vec<SandboxId> {
    ids(store.sandboxes(filter).await.unwrap().sandboxes)
}

pub(super) fn ids(sandboxes: Vec<Sandbox>) -> Vec<SandboxId> {
    sandboxes.into_iter().map(|s| s.asked.id).collect()
}

#[track_caller]
pub(super) fn assert_not_found<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::NotFound { .. })), "{result:?}");
}

#[track_caller]
pub(super) fn assert_conflict<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    assert!(matches!(result, Err(StoreError::Conflict { .. })), "{result:?}");
}
