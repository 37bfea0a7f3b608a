//! Pauses and resumes that tasks of this process carry out: at most one at a time for each sandbox, and anybody may wait
//! for its end. What another process left in the middle is not in here; reconciliation settles that.

use std::collections::HashMap;
use std::sync::Arc;

use hutch_store::Sandbox;
use hutch_types::SandboxId;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::App;
use crate::error::AppError;

/// What a task does to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// It saves it.
    Pause,
    /// It brings it back.
    Resume,
    /// It makes the store agree with the node.
    Settle,
}

/// How a transition ended.
#[derive(Debug, Clone)]
pub(crate) enum Ending {
    /// The sandbox is back.
    Resumed(Box<Sandbox>),
    /// It is not; everybody who waited is told this.
    Failed(Arc<AppError>),
    /// Whatever it is now, the store says it.
    Look,
}

type Wait = watch::Receiver<Option<Ending>>;

/// All transitions of this process.
#[derive(Debug, Default)]
pub(crate) struct Transitions(Mutex<HashMap<SandboxId, (Kind, Wait)>>);

/// The right to change a sandbox. Dropping it lets the next one in and wakes who waits.
pub(crate) struct Transition {
    app: App,
    id: SandboxId,
    ending: watch::Sender<Option<Ending>>,
}

impl Transition {
    /// Ends it with something to tell.
    pub(crate) fn end(self, ending: Ending) {
        // Nobody may be waiting.
        self.ending.send_replace(Some(ending));
    }
}

impl Drop for Transition {
    fn drop(&mut self) {
        // First out of the way, then the word: who hears it and looks again does not find this one.
        self.app.0.transitions.0.lock().remove(&self.id);
        self.ending.send_if_modified(|ending| {
            let is_news = ending.is_none();
            ending.get_or_insert(Ending::Look);
            is_news
        });
    }
}

/// Somebody else's transition.
#[derive(Debug, Clone)]
pub(crate) struct Underway {
    /// What it does.
    pub(crate) kind: Kind,
    wait: Wait,
}

impl Underway {
    /// How it ended; `None` when it goes on at `until`.
    pub(crate) async fn ended(mut self, until: Instant) -> Option<Ending> {
        let ended = tokio::time::timeout_at(until, self.wait.wait_for(Option::is_some)).await.ok()?;
        Some(ended.ok().and_then(|ending| ending.clone()).unwrap_or(Ending::Look))
    }
}

impl App {
    /// Begins a transition, or says which one is under way.
    pub(crate) fn transition(&self, id: &SandboxId, kind: Kind) -> Result<(Transition, Underway), Underway> {
        let mut all = self.0.transitions.0.lock();
        if let Some((kind, wait)) = all.get(id) {
            return Err(Underway { kind: *kind, wait: wait.clone() });
        }
        let (ending, wait) = watch::channel(None);
        all.insert(id.clone(), (kind, wait.clone()));
        Ok((Transition { app: self.clone(), id: id.clone(), ending }, Underway { kind, wait }))
    }

    /// The transition that is under way.
    pub(crate) fn underway(&self, id: &SandboxId) -> Option<Underway> {
        let all = self.0.transitions.0.lock();
        all.get(id).map(|(kind, wait)| Underway { kind: *kind, wait: wait.clone() })
    }
}
