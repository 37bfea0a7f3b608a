//! The state of one node: its sandboxes, routes and events.

use std::collections::HashMap;
use std::sync::Arc;

use hutch_node_api::{PausedSandbox, Route, RunningSandbox};
use hutch_types::{InstanceId, PauseMode, SandboxId};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Semaphore;

use crate::events::EventRing;
use crate::guests::Guests;
use crate::labels::SandboxLabels;
use crate::pool::Pool;
use crate::sandbox::Handle;
use crate::shared::Shared;
use crate::work::Work;

/// Log answers that are read at a time.
const LOG_PULLS: usize = 4;

/// A sandbox that is saved.
#[derive(Debug, Clone)]
pub(crate) struct Paused {
    /// Its instance.
    pub instance: InstanceId,
    /// Whose it is.
    pub labels: SandboxLabels,
    /// What is saved.
    pub mode: PauseMode,
}

/// What all actors of one agent see.
#[derive(Debug)]
pub(crate) struct Node {
    pub shared: Arc<Shared>,
    pub pool: Arc<Pool>,
    pub events: EventRing,
    /// Counts the actors; a shutdown waits until they have let go of their sandboxes.
    pub actors: Work,
    /// Every sandbox from the start request until nothing of it runs. Only its actor removes it.
    pub sandboxes: Mutex<HashMap<SandboxId, Handle>>,
    /// Every sandbox that is saved and does not run. One that is being resumed is among the others. Taken after `sandboxes`
    /// where both are.
    pub paused: Mutex<HashMap<SandboxId, Paused>>,
    /// The running ones, for the edge: read for every request that it routes.
    pub routes: RwLock<HashMap<SandboxId, Route>>,
    /// The running ones by address, for what they ask of the node.
    pub guests: Guests,
    /// Clean-ups that may go on behind answered stops.
    pub cleanups: Arc<Semaphore>,
    /// Log answers that may be read at a time.
    pub log_pulls: Semaphore,
}

impl Node {
    pub fn new(shared: Arc<Shared>) -> Arc<Self> {
        Arc::new(Self {
            pool: Pool::new(shared.clone()),
            events: EventRing::new(shared.config.max_events, shared.clock.now()),
            sandboxes: Mutex::default(),
            paused: Mutex::default(),
            actors: Work::default(),
            routes: RwLock::default(),
            guests: Guests::default(),
            cleanups: Arc::new(Semaphore::new(shared.config.max_background_cleanups)),
            log_pulls: Semaphore::new(LOG_PULLS),
            shared,
        })
    }

    /// What is here, running and paused, at one moment.
    pub fn all(&self) -> (Vec<RunningSandbox>, Vec<PausedSandbox>) {
        let sandboxes = self.sandboxes.lock();
        let paused = self.paused.lock();
        let running = sandboxes
            .iter()
            .filter(|(_, h)| h.is_live())
            .map(|(id, h)| RunningSandbox { sandbox_id: id.clone(), build_id: h.build_id });
        let saved = paused.iter().map(|(id, p)| PausedSandbox { sandbox_id: id.clone(), mode: p.mode });
        (running.collect(), saved.collect())
    }
}
