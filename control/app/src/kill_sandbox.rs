//! The end of a sandbox, for whatever reason.
//!
//! First the store says `killing`, from then on clients do not see it any more and the kill cannot be lost; then the
//! node destroys it, for as many attempts as that takes; then the store says `gone`.

use std::collections::BTreeMap;
use std::time::Duration;

use hutch_store::{LogEntry, Sandbox, StoreError};
use hutch_types::{KillReason, SandboxId, SandboxState};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::backoff::Backoff;
use crate::error::{AppError, chain};
use crate::get_sandbox::not_found;
use crate::{App, Caller, Inner};

/// How long the node may take to destroy a sandbox, per attempt.
const STOP_DEADLINE: Duration = Duration::from_secs(30);
/// How long a client waits for the node; after that the kill goes on by itself.
const ANSWER_WITHIN: Duration = Duration::from_secs(40);

/// States that a kill starts from.
const KILLABLE: [SandboxState; 5] = [
    SandboxState::Running,
    SandboxState::Snapshotting,
    SandboxState::Pausing,
    SandboxState::Paused,
    SandboxState::Resuming,
];

impl App {
    /// Kills a sandbox of the caller's and returns when nothing of it is left. Should the node be in trouble, this
    /// returns after a while although the work goes on; clients do not see the sandbox any more from the start.
    /// Once begun, a kill completes even if the caller goes away.
    ///
    /// # Errors
    /// `NotFound` for a sandbox that [`App::get_sandbox`] does not find; `Unavailable` when the store is.
    pub async fn kill_sandbox(&self, caller: &Caller, id: &SandboxId) -> Result<(), AppError> {
        self.get_sandbox(caller, id).await?;
        let (begun, has_begun) = oneshot::channel();
        let (done, is_done) = oneshot::channel();
        let kill = id.clone();
        self.spawn_task("kill", |app| async move {
            let moved = app.begin_kill(&kill).await;
            let go_on = moved.is_ok();
            // Nobody may be waiting any more; the kill goes on all the same.
            drop(begun.send(moved));
            if go_on {
                app.finish_kill(&kill, Some(KillReason::Request)).await;
            }
            if done.send(()).is_err() {
                tracing::debug!(sandbox = %kill, "nobody waited for the end of a kill");
            }
        });
        has_begun.await.map_err(AppError::internal)??;
        if tokio::time::timeout(ANSWER_WITHIN, is_done).await.is_err() {
            tracing::warn!(sandbox = %id, "a kill takes long and goes on in the background");
        }
        Ok(())
    }

    /// Takes a sandbox from its clients; from here on only [`App::finish_kill`] is left to do.
    pub(crate) async fn begin_kill(&self, id: &SandboxId) -> Result<Sandbox, AppError> {
        match self.0.store.move_sandbox(id, &KILLABLE, SandboxState::Killing).await {
            Ok(sandbox) => Ok(sandbox),
            Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => Err(not_found(id)),
            Err(error) => Err(error.into()),
        }
    }

    /// Destroys a sandbox on the node and, with a reason, ends it in the store. Tries until it succeeds or the daemon
    /// stops; the next daemon finds the sandbox as it is and goes on. A sandbox that another task is killing is left
    /// to that task.
    pub(crate) async fn finish_kill(&self, id: &SandboxId, reason: Option<KillReason>) {
        let Some(_mine) = InSet::enter(&self.0, |inner| &inner.killing, id) else { return };
        let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(10));
        while let Err(error) = self.stop_on_node(id).await {
            tracing::error!(sandbox = %id, error, "a sandbox could not be destroyed, trying again");
            if !self.pause(backoff.pause()).await {
                return;
            }
        }
        let Some(reason) = reason else { return };
        self.end(id, SandboxState::Gone, reason, None).await;
    }

    async fn stop_on_node(&self, id: &SandboxId) -> Result<(), String> {
        let _slot = self.0.kill_slots.acquire().await.map_err(|e| e.to_string())?;
        match tokio::time::timeout(STOP_DEADLINE, self.0.node.stop_sandbox(id)).await {
            Ok(result) => result.map_err(|e| chain(&e)),
            Err(_) => Err(format!("the node did not answer within {} s", STOP_DEADLINE.as_secs())),
        }
    }

    /// Ends a sandbox in the store and adds the reason to its log. Tries until the store takes it or the daemon stops.
    pub(crate) async fn end(
        &self,
        id: &SandboxId,
        state: SandboxState,
        reason: KillReason,
        detail: Option<&str>,
    ) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        let ended = loop {
            match self.0.store.end_sandbox(id, state, reason, self.0.clock.now()).await {
                Ok(ended) => break ended,
                Err(StoreError::NotFound { .. }) => return,
                Err(error) => {
                    tracing::error!(sandbox = %id, error = chain(&error), "the end of a sandbox was not stored, trying again");
                    if !self.pause(backoff.pause()).await {
                        return;
                    }
                }
            }
        };
        if !ended {
            return;
        }
        tracing::info!(sandbox = %id, %reason, detail, "sandbox ended");
        let expected = matches!(reason, KillReason::Request | KillReason::Timeout | KillReason::Admin);
        let message = match detail {
            Some(detail) => format!("sandbox ended: {reason}: {detail}"),
            None => format!("sandbox ended: {reason}"),
        };
        self.note(id, if expected { "info" } else { "error" }, message).await;
    }

    /// Adds a line of ours to a sandbox's log; best effort.
    pub(crate) async fn note(&self, id: &SandboxId, level: &str, message: String) {
        let line = LogEntry {
            sandbox: id.clone(),
            at: self.0.clock.now(),
            level: level.to_owned(),
            message,
            fields: BTreeMap::from([("logger".to_owned(), "hutch".to_owned())]),
        };
        if let Err(error) = self.0.store.insert_logs(&[line], self.0.limits.log_room()).await {
            tracing::warn!(sandbox = %id, error = chain(&error), "a log line was not stored");
        }
    }

    /// Waits; false when the daemon is stopping.
    pub(crate) async fn pause(&self, pause: Duration) -> bool {
        tokio::select! {
            () = self.0.supervisor.stopping() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }
}

/// Membership of a sandbox in one of the app's sets, for as long as this lives.
pub(crate) struct InSet<'a> {
    inner: &'a Inner,
    set: fn(&Inner) -> &Mutex<std::collections::HashSet<SandboxId>>,
    id: SandboxId,
}

impl<'a> InSet<'a> {
    /// `None` when it is in there already.
    pub(crate) fn enter(
        inner: &'a Inner,
        set: fn(&Inner) -> &Mutex<std::collections::HashSet<SandboxId>>,
        id: &SandboxId,
    ) -> Option<Self> {
        set(inner).lock().insert(id.clone()).then(|| Self { inner, set, id: id.clone() })
    }
}

impl Drop for InSet<'_> {
    fn drop(&mut self) {
        (self.set)(self.inner).lock().remove(&self.id);
    }
}
