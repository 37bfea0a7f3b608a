//! A node that is played: it remembers what it was asked, and fails or waits as it is told.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use hutch_node_api::{
    Inventory, NodeClient, NodeError, NodeErrorKind, NodeEvent, NodeEvents, NodeInfo, RunningSandbox,
    StartSandbox, StartedSandbox,
};
use hutch_types::{Isolation, NetworkPolicy, SandboxId};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

pub const ENVD_VERSION: &str = "0.6.13";

#[derive(Debug)]
pub struct FakeNode {
    state: Mutex<State>,
    /// One permit lets one start go on while `holds_starts`.
    pub gate: Semaphore,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<SandboxId, StartSandbox>,
    starts: Vec<StartSandbox>,
    stops: Vec<SandboxId>,
    start_fault: Option<NodeErrorKind>,
    stop_faults: usize,
    holds_starts: bool,
    events: Vec<NodeEvent>,
}

impl FakeNode {
    pub fn new() -> Self {
        Self { state: Mutex::default(), gate: Semaphore::new(0), news: Notify::new() }
    }

    /// From now on starts fail so, or succeed again.
    pub fn fail_starts(&self, kind: Option<NodeErrorKind>) {
        self.state.lock().start_fault = kind;
    }

    /// The next `n` stops fail.
    pub fn fail_stops(&self, n: usize) {
        self.state.lock().stop_faults = n;
    }

    /// From now on each start waits for a permit of the gate.
    pub fn hold_starts(&self) {
        self.state.lock().holds_starts = true;
    }

    pub fn starts(&self) -> Vec<StartSandbox> {
        self.state.lock().starts.clone()
    }

    pub fn stops(&self) -> Vec<SandboxId> {
        self.state.lock().stops.clone()
    }

    pub fn is_running(&self, id: &SandboxId) -> bool {
        self.state.lock().running.contains_key(id)
    }

    pub fn running_count(&self) -> usize {
        self.state.lock().running.len()
    }

    /// A sandbox vanishes without a word.
    pub fn lose(&self, id: &SandboxId) {
        self.state.lock().running.remove(id);
    }

    /// A sandbox appears that nobody asked for.
    pub fn plant(&self, start: StartSandbox) {
        self.state.lock().running.insert(start.sandbox_id.clone(), start);
    }

    /// Something happens.
    pub fn report(&self, event: NodeEvent) {
        self.state.lock().events.push(event);
        self.news.notify_waiters();
    }
}

#[async_trait]
impl NodeClient for FakeNode {
    async fn info(&self) -> Result<NodeInfo, NodeError> {
        Err(NodeError::new(NodeErrorKind::Unsupported, "not played"))
    }

    async fn start_sandbox(&self, request: StartSandbox) -> Result<StartedSandbox, NodeError> {
        let holds = {
            let mut state = self.state.lock();
            state.starts.push(request.clone());
            state.holds_starts
        };
        if holds {
            self.gate.acquire().await.expect("the gate is not closed").forget();
        }
        let mut state = self.state.lock();
        if let Some(kind) = state.start_fault {
            return Err(NodeError::new(kind, "internal words of the node"));
        }
        state.running.insert(request.sandbox_id.clone(), request);
        Ok(StartedSandbox {
            envd_version: ENVD_VERSION.to_owned(),
            isolation: Isolation::Container,
            from_pool: false,
        })
    }

    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), NodeError> {
        let mut state = self.state.lock();
        if state.stop_faults > 0 {
            state.stop_faults -= 1;
            return Err(NodeError::new(NodeErrorKind::Internal, "it does not die"));
        }
        state.running.remove(id);
        state.stops.push(id.clone());
        Ok(())
    }

    async fn set_network(&self, _: &SandboxId, _: NetworkPolicy) -> Result<(), NodeError> {
        Err(NodeError::new(NodeErrorKind::Unsupported, "not played"))
    }

    async fn inventory(&self) -> Result<Inventory, NodeError> {
        let state = self.state.lock();
        let sandboxes = state
            .running
            .values()
            .map(|s| RunningSandbox { sandbox_id: s.sandbox_id.clone(), build_id: s.build_id })
            .collect();
        Ok(Inventory { sandboxes, cursor: state.events.len() as u64 })
    }

    async fn events(&self, after: u64, wait: Duration) -> Result<NodeEvents, NodeError> {
        let page = || {
            let state = self.state.lock();
            let after = usize::try_from(after).unwrap_or(0).min(state.events.len());
            NodeEvents {
                events: state.events[after..].to_vec(),
                cursor: state.events.len() as u64,
                missed: false,
            }
        };
        let news = self.news.notified();
        tokio::pin!(news);
        news.as_mut().enable();
        let now = page();
        if !now.events.is_empty() || wait.is_zero() {
            return Ok(now);
        }
        tokio::select! {
            () = news => {}
            () = tokio::time::sleep(wait) => {}
        }
        Ok(page())
    }
}
