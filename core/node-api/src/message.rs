//! Messages of the node protocol.

use std::collections::BTreeMap;

use hutch_types::{
    BuildId, Ingress, Isolation, KillReason, NetworkPolicy, NodeId, PauseMode, Resources, SandboxId, Secret,
    TemplateId, Timestamp,
};
use serde::{Deserialize, Serialize};

/// What a node is and can do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Its name.
    pub id: NodeId,
    /// The isolation in force.
    pub isolation: Isolation,
    /// The version of envd that new sandboxes get, as clients see it.
    pub envd_version: String,
    /// Why this isolation and no stronger one, in one sentence for people.
    pub isolation_reason: String,
    /// Builds whose image is here.
    pub builds: Vec<BuildId>,
    /// Host memory in MiB.
    pub memory_mib: u64,
    /// Host CPUs.
    pub cpus: u32,
}

/// Everything a node needs to start a sandbox.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartSandbox {
    /// The sandbox to be.
    pub sandbox_id: SandboxId,
    /// Its template: what the guest sees as `E2B_TEMPLATE_ID`.
    pub template_id: TemplateId,
    /// The image to start from.
    pub build_id: BuildId,
    /// Limits.
    pub resources: Resources,
    /// Environment of every process inside.
    pub env: BTreeMap<String, String>,
    /// What envd's clients must send as `X-Access-Token`.
    pub access_token: Secret,
    /// What it may reach.
    pub network: NetworkPolicy,
    /// Who may reach its ports, and how.
    #[serde(default)]
    pub ingress: Ingress,
}

/// A sandbox that answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartedSandbox {
    /// Its envd's version.
    pub envd_version: String,
    /// How it is isolated.
    pub isolation: Isolation,
    /// Whether it was taken from the warm pool.
    pub from_pool: bool,
}

/// One sandbox that a node has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunningSandbox {
    /// Which one.
    pub sandbox_id: SandboxId,
    /// Started from this build.
    pub build_id: BuildId,
}

/// A sandbox that a node has saved and can resume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PausedSandbox {
    /// Which one.
    pub sandbox_id: SandboxId,
    /// What is saved of it.
    pub mode: PauseMode,
}

/// All sandboxes of a node, and the event cursor that this list corresponds to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inventory {
    /// What runs.
    pub sandboxes: Vec<RunningSandbox>,
    /// What is saved and does not run.
    pub paused: Vec<PausedSandbox>,
    /// Events up to this one are contained in the list.
    pub cursor: u64,
}

/// Something that happened on a node without control having asked for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum NodeEvent {
    /// A sandbox ended by itself, or could not be adopted after a restart of the node.
    Exited {
        /// Which one.
        sandbox_id: SandboxId,
        /// Why.
        reason: KillReason,
        /// More for the logs, in one sentence.
        detail: String,
    },
    /// A sample of what a sandbox uses.
    Sample {
        /// Whose.
        sandbox_id: SandboxId,
        /// The figures.
        sample: ResourceSample,
    },
    /// Lines from a sandbox's envd. The identity is the node's knowledge, not the guest's word.
    Logs {
        /// Whose.
        sandbox_id: SandboxId,
        /// Oldest first.
        lines: Vec<LogLine>,
    },
}

/// What a sandbox used at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ResourceSample {
    /// When.
    pub at: Timestamp,
    /// Virtual CPUs.
    pub cpu_count: u32,
    /// Percentage of all its CPUs since the sample before.
    pub cpu_used_pct: f64,
    /// Bytes in use, without page cache.
    pub mem_used_bytes: u64,
    /// The memory limit in bytes.
    pub mem_total_bytes: u64,
    /// Page cache in bytes.
    pub mem_cache_bytes: u64,
    /// Disk bytes in use.
    pub disk_used_bytes: u64,
    /// The disk limit in bytes.
    pub disk_total_bytes: u64,
}

/// One structured log line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogLine {
    /// When, by the guest's clock but never in the host's future.
    pub at: Timestamp,
    /// `debug`, `info`, `warn` or `error`.
    pub level: String,
    /// The text.
    pub message: String,
    /// Further fields, `logger` among them.
    pub fields: BTreeMap<String, String>,
}

/// A page of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NodeEvents {
    /// Oldest first.
    pub events: Vec<NodeEvent>,
    /// Pass this as `after` next time.
    pub cursor: u64,
    /// Events between `after` and the first one here were dropped.
    pub missed: bool,
}

/// What kind of failure; control maps it to an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeErrorKind {
    /// The sandbox or image is not on this node.
    NotFound,
    /// The request cannot be honoured by this node.
    Unsupported,
    /// No slot, disk or memory is free; another try later may succeed.
    Exhausted,
    /// Draining, or the sandbox is in transition.
    Unavailable,
    /// The deadline passed.
    DeadlineExceeded,
    /// Anything else; the message is for logs.
    Internal,
}

/// A failed call.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{message}")]
pub struct NodeError {
    /// What kind.
    pub kind: NodeErrorKind,
    /// What was attempted on what, with its causes; for logs, not for clients.
    pub message: String,
}

impl NodeError {
    /// An error of `kind`.
    pub fn new(kind: NodeErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }
}
