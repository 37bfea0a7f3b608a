//! The agent: the node's side of the node protocol.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use hutch_node_api::{
    Inventory, NodeClient, NodeError, NodeErrorKind, NodeEvents, NodeInfo, Route, RouteSource, StartSandbox,
    StartedSandbox,
};
use hutch_runtime::{Runtime, RuntimeError};
use hutch_types::supervise::Supervisor;
use hutch_types::{BuildId, Clock, NetworkPolicy, PauseMode, Resources, SandboxId};
use tokio_util::sync::CancellationToken;

use crate::adopt::adopt;
use crate::config::AgentConfig;
use crate::error::StartError;
use crate::memory::{host_cpus, host_memory};
use crate::node::Node;
use crate::pool::{Key, PoolStatus};
use crate::sandbox::{spawn_new, spawn_resumed};
use crate::shared::Shared;
use crate::work::Work;

/// Longest wait of [`NodeClient::events`], whatever the caller asks for.
const LONGEST_POLL: Duration = Duration::from_secs(60);

/// Runs the sandboxes of one host. Clones are handles to the same agent.
///
/// Sandboxes outlive it: [`Agent::shutdown`], a stop of its supervisor or the death of the daemon leave them running,
/// and the next [`Agent::start`] on the same runtime adopts them.
#[derive(Debug, Clone)]
pub struct Agent {
    node: Arc<Node>,
}

impl Agent {
    /// Adopts what an earlier daemon left and begins to serve. Returns when all sandboxes that survived have their
    /// routes again; those that did not are among the [`events`](NodeClient::events).
    ///
    /// # Errors
    /// When the runtime cannot tell what is there.
    pub async fn start(
        config: AgentConfig,
        runtime: Arc<dyn Runtime>,
        supervisor: Supervisor,
        clock: Clock,
    ) -> Result<Self, RuntimeError> {
        let closing = CancellationToken::new();
        let shared = Arc::new(Shared {
            config,
            runtime,
            supervisor: supervisor.clone(),
            clock,
            closing: closing.clone(),
            work: Work::default(),
        });
        let node = Node::new(shared);
        adopt(&node).await?;
        node.pool.spawn_keeper();
        let stop = supervisor.clone();
        supervisor.spawn("agent-stop", async move {
            tokio::select! {
                () = stop.stopping() => closing.cancel(),
                () = closing.cancelled() => {}
            }
        });
        Ok(Self { node })
    }

    /// Answers sandboxes on `listener` (`GET /me`, `POST /logs`) until the agent shuts down. Which sandbox asks is told by
    /// the source address alone: the listener must be where no sandbox can show another one's.
    ///
    /// # Errors
    /// When the listener cannot be used.
    pub fn serve_guests(&self, listener: std::net::TcpListener) -> std::io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let supervisor = &self.node.shared.supervisor;
        supervisor.spawn("guest-service", crate::guests::serve(listener, self.node.clone()));
        Ok(())
    }

    /// Keeps `size` instances of this build and these resources ready, or as many as the configuration says. Creates
    /// with other resources do not find them. 0 ends the ones that are ready.
    pub fn set_pool_target(&self, build: BuildId, resources: Resources, size: Option<usize>) {
        let shared = &self.node.shared;
        let size = size.unwrap_or(shared.config.pool.size);
        self.node.pool.set_target(Key { build, resources }, size);
        if size > 0 {
            let (shared, job) = (shared.clone(), shared.work.begin());
            shared.supervisor.clone().spawn("prepare", async move {
                tokio::select! {
                    result = shared.runtime.prepare(build, resources, size) => {
                        if let Err(error) = result {
                            tracing::warn!(%build, error = error.chain(), "could not prepare for a build");
                        }
                    }
                    () = shared.closing.cancelled() => {}
                }
                drop(job);
            });
        }
    }

    /// The warm pool as it is now, one entry for each build and size that is kept, booted or waited for.
    pub fn pool_status(&self) -> Vec<PoolStatus> {
        self.node.pool.status()
    }

    /// Waits until `ready` instances of this build and size are ready, at most `within`. Returns whether they are.
    pub async fn wait_pool(
        &self,
        build: BuildId,
        resources: Resources,
        ready: usize,
        within: Duration,
    ) -> bool {
        let is_ready = || {
            let status = self.pool_status();
            ready == 0
                || status.iter().any(|s| s.build == build && s.resources == resources && s.ready >= ready)
        };
        let waiting = async {
            while !is_ready() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(within, waiting).await.is_ok()
    }

    /// Completes when no start, stop, boot or clean-up is in flight. Refills that are not due yet do not count.
    pub async fn idle(&self) {
        self.node.shared.work.idle().await;
    }

    /// Refuses new starts, waits for what is in flight and leaves all sandboxes running. A clean-up that does not
    /// end is waited for as long as a stop would be; the next adoption takes it up.
    pub async fn shutdown(&self) {
        self.node.shared.closing.cancel();
        let grace = self.node.shared.config.stop_timeout;
        let done = async {
            self.idle().await;
            self.node.actors.idle().await;
        };
        if tokio::time::timeout(grace, done).await.is_err() {
            tracing::warn!("shut down with work in flight");
        }
    }

    /// Ends every sandbox and every warm instance, for an operator. Returns when nothing is left.
    ///
    /// # Errors
    /// [`NodeErrorKind::Unavailable`] after a shutdown.
    pub async fn destroy_all(&self) -> Result<(), NodeError> {
        self.node.pool.drain();
        loop {
            let handles: Vec<_> = self.node.sandboxes.lock().values().cloned().collect();
            if handles.is_empty() {
                break;
            }
            futures::future::try_join_all(handles.into_iter().map(crate::sandbox::Handle::stop)).await?;
        }
        let paused: Vec<_> = self.node.paused.lock().keys().cloned().collect();
        for id in paused {
            self.discard(&id).await?;
        }
        self.node.pool.drain();
        self.idle().await;
        Ok(())
    }

    /// Deletes a paused sandbox. None is no error.
    async fn discard(&self, id: &SandboxId) -> Result<(), NodeError> {
        let Some(paused) = self.node.paused.lock().remove(id) else { return Ok(()) };
        let shared = &self.node.shared;
        let _job = shared.work.begin();
        let limit = shared.config.stop_timeout;
        match tokio::time::timeout(limit, shared.runtime.discard(&paused.instance)).await {
            Ok(Ok(())) => {
                tracing::info!(sandbox = %id, "discarded");
                Ok(())
            }
            failed => {
                self.node.paused.lock().insert(id.clone(), paused);
                let why = failed.map_or_else(
                    |_| format!("took longer than {} ms (stop_timeout)", limit.as_millis()),
                    |result| result.err().map(|e| e.chain()).unwrap_or_default(),
                );
                Err(NodeError::new(NodeErrorKind::Internal, format!("discard sandbox {id}: {why}")))
            }
        }
    }

    fn not_found(id: &SandboxId) -> NodeError {
        NodeError::new(NodeErrorKind::NotFound, format!("no sandbox {id} on this node"))
    }
}

#[async_trait]
impl NodeClient for Agent {
    async fn info(&self) -> Result<NodeInfo, NodeError> {
        let shared = &self.node.shared;
        let builds =
            shared.runtime.builds().await.map_err(|e| {
                NodeError::new(NodeErrorKind::Internal, format!("list builds: {}", e.chain()))
            })?;
        Ok(NodeInfo {
            id: shared.config.node_id.clone(),
            isolation: shared.runtime.isolation(),
            envd_version: shared.config.envd_version.clone(),
            isolation_reason: shared.config.isolation_reason.clone(),
            builds,
            memory_mib: host_memory(&shared.config.meminfo).map_or(0, |m| m.total_mib),
            cpus: host_cpus(),
        })
    }

    async fn start_sandbox(&self, request: StartSandbox) -> Result<StartedSandbox, NodeError> {
        let handle = {
            let mut sandboxes = self.node.sandboxes.lock();
            match sandboxes.get(&request.sandbox_id) {
                // Starts or runs already: all who ask get the same answer.
                Some(handle) => handle.clone(),
                None if self.node.shared.closing.is_cancelled() => return Err(StartError::Draining.into()),
                None => {
                    let id = request.sandbox_id.clone();
                    let handle = spawn_new(&self.node, request);
                    sandboxes.insert(id, handle.clone());
                    handle
                }
            }
        };
        handle.started().await
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), NodeError> {
        if self.node.shared.closing.is_cancelled() {
            return Err(StartError::Draining.into());
        }
        // The route goes first, so that no new request reaches what is about to end.
        self.node.routes.write().remove(id);
        let handle = self.node.sandboxes.lock().get(id).cloned();
        let Some(handle) = handle else { return self.discard(id).await };
        let limit = self.node.shared.config.stop_timeout;
        let stopped = tokio::time::timeout(limit, handle.stop()).await.unwrap_or_else(|_| {
            let message = format!("sandbox {id} was not gone within {} ms (stop_timeout)", limit.as_millis());
            Err(NodeError::new(NodeErrorKind::DeadlineExceeded, message))
        });
        match stopped {
            // A pause was quicker.
            Err(_) if self.node.paused.lock().contains_key(id) => self.discard(id).await,
            other => other,
        }
    }

    async fn pause_sandbox(&self, id: &SandboxId, mode: PauseMode) -> Result<(), NodeError> {
        let shared = &self.node.shared;
        if shared.closing.is_cancelled() {
            return Err(StartError::Draining.into());
        }
        if mode == PauseMode::Full && !shared.runtime.capabilities().memory {
            let message = format!("{} on this node cannot save memory", shared.runtime.isolation());
            return Err(NodeError::new(NodeErrorKind::Unsupported, message));
        }
        let handle = self.node.sandboxes.lock().get(id).cloned();
        let result = match handle {
            Some(handle) => handle.pause(mode).await,
            None => Err(Self::not_found(id)),
        };
        match result {
            // Another request was quicker.
            Err(error)
                if error.kind == NodeErrorKind::NotFound && self.node.paused.lock().contains_key(id) =>
            {
                Ok(())
            }
            other => other,
        }
    }

    async fn resume_sandbox(
        &self,
        request: StartSandbox,
        mode: PauseMode,
    ) -> Result<StartedSandbox, NodeError> {
        let id = request.sandbox_id.clone();
        loop {
            let handle = {
                let mut sandboxes = self.node.sandboxes.lock();
                if let Some(handle) = sandboxes.get(&id) {
                    handle.clone()
                } else if self.node.shared.closing.is_cancelled() {
                    return Err(StartError::Draining.into());
                } else {
                    let paused = self.node.paused.lock().remove(&id).ok_or_else(|| Self::not_found(&id))?;
                    let handle = spawn_resumed(&self.node, request.clone(), paused, mode);
                    sandboxes.insert(id.clone(), handle.clone());
                    handle
                }
            };
            // One that is just being paused is resumed after that, or runs on.
            if handle.pausing_is_over().await {
                return handle.started().await;
            }
        }
    }

    async fn set_network(&self, id: &SandboxId, policy: NetworkPolicy) -> Result<(), NodeError> {
        let handle = self.node.sandboxes.lock().get(id).cloned();
        handle.ok_or_else(|| Self::not_found(id))?.set_network(policy).await
    }

    async fn inventory(&self) -> Result<Inventory, NodeError> {
        // The cursor first: the list then contains at least what the events up to it tell.
        let cursor = self.node.events.cursor();
        let (sandboxes, paused) = self.node.all();
        Ok(Inventory { sandboxes, paused, cursor })
    }

    async fn events(&self, after: u64, wait: Duration) -> Result<NodeEvents, NodeError> {
        Ok(self.node.events.after(after, wait.min(LONGEST_POLL)).await)
    }
}

#[async_trait]
impl RouteSource for Agent {
    async fn route(&self, id: &SandboxId) -> Option<Route> {
        self.node.routes.read().get(id).cloned()
    }
}
