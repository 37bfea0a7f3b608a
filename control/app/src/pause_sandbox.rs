//! Saving a sandbox and ending its instance, because a client asks or because its lease is over.
//!
//! First the store says `pausing`, from then on clients see it as paused; then the node saves it; then the store says
//! `paused`. When the node cannot, the sandbox runs on, and its lease with it. A daemon that dies in between leaves
//! `pausing`, which reconciliation settles by what the node has.

use std::time::Duration;

use hutch_node_api::{NodeError, NodeErrorKind};
use hutch_store::{Sandbox, StoreError};
use hutch_types::{PauseMode, SandboxId, SandboxState};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::error::{AppError, ErrorClass, Retry, chain};
use crate::get_sandbox::{being, not_found};
use crate::transition::{Kind, Transition};
use crate::{App, Caller};

/// How long the node may take, per attempt; the next attempt joins the one that is under way.
const PAUSE_DEADLINE: Duration = Duration::from_secs(120);
/// How long a client waits; after that the pause goes on by itself. Below the 60 seconds after which clients give up.
const ANSWER_WITHIN: Duration = Duration::from_secs(55);
/// What is left of a lease at least after a pause that failed. So long it takes until the pause of an expired one is tried
/// again.
const AFTER_FAILURE: Duration = Duration::from_secs(10);

impl App {
    /// Pauses a running sandbox of the caller's and returns when what was saved is durable. Once begun it completes, even
    /// if the caller goes away.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when it is paused already, or in a transition; `Invalid` when this machine cannot save
    /// memory; `Unavailable` and `Internal` when it could not be saved: it runs on. `DeadlineExceeded` when it takes long:
    /// it goes on.
    pub async fn pause_sandbox(
        &self,
        caller: &Caller,
        id: &SandboxId,
        mode: PauseMode,
    ) -> Result<(), AppError> {
        let until = Instant::now().checked_add(ANSWER_WITHIN).unwrap_or_else(Instant::now);
        let transition = loop {
            match self.owned_sandbox(caller.team, id).await?.state {
                SandboxState::Running | SandboxState::Snapshotting => {}
                SandboxState::Pausing => return Err(being(id, "paused")),
                SandboxState::Paused => return Err(already_paused(id)),
                SandboxState::Resuming => return Err(being(id, "resumed")),
                SandboxState::Killing => return Err(being(id, "killed")),
                SandboxState::Creating | SandboxState::Gone | SandboxState::Failed => {
                    return Err(not_found(id));
                }
            }
            match self.transition(id, Kind::Pause) {
                Ok((transition, _)) => break transition,
                Err(other) if other.kind == Kind::Pause => return Err(being(id, "paused")),
                // One that ends just now.
                Err(other) => {
                    other.ended(until).await.ok_or_else(|| takes_long(id))?;
                }
            }
        };
        let (answer, wait) = oneshot::channel();
        let pause = id.clone();
        self.spawn_task("pause", move |app| async move {
            let result = app.pause_now(&pause, mode).await;
            drop(transition);
            // Nobody may be waiting any more; the sandbox is paused all the same.
            drop(answer.send(result));
        });
        match tokio::time::timeout_at(until, wait).await {
            Ok(result) => result.map_err(AppError::internal)?,
            Err(_) => Err(takes_long(id)),
        }
    }

    async fn pause_now(&self, id: &SandboxId, mode: PauseMode) -> Result<(), AppError> {
        let row = match self.0.store.begin_pause(id, mode, self.0.clock.now()).await {
            Ok(row) => row,
            Err(StoreError::NotFound { .. }) => return Err(not_found(id)),
            // It ran a moment ago, so what came in between can only be its end.
            Err(StoreError::Conflict { .. }) => return Err(being(id, "killed")),
            Err(error) => return Err(error.into()),
        };
        match self.save_on_node(id, mode).await? {
            Ok(()) => self.saved(id, mode).await,
            Err(error) => {
                self.not_saved(&row, &error).await;
                Err(refusal(id, error))
            }
        }
    }

    /// Begins the pause of a sandbox whose lease is over. Returns whether it has begun; it goes on in the background.
    /// The caller holds the lease gate.
    pub(crate) async fn pause_expired(&self, id: &SandboxId, mode: PauseMode) -> Result<bool, StoreError> {
        let Ok((transition, _)) = self.transition(id, Kind::Pause) else { return Ok(false) };
        let row = match self.0.store.begin_pause(id, mode, self.0.clock.now()).await {
            Ok(row) => row,
            Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => return Ok(false),
            Err(error) => return Err(error),
        };
        self.spawn_task("pause", move |app| async move { app.save_expired(row, mode, transition).await });
        Ok(true)
    }

    /// Saves what can be saved: its files at least, when its memory cannot. While nothing can, it runs on and this is tried
    /// again.
    async fn save_expired(&self, row: Sandbox, mode: PauseMode, _transition: Transition) {
        let id = &row.asked.id;
        let modes: &[PauseMode] = match mode {
            PauseMode::Full => &[PauseMode::Full, PauseMode::Filesystem],
            PauseMode::Filesystem => &[PauseMode::Filesystem],
        };
        for mode in modes {
            let error = match self.save_on_node(id, *mode).await {
                Ok(Ok(())) => {
                    if let Err(error) = self.saved(id, *mode).await {
                        tracing::warn!(sandbox = %id, error = error.chain(), "a pause did not end as it should");
                    }
                    return;
                }
                Ok(Err(error)) => error,
                // The daemon stops; the next one settles it.
                Err(_) => return,
            };
            let is_last = *mode == PauseMode::Filesystem
                || matches!(
                    error.kind,
                    NodeErrorKind::NotFound | NodeErrorKind::Unavailable | NodeErrorKind::DeadlineExceeded
                );
            if is_last {
                self.not_saved(&row, &error).await;
                return;
            }
            let text =
                format!("its memory could not be saved at the end of its lease ({})", reason(error.kind));
            tracing::error!(sandbox = %id, error = chain(&error), "{text}");
            self.note(id, "error", format!("{text}; its files are saved alone")).await;
        }
    }

    /// Asks the node until it says for certain whether the sandbox is saved. `Err` when the daemon stops before that.
    async fn save_on_node(&self, id: &SandboxId, mode: PauseMode) -> Result<Result<(), NodeError>, AppError> {
        let _slot = self.0.pause_slots.acquire().await.map_err(AppError::internal)?;
        loop {
            match tokio::time::timeout(PAUSE_DEADLINE, self.0.node.pause_sandbox(id, mode)).await {
                Ok(result) => return Ok(result),
                Err(_) => tracing::warn!(sandbox = %id, %mode, "a pause takes long"),
            }
            if !self.pause(Duration::from_secs(1)).await {
                return Err(AppError::new(ErrorClass::Unavailable, "the server is shutting down"));
            }
        }
    }

    /// Stores that it is saved.
    async fn saved(&self, id: &SandboxId, mode: PauseMode) -> Result<(), AppError> {
        let stored = self
            .insist(id, || self.0.store.mark_paused(id, &[SandboxState::Pausing], mode, self.0.clock.now()))
            .await?;
        match stored {
            Ok(_) => {
                tracing::info!(sandbox = %id, %mode, "sandbox paused");
                self.note(id, "info", format!("sandbox paused: {mode}")).await;
                Ok(())
            }
            // A kill was quicker than the node.
            Err(StoreError::Conflict { .. }) => Err(being(id, "killed")),
            Err(_) => Err(not_found(id)),
        }
    }

    /// Stores that it runs on, and says why.
    async fn not_saved(&self, row: &Sandbox, error: &NodeError) {
        let id = &row.asked.id;
        tracing::error!(sandbox = %id, error = chain(error), "a sandbox could not be paused");
        if error.kind == NodeErrorKind::NotFound {
            // It does not run on. What the node has decides.
            self.settle_now(row).await;
            return;
        }
        let aborted = {
            let _gate = self.0.lease_gate.read().await;
            let abort = || {
                let now = self.0.clock.now();
                self.0.store.abort_pause(id, now, now.plus(AFTER_FAILURE))
            };
            self.insist(id, abort).await
        };
        if matches!(aborted, Ok(Ok(_))) {
            self.0.leases_changed.notify_one();
            let text = format!("sandbox not paused ({}); it runs on", reason(error.kind));
            self.note(id, "error", text).await;
        }
    }

    /// Makes a change of the store's until the store takes or refuses it. `Err` when the daemon stops before that; the
    /// next one finds the sandbox in the middle and settles it.
    pub(crate) async fn insist<T, F>(
        &self,
        id: &SandboxId,
        mut change: impl FnMut() -> F,
    ) -> Result<Result<T, StoreError>, AppError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            match change().await {
                Ok(done) => return Ok(Ok(done)),
                Err(error @ (StoreError::NotFound { .. } | StoreError::Conflict { .. })) => {
                    return Ok(Err(error));
                }
                Err(error) => {
                    tracing::error!(sandbox = %id, error = chain(&error), "a change of a sandbox was not stored, trying again");
                    if !self.pause(backoff.pause()).await {
                        return Err(error.into());
                    }
                }
            }
        }
    }
}

fn already_paused(id: &SandboxId) -> AppError {
    AppError::new(ErrorClass::Conflict, format!("Sandbox \"{id}\" is already paused"))
}

fn takes_long(id: &SandboxId) -> AppError {
    let message = format!(
        "Sandbox \"{id}\" is still being paused after {} seconds; it goes on",
        ANSWER_WITHIN.as_secs()
    );
    AppError::new(ErrorClass::DeadlineExceeded, message)
}

/// The kind of a failure, in words for clients.
fn reason(kind: NodeErrorKind) -> &'static str {
    match kind {
        NodeErrorKind::NotFound => "the node does not have it",
        NodeErrorKind::Unsupported => "the node cannot save memory",
        NodeErrorKind::Exhausted => "the node has no room for what is to be saved",
        NodeErrorKind::Unavailable => "the node is busy",
        NodeErrorKind::DeadlineExceeded => "the node took too long",
        NodeErrorKind::Internal => "the node failed",
    }
}

/// The node's words are for the logs; the client gets ours. Never a conflict: clients take that for "paused already".
fn refusal(id: &SandboxId, error: NodeError) -> AppError {
    let why = reason(error.kind);
    let text = format!("Sandbox \"{id}\" cannot be paused right now because {why}; it runs on");
    let refused = match error.kind {
        NodeErrorKind::NotFound => not_found(id),
        NodeErrorKind::Unsupported => AppError::invalid(format!(
            "Sandbox \"{id}\" cannot be paused with its memory: {why}; pause it with memory: false"
        )),
        NodeErrorKind::Exhausted | NodeErrorKind::Unavailable | NodeErrorKind::DeadlineExceeded => {
            AppError::new(ErrorClass::Unavailable, text)
        }
        NodeErrorKind::Internal => AppError::new(ErrorClass::Internal, text).with_retry(Retry::Never),
    };
    refused.with_source(error)
}
