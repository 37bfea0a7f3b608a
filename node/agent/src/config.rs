//! Settings of the agent. The app fills them from its configuration.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use hutch_types::NodeId;

/// How an [`Agent`](crate::Agent) behaves. [`AgentConfig::new`] gives sensible values for everything else.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// This node's name.
    pub node_id: NodeId,
    /// The version of envd that new instances get, as the API reports it.
    pub envd_version: String,
    /// Why this isolation and no stronger one, in one sentence for people.
    pub isolation_reason: String,
    /// The user for processes and files when a client names none.
    pub default_user: String,
    /// The directory that processes start in when a client names none.
    pub default_workdir: String,
    /// Where sandboxes reach [`Agent::serve_guests`](crate::Agent::serve_guests), on port 80; `None` when nobody answers.
    pub guest_service: Option<IpAddr>,
    /// Instances that boot at a time; further requests wait in order. At least 1.
    pub max_concurrent_starts: usize,
    /// Requests that may wait for an instance; one more is refused as exhausted.
    pub max_queued_starts: usize,
    /// Longest wait for an instance, its boot included; then the request is refused as exhausted.
    pub queue_timeout: Duration,
    /// Longest boot: until the runtime has started the instance, and again until its envd answers.
    pub boot_timeout: Duration,
    /// How long the envd of an adopted sandbox may take to answer before the sandbox is given up. Generous: the sandbox
    /// may be busy, and has its route meanwhile.
    pub adoption_timeout: Duration,
    /// Longest time until envd has accepted its identity.
    pub init_timeout: Duration,
    /// Longest single step on an instance: labels, host name, network policy, figures.
    pub step_timeout: Duration,
    /// Longest that [`stop_sandbox`](hutch_node_api::NodeClient::stop_sandbox) waits; the clean-up goes on after it.
    pub stop_timeout: Duration,
    /// Time between two samples of a sandbox; the first comes after a second.
    pub sample_interval: Duration,
    /// Longest wait for the last log lines of a sandbox that is stopped. It delays every stop of a guest that does not
    /// answer, so it is short.
    pub last_logs_timeout: Duration,
    /// Events kept for control; the oldest are dropped.
    pub max_events: usize,
    /// Requests that may wait for one sandbox; one more is refused as unavailable.
    pub mailbox: usize,
    /// Clean-ups that may go on behind answered stops; beyond, a stop is answered when its own clean-up is done.
    pub max_background_cleanups: usize,
    /// Where the host tells its memory.
    pub meminfo: PathBuf,
    /// The warm pool.
    pub pool: PoolConfig,
}

/// How the warm pool behaves.
#[derive(Debug, Clone)]
pub struct PoolConfig {
    /// Instances kept ready for a build when [`set_pool_target`](crate::Agent::set_pool_target) names no number.
    pub size: usize,
    /// Refills that boot at a time. They pause while a request waits for a boot.
    pub max_concurrent_refill: usize,
    /// With less available host memory than this, in MiB, nothing is refilled and the pool shrinks.
    pub min_free_memory_mib: u64,
    /// How long no instance must have been claimed before a refill, unless less than half of the target is ready: it
    /// keeps the CPUs free for the sandbox that has just been handed out.
    pub refill_quiet: Duration,
    /// How long adopted pool instances are kept before those that no target wants are ended.
    pub adoption_grace: Duration,
    /// Time between two looks at the host's memory.
    pub check_interval: Duration,
}

impl AgentConfig {
    /// Defaults for a node of this name.
    pub fn new(node_id: NodeId, envd_version: impl Into<String>) -> Self {
        let cpus = crate::memory::host_cpus();
        Self {
            node_id,
            envd_version: envd_version.into(),
            isolation_reason: String::new(),
            default_user: "user".to_owned(),
            default_workdir: "/home/user".to_owned(),
            guest_service: None,
            max_concurrent_starts: usize::try_from(cpus).unwrap_or(1).saturating_mul(2),
            max_queued_starts: 512,
            queue_timeout: Duration::from_secs(30),
            boot_timeout: Duration::from_secs(30),
            adoption_timeout: Duration::from_secs(15),
            init_timeout: Duration::from_secs(10),
            step_timeout: Duration::from_secs(10),
            stop_timeout: Duration::from_secs(30),
            sample_interval: Duration::from_secs(5),
            last_logs_timeout: Duration::from_millis(25),
            max_events: 16_384,
            mailbox: 16,
            max_background_cleanups: 8,
            meminfo: PathBuf::from("/proc/meminfo"),
            pool: PoolConfig::default(),
        }
    }
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            size: 4,
            max_concurrent_refill: 1,
            min_free_memory_mib: 512,
            refill_quiet: Duration::from_millis(100),
            adoption_grace: Duration::from_secs(10),
            check_interval: Duration::from_secs(5),
        }
    }
}
