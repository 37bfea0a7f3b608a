//! [`Store`] for [`SqliteStore`]: which file, which durability, which statement.

use async_trait::async_trait;
use hutch_types::{
    BuildId, KillReason, PauseMode, SandboxId, SandboxState, Secret, TeamId, TemplateId, Timestamp,
};

use super::database::Durability::{Relaxed, Synced};
use super::{SqliteStore, idempotency, keys, listing, logs, metrics, pauses, sandboxes, teams, templates};
use crate::{
    ApiKey, CreateOutcome, IdempotencyClaim, IdempotencyRecord, LogEntry, LogQuery, MetricPoint, NewSandbox,
    ResumeOutcome, Sandbox, SandboxFilter, SandboxPage, Store, StoreError, Team, Template, TemplateBuild,
};

#[async_trait]
impl Store for SqliteStore {
    async fn default_team(&self, now: Timestamp) -> Result<Team, StoreError> {
        let attempted = "reading the default team";
        if let Some(team) = self.main.read(attempted, |c| Box::pin(teams::default_if_any(c))).await? {
            return Ok(team);
        }
        self.main.write(attempted, Synced, move |c| Box::pin(teams::default_or_new(c, now))).await
    }

    async fn insert_team(&self, team: Team) -> Result<(), StoreError> {
        self.main
            .write("storing a team", Synced, move |c| Box::pin(async move { teams::insert(c, &team).await }))
            .await
    }

    async fn team(&self, id: TeamId) -> Result<Team, StoreError> {
        self.main.read("reading a team", move |c| Box::pin(async move { teams::get(c, id).await })).await
    }

    async fn insert_api_key(&self, key: ApiKey) -> Result<(), StoreError> {
        self.main
            .write("storing an API key", Synced, move |c| {
                Box::pin(async move { keys::insert(c, &key).await })
            })
            .await
    }

    async fn api_key_by_hash(&self, hash: &str) -> Result<ApiKey, StoreError> {
        let hash = hash.to_owned();
        self.main
            .read("looking up an API key", move |c| Box::pin(async move { keys::by_hash(c, &hash).await }))
            .await
    }

    async fn api_keys(&self, team: TeamId) -> Result<Vec<ApiKey>, StoreError> {
        self.main.read("listing API keys", move |c| Box::pin(async move { keys::list(c, team).await })).await
    }

    async fn revoke_api_key(
        &self,
        team: TeamId,
        id_or_name: &str,
        now: Timestamp,
    ) -> Result<ApiKey, StoreError> {
        let id_or_name = id_or_name.to_owned();
        self.main
            .write("revoking an API key", Synced, move |c| {
                Box::pin(async move { keys::revoke(c, team, &id_or_name, now).await })
            })
            .await
    }

    async fn touch_api_key(&self, id: &str, now: Timestamp) -> Result<(), StoreError> {
        let id = id.to_owned();
        self.main
            .write("noting the use of an API key", Relaxed, move |c| {
                Box::pin(async move { keys::touch(c, &id, now).await })
            })
            .await
    }

    async fn upsert_template(&self, template: Template) -> Result<(), StoreError> {
        self.main
            .write("storing a template", Synced, move |c| {
                Box::pin(async move { templates::upsert(c, &template).await })
            })
            .await
    }

    async fn insert_build(&self, build: TemplateBuild, tags: &[String]) -> Result<(), StoreError> {
        let tags = tags.to_vec();
        self.main
            .write("storing a template build", Synced, move |c| {
                Box::pin(async move { templates::insert_build(c, &build, &tags).await })
            })
            .await
    }

    async fn templates(&self, team: TeamId) -> Result<Vec<Template>, StoreError> {
        self.main
            .read("listing templates", move |c| Box::pin(async move { templates::list(c, team).await }))
            .await
    }

    async fn find_template(&self, team: TeamId, id_or_name: &str) -> Result<Template, StoreError> {
        let text = id_or_name.to_owned();
        self.main
            .read("looking up a template", move |c| {
                Box::pin(async move { templates::find(c, team, &text).await })
            })
            .await
    }

    async fn builds(&self, template: &TemplateId) -> Result<Vec<TemplateBuild>, StoreError> {
        let template = template.clone();
        self.main
            .read("listing template builds", move |c| {
                Box::pin(async move { templates::builds(c, &template).await })
            })
            .await
    }

    async fn build_by_tag(&self, template: &TemplateId, tag: &str) -> Result<TemplateBuild, StoreError> {
        let (template, tag) = (template.clone(), tag.to_owned());
        self.main
            .read("looking up a tag", move |c| {
                Box::pin(async move { templates::build_by_tag(c, &template, &tag).await })
            })
            .await
    }

    async fn build(&self, id: BuildId) -> Result<TemplateBuild, StoreError> {
        self.main
            .read("reading a template build", move |c| Box::pin(async move { templates::build(c, id).await }))
            .await
    }

    async fn note_spawn(&self, template: &TemplateId, now: Timestamp) -> Result<(), StoreError> {
        let template = template.clone();
        self.main
            .write("counting a start", Relaxed, move |c| {
                Box::pin(async move { templates::note_spawn(c, &template, now).await })
            })
            .await
    }

    async fn insert_sandbox(
        &self,
        sandbox: NewSandbox,
        team_limit: Option<u32>,
    ) -> Result<CreateOutcome, StoreError> {
        self.main
            .write("storing a sandbox", Synced, move |c| {
                Box::pin(async move { sandboxes::insert(c, &sandbox, team_limit).await })
            })
            .await
    }

    async fn mark_running(
        &self,
        id: &SandboxId,
        started_at: Timestamp,
        end_at: Timestamp,
        envd_version: &str,
        isolation: &str,
    ) -> Result<Sandbox, StoreError> {
        let id = id.clone();
        let (envd_version, isolation) = (envd_version.to_owned(), isolation.to_owned());
        self.main
            .write("marking a sandbox as running", Synced, move |c| {
                Box::pin(async move {
                    sandboxes::mark_running(c, &id, started_at, end_at, &envd_version, &isolation).await
                })
            })
            .await
    }

    async fn sandbox(&self, id: &SandboxId) -> Result<Sandbox, StoreError> {
        let id = id.clone();
        self.main
            .read("reading a sandbox", move |c| Box::pin(async move { sandboxes::get(c, &id).await }))
            .await
    }

    async fn sandboxes(&self, filter: SandboxFilter) -> Result<SandboxPage, StoreError> {
        self.main
            .read("listing sandboxes", move |c| Box::pin(async move { listing::page(c, &filter).await }))
            .await
    }

    async fn live_sandboxes(&self) -> Result<Vec<Sandbox>, StoreError> {
        self.main
            .read("reading the live sandboxes", move |c| Box::pin(async move { sandboxes::live(c).await }))
            .await
    }

    async fn running_tokens(&self) -> Result<Vec<(SandboxId, Secret)>, StoreError> {
        self.main
            .read("reading the tokens of the running sandboxes", |c| Box::pin(sandboxes::running_tokens(c)))
            .await
    }

    async fn paused_sandboxes(&self) -> Result<Vec<Sandbox>, StoreError> {
        self.main
            .read("reading the paused sandboxes", move |c| Box::pin(async move { pauses::paused(c).await }))
            .await
    }

    async fn set_end_at(
        &self,
        id: &SandboxId,
        end_at: Timestamp,
        only_extend: bool,
    ) -> Result<Sandbox, StoreError> {
        let id = id.clone();
        self.main
            .write("moving a deadline", Synced, move |c| {
                Box::pin(async move { sandboxes::set_end_at(c, &id, end_at, only_extend).await })
            })
            .await
    }

    async fn shift_leases(&self, delta_ms: i64) -> Result<u64, StoreError> {
        self.main
            .write("shifting deadlines", Synced, move |c| {
                Box::pin(async move { sandboxes::shift(c, delta_ms).await })
            })
            .await
    }

    async fn expired(&self, now: Timestamp, limit: u32) -> Result<Vec<Sandbox>, StoreError> {
        self.main
            .read("looking for expired sandboxes", move |c| {
                Box::pin(async move { sandboxes::expired(c, now, limit).await })
            })
            .await
    }

    async fn next_deadline(&self) -> Result<Option<Timestamp>, StoreError> {
        self.main
            .read("reading the next deadline", move |c| {
                Box::pin(async move { sandboxes::next_deadline(c).await })
            })
            .await
    }

    async fn move_sandbox(
        &self,
        id: &SandboxId,
        from: &[SandboxState],
        to: SandboxState,
    ) -> Result<Sandbox, StoreError> {
        let (id, from) = (id.clone(), from.to_vec());
        self.main
            .write("changing a sandbox's state", Synced, move |c| {
                Box::pin(async move { sandboxes::move_state(c, &id, &from, to).await })
            })
            .await
    }

    async fn begin_pause(
        &self,
        id: &SandboxId,
        mode: PauseMode,
        now: Timestamp,
    ) -> Result<Sandbox, StoreError> {
        let id = id.clone();
        self.main
            .write("beginning a pause", Synced, move |c| {
                Box::pin(async move { pauses::begin_pause(c, &id, mode, now).await })
            })
            .await
    }

    async fn abort_pause(
        &self,
        id: &SandboxId,
        now: Timestamp,
        at_least: Timestamp,
    ) -> Result<Sandbox, StoreError> {
        let id = id.clone();
        self.main
            .write("taking a pause back", Synced, move |c| {
                Box::pin(async move { pauses::abort_pause(c, &id, now, at_least).await })
            })
            .await
    }

    async fn mark_paused(
        &self,
        id: &SandboxId,
        from: &[SandboxState],
        mode: PauseMode,
        now: Timestamp,
    ) -> Result<Sandbox, StoreError> {
        let (id, from) = (id.clone(), from.to_vec());
        self.main
            .write("marking a sandbox as paused", Synced, move |c| {
                Box::pin(async move { pauses::mark_paused(c, &id, &from, mode, now).await })
            })
            .await
    }

    async fn begin_resume(
        &self,
        id: &SandboxId,
        end_at: Timestamp,
        team_limit: Option<u32>,
    ) -> Result<ResumeOutcome, StoreError> {
        let id = id.clone();
        self.main
            .write("beginning a resume", Synced, move |c| {
                Box::pin(async move { pauses::begin_resume(c, &id, end_at, team_limit).await })
            })
            .await
    }

    async fn mark_resumed(
        &self,
        id: &SandboxId,
        started_at: Timestamp,
        end_at: Timestamp,
        envd_version: &str,
        isolation: &str,
        auto_pause: Option<bool>,
    ) -> Result<Sandbox, StoreError> {
        let id = id.clone();
        let (envd_version, isolation) = (envd_version.to_owned(), isolation.to_owned());
        self.main
            .write("marking a sandbox as resumed", Synced, move |c| {
                Box::pin(async move {
                    let run = pauses::Run { started_at, end_at, envd_version, isolation };
                    pauses::mark_resumed(c, &id, &run, auto_pause).await
                })
            })
            .await
    }

    async fn end_sandbox(
        &self,
        id: &SandboxId,
        state: SandboxState,
        reason: KillReason,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let id = id.clone();
        self.main
            .write("ending a sandbox", Synced, move |c| {
                Box::pin(async move { sandboxes::end(c, &id, state, reason, now).await })
            })
            .await
    }

    async fn purge(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.purge_ended(before).await
    }

    async fn claim_idempotency(
        &self,
        team: TeamId,
        key: &str,
        fingerprint: &str,
        now: Timestamp,
        claim_until: Timestamp,
    ) -> Result<IdempotencyClaim, StoreError> {
        let (key, fingerprint) = (key.to_owned(), fingerprint.to_owned());
        self.main
            .write("claiming an idempotency key", Synced, move |c| {
                Box::pin(
                    async move { idempotency::claim(c, team, &key, &fingerprint, now, claim_until).await },
                )
            })
            .await
    }

    async fn finish_idempotency(
        &self,
        team: TeamId,
        key: &str,
        answer: IdempotencyRecord,
    ) -> Result<(), StoreError> {
        let key = key.to_owned();
        self.main
            .write("recording an idempotent answer", Synced, move |c| {
                Box::pin(async move { idempotency::finish(c, team, &key, &answer).await })
            })
            .await
    }

    async fn release_idempotency(&self, team: TeamId, key: &str) -> Result<(), StoreError> {
        let key = key.to_owned();
        self.main
            .write("releasing an idempotency key", Synced, move |c| {
                Box::pin(async move { idempotency::release(c, team, &key).await })
            })
            .await
    }

    async fn insert_metrics(&self, points: &[MetricPoint]) -> Result<(), StoreError> {
        let points = points.to_vec();
        self.telemetry
            .write("storing samples", Relaxed, move |c| {
                Box::pin(async move { metrics::insert(c, &points).await })
            })
            .await
    }

    async fn metrics(
        &self,
        id: &SandboxId,
        start: Option<Timestamp>,
        end: Option<Timestamp>,
        step_ms: i64,
    ) -> Result<Vec<MetricPoint>, StoreError> {
        let id = id.clone();
        self.telemetry
            .read("reading samples", move |c| {
                Box::pin(async move { metrics::between(c, &id, start, end, step_ms).await })
            })
            .await
    }

    async fn metrics_extent(
        &self,
        id: &SandboxId,
        start: Option<Timestamp>,
        end: Option<Timestamp>,
    ) -> Result<Option<(Timestamp, Timestamp)>, StoreError> {
        let id = id.clone();
        self.telemetry
            .read("reading the times of samples", move |c| {
                Box::pin(async move { metrics::extent(c, &id, start, end).await })
            })
            .await
    }

    async fn latest_metrics(&self, ids: &[SandboxId]) -> Result<Vec<MetricPoint>, StoreError> {
        let ids = ids.to_vec();
        self.telemetry
            .read("reading the latest samples", move |c| {
                Box::pin(async move { metrics::latest(c, &ids).await })
            })
            .await
    }

    async fn insert_logs(&self, entries: &[LogEntry], max_bytes: u64) -> Result<(), StoreError> {
        let entries = entries.to_vec();
        self.telemetry
            .write("storing log lines", Relaxed, move |c| {
                Box::pin(async move { logs::insert(c, &entries, max_bytes).await })
            })
            .await
    }

    async fn logs(&self, query: LogQuery) -> Result<Vec<LogEntry>, StoreError> {
        self.telemetry
            .read("reading log lines", move |c| Box::pin(async move { logs::query(c, &query).await }))
            .await
    }

    async fn purge_telemetry(&self, before: Timestamp) -> Result<u64, StoreError> {
        self.purge_old_telemetry(before).await
    }
}
