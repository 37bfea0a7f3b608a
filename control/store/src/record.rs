//! What is stored.

use std::collections::BTreeMap;

use hutch_types::{
    BuildId, KillReason, PauseMode, Resources, SandboxId, SandboxState, Secret, TeamId, TemplateId, Timestamp,
};
use serde::{Deserialize, Serialize};

/// The owner of sandboxes, templates and keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Team {
    /// Its id.
    pub id: TeamId,
    /// For people.
    pub name: String,
    /// The namespace of its template names, `[a-z0-9-]`.
    pub slug: String,
    /// When it was made.
    pub created_at: Timestamp,
}

/// An API key. The key itself is not stored anywhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiKey {
    /// Its id (a UUID).
    pub id: String,
    /// Whose.
    pub team: TeamId,
    /// For people; unique among a team's live keys.
    pub name: String,
    /// `$sha256$` and the unpadded base64 of the SHA-256 of the raw key bytes.
    pub hash: String,
    /// The first two characters after the prefix, for recognising it.
    pub mask_prefix: String,
    /// The last four characters.
    pub mask_suffix: String,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it was last used.
    pub last_used_at: Option<Timestamp>,
    /// When it was revoked.
    pub revoked_at: Option<Timestamp>,
}

/// A template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Its id.
    pub id: TemplateId,
    /// Whose.
    pub team: TeamId,
    /// Bare names (aliases), the main one first.
    pub names: Vec<String>,
    /// Whether other teams may use it.
    pub public: bool,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Starts so far.
    pub spawn_count: u64,
    /// The last start.
    pub last_spawned_at: Option<Timestamp>,
    /// Builds so far.
    pub build_count: u64,
}

/// One immutable build of a template.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemplateBuild {
    /// Its id.
    pub id: BuildId,
    /// Of which template.
    pub template: TemplateId,
    /// `waiting`, `building`, `ready` or `error`.
    pub status: String,
    /// What its sandboxes get.
    pub resources: Resources,
    /// The envd it was made with.
    pub envd_version: String,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it was done.
    pub finished_at: Option<Timestamp>,
}

/// A sandbox to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewSandbox {
    /// Its id.
    pub id: SandboxId,
    /// Whose.
    pub team: TeamId,
    /// From which template.
    pub template: TemplateId,
    /// From which build.
    pub build: BuildId,
    /// The template's main name at that time.
    pub alias: Option<String>,
    /// Limits.
    pub resources: Resources,
    /// The client's own pairs.
    pub metadata: BTreeMap<String, String>,
    /// envd's access token.
    pub access_token: Secret,
    /// What requests to its ports must bring; `None`: anybody may come.
    pub traffic_token: Option<Secret>,
    /// Whether the sandbox may reach the internet, as asked; `None` when the client did not say.
    pub allow_internet_access: Option<bool>,
    /// What is saved of it at the end of its lease; `None`: it is killed then. A resume may change it.
    pub auto_pause: Option<PauseMode>,
    /// Everything else of the request that answers repeat (network), as JSON that the store does not read.
    pub extra: serde_json::Value,
    /// When it was asked for.
    pub created_at: Timestamp,
    /// A first deadline, for a daemon that dies before the start is done.
    pub end_at: Timestamp,
}

/// A stored sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// What was asked for. `end_at` in here is the first deadline; the one in force is below.
    pub asked: NewSandbox,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Start of the present run.
    pub started_at: Timestamp,
    /// The deadline in force.
    pub end_at: Timestamp,
    /// envd's version, once it ran.
    pub envd_version: String,
    /// Its isolation, once it ran.
    pub isolation: String,
    /// What is saved of it, and since when; while it is `pausing`, `paused` or `resuming`.
    pub paused: Option<(PauseMode, Timestamp)>,
    /// When and why it ended.
    pub ended: Option<(Timestamp, KillReason)>,
}

/// Whether a new sandbox was stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CreateOutcome {
    /// It was.
    Created,
    /// It was not: the team has this many live sandboxes, its limit.
    LimitReached(u32),
}

/// Whether a resume may begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ResumeOutcome {
    /// It may; the record after.
    Begun(Box<Sandbox>),
    /// It may not: the team has this many live sandboxes, its limit.
    LimitReached(u32),
}

/// Newest or oldest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SortOrder {
    /// Oldest first.
    Asc,
    /// Newest first.
    Desc,
}

/// Where a page ended. Stable under inserts and removals in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageToken {
    /// Start time of the last row.
    pub started_at: Timestamp,
    /// Its id.
    pub id: SandboxId,
    /// The order that the token belongs to.
    pub order: SortOrder,
}

/// Which sandboxes to list. Ended ones are never listed, `creating` and `killing` ones neither.
#[derive(Debug, Clone)]
pub struct SandboxFilter {
    /// Whose.
    pub team: TeamId,
    /// Running ones (`running`, `snapshotting`).
    pub running: bool,
    /// Paused ones (`pausing`, `paused`, `resuming`).
    pub paused: bool,
    /// All pairs must be present.
    pub metadata: BTreeMap<String, String>,
    /// Started at or after.
    pub started_after: Option<Timestamp>,
    /// Of this template.
    pub template: Option<TemplateId>,
    /// By start time.
    pub order: SortOrder,
    /// Rows after this one.
    pub after: Option<PageToken>,
    /// At most this many rows.
    pub limit: u32,
}

/// One page.
#[derive(Debug, Clone)]
pub struct SandboxPage {
    /// The rows.
    pub sandboxes: Vec<Sandbox>,
    /// Where the next page starts; `None` on the last one.
    pub next: Option<PageToken>,
    /// How many running ones match the filter, before paging.
    pub total_running: u64,
}

/// What a claim of an idempotency key found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IdempotencyClaim {
    /// The key is the caller's now.
    Claimed,
    /// A request with it is being served.
    InProgress,
    /// The same request was answered so.
    Answered(IdempotencyRecord),
    /// The key belongs to another request.
    Mismatch,
    /// A request with it died without an answer.
    OutcomeUnknown,
}

/// The recorded answer of an idempotent request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdempotencyRecord {
    /// HTTP-neutral success flag and class are the API's business: it stores its status number here.
    pub status: u16,
    /// The body as sent.
    pub body: String,
}

/// One sample of what a sandbox uses.
#[derive(Debug, Clone, PartialEq)]
pub struct MetricPoint {
    /// Whose.
    pub sandbox: SandboxId,
    /// When.
    pub at: Timestamp,
    /// Virtual CPUs.
    pub cpu_count: u32,
    /// Percent of all its CPUs.
    pub cpu_used_pct: f64,
    /// Bytes in use.
    pub mem_used_bytes: u64,
    /// Limit in bytes.
    pub mem_total_bytes: u64,
    /// Page cache in bytes.
    pub mem_cache_bytes: u64,
    /// Disk bytes in use.
    pub disk_used_bytes: u64,
    /// Disk limit in bytes.
    pub disk_total_bytes: u64,
}

/// One log line of a sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Whose.
    pub sandbox: SandboxId,
    /// When.
    pub at: Timestamp,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The text.
    pub message: String,
    /// Further fields.
    pub fields: BTreeMap<String, String>,
}

/// Which log lines.
#[derive(Debug, Clone)]
pub struct LogQuery {
    /// Whose.
    pub sandbox: SandboxId,
    /// Forward: lines at or after; backward: lines at or before.
    pub cursor: Option<Timestamp>,
    /// Oldest or newest first.
    pub order: SortOrder,
    /// At least this level (`debug` < `info` < `warn` < `error`).
    pub min_level: Option<String>,
    /// Case-sensitive part of the message.
    pub search: Option<String>,
    /// At most this many lines.
    pub limit: u32,
}
