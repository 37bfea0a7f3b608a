//! A node that is played: it remembers what it was asked, and fails or waits as it is told.

use std::collections::BTreeMap;
use std::time::Duration;

use async_trait::async_trait;
use hutch_node_api::{
    Inventory, NodeClient, NodeError, NodeErrorKind, NodeEvent, NodeEvents, NodeInfo, PausedSandbox,
    RunningSandbox, StartSandbox, StartedSandbox,
};
use hutch_types::{Isolation, NetworkPolicy, PauseMode, SandboxId};
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

pub const ENVD_VERSION: &str = "0.6.13";

#[derive(Debug)]
pub struct FakeNode {
    state: Mutex<State>,
    /// One permit lets one start go on while `holds_starts`.
    pub gate: Semaphore,
    /// The same for pauses and resumes.
    pub pause_gate: Semaphore,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    running: BTreeMap<SandboxId, StartSandbox>,
    paused: BTreeMap<SandboxId, (PauseMode, StartSandbox)>,
    pauses: Vec<(SandboxId, PauseMode)>,
    resumes: Vec<(StartSandbox, PauseMode)>,
    pause_fault: Option<(NodeErrorKind, Vec<PauseMode>)>,
    resume_fault: Option<NodeErrorKind>,
    holds_pauses: bool,
    starts: Vec<StartSandbox>,
    stops: Vec<SandboxId>,
    start_fault: Option<NodeErrorKind>,
    stop_faults: usize,
    holds_starts: bool,
    events: Vec<NodeEvent>,
}

impl FakeNode {
    pub fn new() -> Self {
        Self {
            state: Mutex::default(),
            gate: Semaphore::new(0),
            pause_gate: Semaphore::new(0),
            news: Notify::new(),
        }
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

    /// From now on pauses in these modes fail so.
    pub fn fail_pauses(&self, kind: NodeErrorKind, modes: &[PauseMode]) {
        self.state.lock().pause_fault = Some((kind, modes.to_vec()));
    }

    /// From now on resumes fail so, or succeed again.
    pub fn fail_resumes(&self, kind: Option<NodeErrorKind>) {
        self.state.lock().resume_fault = kind;
    }

    /// From now on each pause and resume waits for a permit of its gate.
    pub fn hold_pauses(&self) {
        self.state.lock().holds_pauses = true;
    }

    pub fn pauses(&self) -> Vec<(SandboxId, PauseMode)> {
        self.state.lock().pauses.clone()
    }

    pub fn resumes(&self) -> Vec<(StartSandbox, PauseMode)> {
        self.state.lock().resumes.clone()
    }

    /// What is saved of a sandbox.
    pub fn saved(&self, id: &SandboxId) -> Option<PauseMode> {
        self.state.lock().paused.get(id).map(|(mode, _)| *mode)
    }

    /// A running sandbox becomes a saved one without a word.
    pub fn save(&self, id: &SandboxId, mode: PauseMode) {
        let mut state = self.state.lock();
        let start = state.running.remove(id).expect("it runs");
        state.paused.insert(id.clone(), (mode, start));
    }

    /// A saved sandbox becomes a running one without a word.
    pub fn unsave(&self, id: &SandboxId) {
        let mut state = self.state.lock();
        let (_, start) = state.paused.remove(id).expect("it is saved");
        state.running.insert(id.clone(), start);
    }

    async fn wait_for_pause_gate(&self) {
        let holds = self.state.lock().holds_pauses;
        if holds {
            self.pause_gate.acquire().await.expect("the gate is not closed").forget();
        }
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
        let mut state = self.state.lock();
        state.running.remove(id);
        state.paused.remove(id);
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
        state.paused.remove(id);
        state.stops.push(id.clone());
        Ok(())
    }

    async fn pause_sandbox(&self, id: &SandboxId, mode: PauseMode) -> Result<(), NodeError> {
        self.state.lock().pauses.push((id.clone(), mode));
        self.wait_for_pause_gate().await;
        let mut state = self.state.lock();
        if let Some((kind, modes)) = &state.pause_fault
            && modes.contains(&mode)
        {
            return Err(NodeError::new(*kind, "internal words of the node"));
        }
        if state.paused.contains_key(id) {
            return Ok(());
        }
        let missing = || NodeError::new(NodeErrorKind::NotFound, "internal words of the node");
        let start = state.running.remove(id).ok_or_else(missing)?;
        state.paused.insert(id.clone(), (mode, start));
        Ok(())
    }

    async fn resume_sandbox(
        &self,
        request: StartSandbox,
        mode: PauseMode,
    ) -> Result<StartedSandbox, NodeError> {
        self.state.lock().resumes.push((request.clone(), mode));
        self.wait_for_pause_gate().await;
        let mut state = self.state.lock();
        if let Some(kind) = state.resume_fault {
            return Err(NodeError::new(kind, "internal words of the node"));
        }
        if !state.running.contains_key(&request.sandbox_id) {
            let missing = || NodeError::new(NodeErrorKind::NotFound, "internal words of the node");
            state.paused.remove(&request.sandbox_id).ok_or_else(missing)?;
            state.running.insert(request.sandbox_id.clone(), request);
        }
        Ok(StartedSandbox {
            envd_version: ENVD_VERSION.to_owned(),
            isolation: Isolation::Container,
            from_pool: false,
        })
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
        let paused = state
            .paused
            .iter()
            .map(|(id, (mode, _))| PausedSandbox { sandbox_id: id.clone(), mode: *mode })
            .collect();
        Ok(Inventory { sandboxes, paused, cursor: state.events.len() as u64 })
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
