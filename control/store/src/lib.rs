//! Durable state of the control plane: records, the [`Store`] trait and its backends.
//!
//! Only this crate names SQL. What a method acknowledged is durable. Every backend passes [`conformance`].

pub mod conformance;
mod record;
mod sqlite;

pub use record::{
    ApiKey, CreateOutcome, IdempotencyClaim, IdempotencyRecord, LogEntry, LogQuery, MetricPoint, NewSandbox,
    PageToken, ResumeOutcome, Sandbox, SandboxFilter, SandboxPage, SortOrder, Team, Template, TemplateBuild,
};
pub use sqlite::{DatabaseError, SqliteStore};

use std::fmt::Debug;

use async_trait::async_trait;
use hutch_types::{
    BuildId, KillReason, PauseMode, SandboxId, SandboxState, Secret, TeamId, TemplateId, Timestamp,
};

/// Why the store could not do something.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The record does not exist, or is not what the caller expected it to be.
    #[error("{what} not found")]
    NotFound {
        /// Which record.
        what: String,
    },
    /// A unique name is taken, or the state of a record does not allow the change.
    #[error("{what}")]
    Conflict {
        /// What is in the way.
        what: String,
    },
    /// The database is busy, locked, full or gone; another try later may succeed.
    #[error("the store is unavailable while {attempted}")]
    Unavailable {
        /// What was attempted.
        attempted: &'static str,
        /// The database's own error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A stored value cannot be read: the database was changed from outside or by a newer version.
    #[error("a stored {what} is not readable")]
    Corrupt {
        /// Which kind of record.
        what: &'static str,
    },
}

/// Durable state. Methods are one transaction each, and cancellation safe: an abandoned call either happened or did not.
/// The same holds for a call that answers [`StoreError::Unavailable`].
#[async_trait]
pub trait Store: Debug + Send + Sync + 'static {
    // --- teams and keys ---

    /// The team that owns a fresh install; created on first use.
    async fn default_team(&self, now: Timestamp) -> Result<Team, StoreError>;
    /// Stores a further team; `Conflict` when its id or slug is taken.
    async fn insert_team(&self, team: Team) -> Result<(), StoreError>;
    /// One team.
    async fn team(&self, id: TeamId) -> Result<Team, StoreError>;
    /// Stores a key of which only `hash` is known; `Conflict` when the name is taken in the team among live keys.
    async fn insert_api_key(&self, key: ApiKey) -> Result<(), StoreError>;
    /// The live key with this hash; `NotFound` when there is none or it was revoked. Not cached anywhere: revocation is immediate.
    async fn api_key_by_hash(&self, hash: &str) -> Result<ApiKey, StoreError>;
    /// Keys of a team, oldest first, revoked ones included.
    async fn api_keys(&self, team: TeamId) -> Result<Vec<ApiKey>, StoreError>;
    /// Revokes a key by id or by name.
    async fn revoke_api_key(
        &self,
        team: TeamId,
        id_or_name: &str,
        now: Timestamp,
    ) -> Result<ApiKey, StoreError>;
    /// Notes that a key was used; best effort, callers limit the rate. May be lost when the machine fails.
    async fn touch_api_key(&self, id: &str, now: Timestamp) -> Result<(), StoreError>;

    // --- templates ---

    /// Creates or replaces a template's record (by id) with its names. What the store counts itself (starts and builds) and the
    /// time of creation are taken from the record only when it is new. `Conflict` when a name belongs to another template of
    /// the team or is another template's id, or when the id belongs to another team.
    async fn upsert_template(&self, template: Template) -> Result<(), StoreError>;
    /// Stores a build, or replaces it (by id), and points `tags` of its template to it. A tag remembers its earlier builds:
    /// see [`Store::build_by_tag`]. `NotFound` when there is no such template.
    async fn insert_build(&self, build: TemplateBuild, tags: &[String]) -> Result<(), StoreError>;
    /// Templates that `team` may use, newest first.
    async fn templates(&self, team: TeamId) -> Result<Vec<Template>, StoreError>;
    /// A template that `team` may use: `slug/name` exactly; a bare name among its own, then among public ones (the oldest
    /// first); else an id. The text carries no tag.
    async fn find_template(&self, team: TeamId, id_or_name: &str) -> Result<Template, StoreError>;
    /// Builds of a template, newest first.
    async fn builds(&self, template: &TemplateId) -> Result<Vec<TemplateBuild>, StoreError>;
    /// The ready build that `tag` was pointed to last: while a newer one is not ready, the one before it serves.
    async fn build_by_tag(&self, template: &TemplateId, tag: &str) -> Result<TemplateBuild, StoreError>;
    /// One build.
    async fn build(&self, id: BuildId) -> Result<TemplateBuild, StoreError>;
    /// Counts a start of a template. May be lost when the machine fails.
    async fn note_spawn(&self, template: &TemplateId, now: Timestamp) -> Result<(), StoreError>;

    // --- sandboxes ---

    /// Stores a sandbox in state `creating`, if the team has fewer than `team_limit` live ones (`None`: no limit), in one
    /// transaction.
    async fn insert_sandbox(
        &self,
        sandbox: NewSandbox,
        team_limit: Option<u32>,
    ) -> Result<CreateOutcome, StoreError>;
    /// Marks a `creating` sandbox as running, with the times of its life and what the node said. `NotFound` for an unknown or
    /// ended one, `Conflict` in any other state.
    async fn mark_running(
        &self,
        id: &SandboxId,
        started_at: Timestamp,
        end_at: Timestamp,
        envd_version: &str,
        isolation: &str,
    ) -> Result<Sandbox, StoreError>;
    /// One sandbox in whatever state, ended ones included for as long as they are kept.
    async fn sandbox(&self, id: &SandboxId) -> Result<Sandbox, StoreError>;
    /// A page of a team's live sandboxes.
    async fn sandboxes(&self, filter: SandboxFilter) -> Result<SandboxPage, StoreError>;
    /// All sandboxes that may have an instance on a node, whatever the team.
    async fn live_sandboxes(&self) -> Result<Vec<Sandbox>, StoreError>;
    /// The sandboxes that clients see as running (`running`, `snapshotting`), each with envd's access token, in no order. It reads
    /// nothing else of them, since anybody can cause it to be asked.
    async fn running_tokens(&self) -> Result<Vec<(SandboxId, Secret)>, StoreError>;
    /// All sandboxes that are `paused`, whatever the team.
    async fn paused_sandboxes(&self) -> Result<Vec<Sandbox>, StoreError>;
    /// Moves the deadline of a running sandbox (`running`, `snapshotting`). `only_extend`: an earlier deadline changes nothing.
    /// `NotFound` for an unknown or ended one, `Conflict` when it does not run.
    async fn set_end_at(
        &self,
        id: &SandboxId,
        end_at: Timestamp,
        only_extend: bool,
    ) -> Result<Sandbox, StoreError>;
    /// Adds `delta_ms` to the deadline and start of every live sandbox: the system's clock was set.
    async fn shift_leases(&self, delta_ms: i64) -> Result<u64, StoreError>;
    /// Running sandboxes whose deadline has passed, the longest overdue first, at most `limit`.
    async fn expired(&self, now: Timestamp, limit: u32) -> Result<Vec<Sandbox>, StoreError>;
    /// The earliest deadline of a running sandbox.
    async fn next_deadline(&self) -> Result<Option<Timestamp>, StoreError>;
    /// Moves a live sandbox from any state in `from` to `to`; returns the record after. `NotFound` for an unknown or ended one,
    /// `Conflict` when it is in none of the states. `to` is not a final state: that is [`Store::end_sandbox`]'s business.
    async fn move_sandbox(
        &self,
        id: &SandboxId,
        from: &[SandboxState],
        to: SandboxState,
    ) -> Result<Sandbox, StoreError>;
    /// Moves a running sandbox (`running`, `snapshotting`) to `pausing`, from `now` on. `NotFound` for an unknown or ended one,
    /// `Conflict` when it does not run.
    async fn begin_pause(
        &self,
        id: &SandboxId,
        mode: PauseMode,
        now: Timestamp,
    ) -> Result<Sandbox, StoreError>;
    /// Moves a `pausing` sandbox back to `running`. Its lease gets the time back that the attempt took, and ends at `at_least`
    /// or later. `NotFound` for an unknown or ended one, `Conflict` in any other state.
    async fn abort_pause(
        &self,
        id: &SandboxId,
        now: Timestamp,
        at_least: Timestamp,
    ) -> Result<Sandbox, StoreError>;
    /// Moves a live sandbox from any state in `from` to `paused`, with what is saved of it; since `now`, if it was not being
    /// paused before. `NotFound` for an unknown or ended one, `Conflict` when it is in none of the states.
    async fn mark_paused(
        &self,
        id: &SandboxId,
        from: &[SandboxState],
        mode: PauseMode,
        now: Timestamp,
    ) -> Result<Sandbox, StoreError>;
    /// Moves a `paused` sandbox to `resuming`, if its team has fewer than `team_limit` live ones (`None`: no limit), in one
    /// transaction. `end_at` is a first deadline, for a daemon that dies before the resume is done. `NotFound` for an unknown or
    /// ended one, `Conflict` in any other state.
    async fn begin_resume(
        &self,
        id: &SandboxId,
        end_at: Timestamp,
        team_limit: Option<u32>,
    ) -> Result<ResumeOutcome, StoreError>;
    /// Marks a `resuming` sandbox as running, with the times of its new run and what the node said. `auto_pause` changes what
    /// happens at the end of the lease: to what was chosen before or else a full pause, or to a kill. `NotFound` for an unknown
    /// or ended one, `Conflict` in any other state.
    async fn mark_resumed(
        &self,
        id: &SandboxId,
        started_at: Timestamp,
        end_at: Timestamp,
        envd_version: &str,
        isolation: &str,
        auto_pause: Option<bool>,
    ) -> Result<Sandbox, StoreError>;
    /// Ends a sandbox: state `gone` (or `failed` for one that never ran) with a reason. Ending an ended one changes nothing and
    /// returns false; `NotFound` for an unknown one.
    async fn end_sandbox(
        &self,
        id: &SandboxId,
        state: SandboxState,
        reason: KillReason,
        now: Timestamp,
    ) -> Result<bool, StoreError>;
    /// Records of sandboxes that ended before `before` are removed with their logs and metrics; returns how many.
    async fn purge(&self, before: Timestamp) -> Result<u64, StoreError>;

    // --- idempotent creates ---

    /// Claims an idempotency key for a request with this fingerprint, or says what an earlier request with it became. Keys are
    /// forgotten 24 hours after their claim. Until `claim_until` an unanswered claim counts as being served.
    async fn claim_idempotency(
        &self,
        team: TeamId,
        key: &str,
        fingerprint: &str,
        now: Timestamp,
        claim_until: Timestamp,
    ) -> Result<IdempotencyClaim, StoreError>;
    /// Records the final answer of a claimed key; `NotFound` when it is not claimed, `Conflict` when it was answered before.
    async fn finish_idempotency(
        &self,
        team: TeamId,
        key: &str,
        answer: IdempotencyRecord,
    ) -> Result<(), StoreError>;
    /// Forgets a claim that led to nothing, so that the key can be used again. An answer stays.
    async fn release_idempotency(&self, team: TeamId, key: &str) -> Result<(), StoreError>;

    // --- samples and logs ---

    /// Appends samples. Samples and log lines may be lost when the machine (not only the process) fails within seconds.
    async fn insert_metrics(&self, points: &[MetricPoint]) -> Result<(), StoreError>;
    /// Samples of a sandbox between two times (inclusive), oldest first. Those of the same `step_ms` milliseconds, counted
    /// from 1970, become one: the highest of each figure, at the time of the last. A step below 1 counts as 1.
    async fn metrics(
        &self,
        id: &SandboxId,
        start: Option<Timestamp>,
        end: Option<Timestamp>,
        step_ms: i64,
    ) -> Result<Vec<MetricPoint>, StoreError>;
    /// The times of the first and the last sample of a sandbox between two times (inclusive), if there are any.
    async fn metrics_extent(
        &self,
        id: &SandboxId,
        start: Option<Timestamp>,
        end: Option<Timestamp>,
    ) -> Result<Option<(Timestamp, Timestamp)>, StoreError>;
    /// The latest sample of each of the sandboxes.
    async fn latest_metrics(&self, ids: &[SandboxId]) -> Result<Vec<MetricPoint>, StoreError>;
    /// Appends log lines. A sandbox whose lines then take more than `max_bytes` loses its oldest ones, until a tenth of
    /// that is free again. Its newest line always stays.
    async fn insert_logs(&self, entries: &[LogEntry], max_bytes: u64) -> Result<(), StoreError>;
    /// Log lines of a sandbox.
    async fn logs(&self, query: LogQuery) -> Result<Vec<LogEntry>, StoreError>;
    /// Samples and log lines from before `before` are removed, whatever became of their sandboxes; returns how many.
    async fn purge_telemetry(&self, before: Timestamp) -> Result<u64, StoreError>;
}
