//! What every isolation backend gives.
//!
//! A [`Runtime`] starts [`Instance`]s: isolated machines whose PID 1 starts envd. The runtime never runs user
//! commands; everything else goes through envd. Above this trait nobody knows which backend is in use.
//!
//! Instances outlive the daemon. After a restart [`Runtime::adopt`] finds them again from what is on disk and in the
//! kernel, and cleans up completely what it cannot adopt.

pub mod conformance;

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hutch_types::{BuildId, InstanceId, Isolation, NetworkPolicy, PauseMode, Resources, Secret};
use serde::{Deserialize, Serialize};

/// What to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct InstanceSpec {
    /// The new instance's id; never used before.
    pub id: InstanceId,
    /// The image to start from; it must be on this node.
    pub build_id: BuildId,
    /// Limits, enforced on the instance as a whole.
    pub resources: Resources,
    /// Handed to envd at boot; its internal routes accept callers who know it.
    pub secret: Secret,
}

/// What a backend can do beyond starting and killing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capabilities {
    /// Whether instances survive the daemon and can be adopted.
    pub adopt: bool,
    /// Whether resource limits are enforced.
    pub limits: bool,
    /// Whether network policies are enforced.
    pub network_policy: bool,
    /// Whether an instance can be paused with its memory. Without it, with its files alone.
    pub memory: bool,
    /// Whether processes are isolated from the host. False only for the test backend.
    pub isolated: bool,
}

/// How an instance ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum ExitCause {
    /// [`Instance::kill`] was called.
    Killed,
    /// [`Instance::pause`] saved it.
    Paused,
    /// Its PID 1 ended by itself.
    Exited,
}

/// Live figures of an instance as the host sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InstanceStats {
    /// CPU time used since start, in microseconds.
    pub cpu_usage_us: u64,
    /// Memory in use without reclaimable page cache, in bytes.
    pub memory_used_bytes: u64,
    /// Page cache in bytes.
    pub memory_cache_bytes: u64,
    /// Bytes used on the writable disk.
    pub disk_used_bytes: u64,
    /// Size of the writable disk in bytes.
    pub disk_total_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
}

/// Why a backend could not do something. Messages name what was attempted on what; causes are in `source`.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// The image of the build is not on this node.
    #[error("no image for build {0}")]
    NoImage(BuildId),
    /// No paused instance has this id, or what is asked for was not saved.
    #[error("instance {0} is not paused so that it could be resumed like this")]
    NotPaused(InstanceId),
    /// Something that is limited has run out: slots, disk, loop devices.
    #[error("{what} exhausted")]
    Exhausted {
        /// What ran out.
        what: String,
    },
    /// A step failed.
    #[error("{attempted}")]
    Failed {
        /// What was attempted on what.
        attempted: String,
        /// Why it failed.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A step did not end in time.
    #[error("{attempted} took longer than {limit_ms} ms")]
    TimedOut {
        /// What was attempted on what.
        attempted: String,
        /// The deadline in milliseconds.
        limit_ms: u64,
    },
}

impl RuntimeError {
    /// A failed step with its cause.
    pub fn failed(
        attempted: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        Self::Failed { attempted: attempted.into(), source: source.into() }
    }

    /// This error and all its causes in one line, for logs.
    pub fn chain(&self) -> String {
        let mut text = self.to_string();
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            text.push_str(": ");
            text.push_str(&error.to_string());
            cause = error.source();
        }
        text
    }
}

/// What [`Runtime::adopt`] found.
#[derive(Debug, Default)]
pub struct Adoption {
    /// Instances that run on, each with the spec that it was started with.
    pub adopted: Vec<Arc<dyn Instance>>,
    /// Paused instances, which can be resumed.
    pub paused: Vec<PausedInstance>,
    /// Instances of which nothing is left now.
    pub lost: Vec<LostInstance>,
}

/// An instance that is saved on disk and does not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PausedInstance {
    /// What it was started with.
    pub spec: InstanceSpec,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// What is saved of it.
    pub mode: PauseMode,
}

/// An instance that ended, or had to be ended, while no daemon was there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostInstance {
    /// Which one.
    pub id: InstanceId,
    /// Its labels as far as they could be read; they say which sandbox it was.
    pub labels: BTreeMap<String, String>,
    /// Why it could not be kept, in one sentence.
    pub reason: String,
}

/// An isolation backend on this host.
#[async_trait]
pub trait Runtime: Debug + Send + Sync + 'static {
    /// How instances of this backend are isolated.
    fn isolation(&self) -> Isolation;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Builds that can be started here.
    async fn builds(&self) -> Result<Vec<BuildId>, RuntimeError>;

    /// Starts an instance and returns once its PID 1 runs and its network is attached with everything denied.
    /// envd may need some milliseconds more to answer.
    ///
    /// # Errors
    /// [`RuntimeError`]; then nothing of the instance is left.
    async fn start(&self, spec: InstanceSpec) -> Result<Arc<dyn Instance>, RuntimeError>;

    /// Brings a paused instance back, with the id, secret and labels that it had, on any slot, and with everything denied
    /// as after [`Runtime::start`]. What was saved is given up when it runs, not before. With [`PauseMode::Filesystem`] it
    /// boots anew, whatever was saved.
    ///
    /// # Errors
    /// [`RuntimeError`]; then it is paused as before. [`RuntimeError::NotPaused`] when no such instance is, or when
    /// its memory is asked for and was not saved.
    async fn resume(&self, id: &InstanceId, mode: PauseMode) -> Result<Arc<dyn Instance>, RuntimeError>;

    /// Deletes a paused instance. None of this name is no error. It must not run.
    async fn discard(&self, id: &InstanceId) -> Result<(), RuntimeError>;

    /// Finds instances that an earlier daemon started and cleans up everything else that is left of one. Called once,
    /// before the first `start`.
    async fn adopt(&self) -> Result<Adoption, RuntimeError>;

    /// Prepares resources ahead of `start` so that it is quicker (disks, links), up to `count` instances.
    async fn prepare(&self, build: BuildId, resources: Resources, count: usize) -> Result<(), RuntimeError>;
}

/// One running isolation unit. Dropping the handle does not end it.
#[async_trait]
pub trait Instance: Debug + Send + Sync + 'static {
    /// What it was started with.
    fn spec(&self) -> &InstanceSpec;

    /// The address at which its servers answer from this host.
    fn address(&self) -> IpAddr;

    /// The port at `address` on which envd listens.
    fn envd_port(&self) -> u16;

    /// Notes kept with the instance on disk, replaced as a whole: a later daemon reads all of the old or all of the new
    /// ones. The agent keeps there which sandbox an instance belongs to. On return they survive the death of the daemon
    /// (`kill -9`). They need not survive a crash of the host, since no instance does: write to a new file and rename,
    /// without fsync, because creating a sandbox waits for this.
    async fn set_labels(&self, labels: BTreeMap<String, String>) -> Result<(), RuntimeError>;

    /// The notes of the last [`Instance::set_labels`], also after adoption.
    fn labels(&self) -> BTreeMap<String, String>;

    /// Sets the host name that processes inside see.
    async fn set_hostname(&self, name: &str) -> Result<(), RuntimeError>;

    /// Puts a network policy in force, atomically. Before the first call everything is denied.
    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), RuntimeError>;

    /// What it uses now.
    async fn stats(&self) -> Result<InstanceStats, RuntimeError>;

    /// Saves it to disk and ends it; it is then [`PausedInstance`], also for later daemons. Durable on return. With
    /// [`PauseMode::Full`] memory and processes are saved, with [`PauseMode::Filesystem`] files alone. `exited` says
    /// [`ExitCause::Paused`]. Not cancelled by dropping the call.
    ///
    /// # Errors
    /// [`RuntimeError`]; then it runs on, with at most a gap in time. A daemon that dies in between leaves an instance
    /// that runs, or one that is paused.
    async fn pause(&self, mode: PauseMode) -> Result<(), RuntimeError>;

    /// Ends it and removes everything that belongs to it: processes, mounts, disk, links, rules, cgroups, files. Works from every state,
    /// may be called again, and returns when nothing is left.
    async fn kill(&self) -> Result<(), RuntimeError>;

    /// Completes when its PID 1 is gone, for whatever cause. Cancellation safe; any number may wait.
    async fn exited(&self) -> ExitCause;
}
