//! A host with an agent, for all tests.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use hutch_agent::{Agent, AgentConfig};
use hutch_node_api::{NodeClient, NodeError, NodeEvent, RouteSource, StartSandbox, StartedSandbox};
use hutch_runtime_fake::{FakeKernel, FakeRuntime, Guest};
use hutch_types::supervise::Supervisor;
use hutch_types::{BuildId, Clock, Ingress, NetworkPolicy, Resources, SandboxId, Secret, TemplateId};

pub const RESOURCES: Resources = Resources { vcpus: 2, memory_mib: 512, disk_mib: 1024, max_processes: 100 };
/// What tests wait for comes long before.
const PATIENCE: Duration = Duration::from_secs(10);

/// A host with an agent.
pub struct Host {
    pub kernel: FakeKernel,
    pub build: BuildId,
    pub agent: Agent,
    supervisor: Supervisor,
    config: AgentConfig,
    /// Holds the file that tells the host's memory.
    folder: tempfile::TempDir,
}

impl Host {
    pub async fn new() -> Self {
        Self::with(|_| {}).await
    }

    pub async fn with(change: impl FnOnce(&mut AgentConfig)) -> Self {
        Self::on(FakeKernel::new(), change).await
    }

    pub async fn with_guest(guest: Guest, change: impl FnOnce(&mut AgentConfig)) -> Self {
        Self::on(FakeKernel::with_guest(guest), change).await
    }

    async fn on(kernel: FakeKernel, change: impl FnOnce(&mut AgentConfig)) -> Self {
        let (build, folder) = (BuildId::random(), tempfile::tempdir().unwrap());
        kernel.add_build(build);
        let mut config = AgentConfig::new("test".parse().unwrap(), "0.0.1");
        config.meminfo = folder.path().join("meminfo");
        config.pool.check_interval = Duration::from_millis(10);
        config.pool.refill_quiet = Duration::ZERO;
        change(&mut config);
        let supervisor = Supervisor::new();
        write_memory(&folder, 16_000);
        let agent = start_agent(&kernel, &config, &supervisor).await;
        Self { kernel, build, agent, supervisor, config, folder }
    }

    /// Ends the daemon and starts the next one on the same host, with the configuration changed.
    pub async fn restart(self, change: impl FnOnce(&mut AgentConfig)) -> Self {
        assert_eq!(self.supervisor.shutdown(PATIENCE).await, 0, "all tasks end");
        self.start_again(change).await
    }

    /// As [`Host::restart`], when the daemon is gone already.
    pub async fn start_again(mut self, change: impl FnOnce(&mut AgentConfig)) -> Self {
        change(&mut self.config);
        self.supervisor = Supervisor::new();
        self.agent = start_agent(&self.kernel, &self.config, &self.supervisor).await;
        self
    }

    pub fn set_free_memory(&self, mib: u64) {
        write_memory(&self.folder, mib);
    }

    pub fn request(&self) -> StartSandbox {
        request(self.build)
    }

    /// Starts a new sandbox.
    pub async fn start(&self) -> SandboxId {
        let request = self.request();
        let id = request.sandbox_id.clone();
        self.agent.start_sandbox(request).await.unwrap();
        id
    }

    /// Starts a new sandbox in the background.
    pub fn begin(&self) -> Begun {
        let (agent, request) = (self.agent.clone(), self.request());
        let (tx, answer) = tokio::sync::oneshot::channel();
        let id = request.sandbox_id.clone();
        self.supervisor.spawn("test", async move { drop(tx.send(agent.start_sandbox(request).await)) });
        Begun { id, answer }
    }

    pub fn ready(&self) -> usize {
        self.agent.pool_status().iter().map(|s| s.ready).sum()
    }

    pub async fn fill_pool(&self, size: usize) {
        self.agent.set_pool_target(self.build, RESOURCES, Some(size));
        assert!(self.agent.wait_pool(self.build, RESOURCES, size, PATIENCE).await, "the pool fills");
        self.agent.idle().await;
    }

    pub async fn running(&self) -> HashSet<SandboxId> {
        self.agent.inventory().await.unwrap().sandboxes.into_iter().map(|s| s.sandbox_id).collect()
    }

    /// All events so far that `pick` wants.
    pub async fn events<T>(&self, pick: impl Fn(NodeEvent) -> Option<T>) -> Vec<T> {
        self.agent.events(0, Duration::ZERO).await.unwrap().events.into_iter().filter_map(pick).collect()
    }

    /// Checks that neither the agent nor the host has anything left.
    pub async fn assert_nothing_left(&self) {
        within("work in flight", self.agent.idle()).await;
        assert_eq!(self.kernel.instances(), []);
        assert_eq!(self.running().await, HashSet::new());
    }

    pub async fn has_route(&self, id: &SandboxId) -> bool {
        self.agent.route(id).await.is_some()
    }
}

async fn start_agent(kernel: &FakeKernel, config: &AgentConfig, supervisor: &Supervisor) -> Agent {
    let runtime = Arc::new(FakeRuntime::new(kernel));
    Agent::start(config.clone(), runtime, supervisor.clone(), Clock::system()).await.unwrap()
}

/// A start in the background.
pub struct Begun {
    pub id: SandboxId,
    answer: tokio::sync::oneshot::Receiver<Result<StartedSandbox, NodeError>>,
}

impl Begun {
    pub async fn answer(self) -> Result<StartedSandbox, NodeError> {
        within("an answer to a start", self.answer).await.unwrap()
    }
}

pub fn request(build_id: BuildId) -> StartSandbox {
    StartSandbox {
        sandbox_id: SandboxId::random(),
        template_id: TemplateId::random(),
        build_id,
        resources: RESOURCES,
        env: [("KEY".to_owned(), "value".to_owned())].into(),
        access_token: Secret::new("an-access-token"),
        network: NetworkPolicy::default(),
        ingress: Ingress::default(),
    }
}

fn write_memory(folder: &tempfile::TempDir, available_mib: u64) {
    let text = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 32_000 << 10, available_mib << 10);
    // Never half written, as a real one never is.
    let fresh = folder.path().join("fresh");
    std::fs::write(&fresh, text).unwrap();
    std::fs::rename(fresh, folder.path().join("meminfo")).unwrap();
}

/// Waits until `is_so`.
pub async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    within(what, async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// Waits for `work`, which must end soon.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(result) => result,
        Err(_) => panic!("waited in vain for {what}"),
    }
}
