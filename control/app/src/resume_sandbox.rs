//! Bringing a paused sandbox back. However many ask for it at the same time, it is done once, and all get its result.
//!
//! First the store says `resuming`, in the same step as the team's limit is checked; then the node brings it back; then
//! the store says `running`, with a lease counted from there. When the node cannot, it stays paused.
//!
//! The sandbox keeps its id, access token, metadata and network policy. The environment that it was created with is
//! stored nowhere: with its memory it comes back inside envd, and a boot from its files comes without it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hutch_node_api::{NodeError, NodeErrorKind, StartSandbox, StartedSandbox};
use hutch_store::{ResumeOutcome, Sandbox, StoreError};
use hutch_types::{PauseMode, SandboxId, SandboxState};
use tokio::time::Instant;

use crate::error::{AppError, ErrorClass, Retry, chain};
use crate::get_sandbox::{being, not_found};
use crate::options::stored_network;
use crate::transition::{Ending, Kind, Transition};
use crate::{App, Caller};

/// How long the node may take, per attempt; the next attempt joins the one that is under way.
const RESUME_DEADLINE: Duration = Duration::from_secs(120);
/// How often a sandbox is looked at that another process is changing.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// How a paused sandbox is to come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResumeOptions {
    /// Its lease, counted from when it answers.
    pub timeout_seconds: u32,
    /// Whether with its memory, if that was saved; otherwise it boots from its files.
    pub memory: bool,
    /// Whether it is paused instead of killed at the end of the lease from now on; `None`: as before.
    pub auto_pause: Option<bool>,
}

/// A sandbox that runs.
#[derive(Debug)]
pub struct Connected {
    /// The sandbox.
    pub sandbox: Sandbox,
    /// Whether it was brought back for that.
    pub resumed: bool,
}

/// What to do with one that runs already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum IfRunning {
    /// Prolong its life.
    Extend,
    /// Refuse.
    Refuse,
}

impl App {
    /// Brings a paused sandbox of the caller's back and returns when its envd answers.
    ///
    /// # Errors
    /// Those of [`App::connect_sandbox`], and `Conflict` when it runs.
    pub async fn resume_sandbox(
        &self,
        caller: &Caller,
        id: &SandboxId,
        options: ResumeOptions,
    ) -> Result<Sandbox, AppError> {
        let connected = self.come_back(caller, id, options, IfRunning::Refuse).await?;
        Ok(connected.sandbox)
    }

    /// Makes sure that a sandbox runs: waits while it is being paused, resumes it when it is paused, joins a resume that is
    /// under way.
    pub(crate) async fn come_back(
        &self,
        caller: &Caller,
        id: &SandboxId,
        options: ResumeOptions,
        if_running: IfRunning,
    ) -> Result<Connected, AppError> {
        self.check_timeout(options.timeout_seconds)?;
        let limits = &self.0.limits;
        let patience = limits.start_queue_seconds.saturating_add(limits.start_timeout_seconds);
        let now = Instant::now();
        let until = now.checked_add(Duration::from_secs(patience.into())).unwrap_or(now);
        let late = || takes_long(id, patience);
        loop {
            let sandbox = self.owned_sandbox(caller.team, id).await?;
            let (mine, underway) = match sandbox.state {
                SandboxState::Running | SandboxState::Snapshotting if if_running == IfRunning::Refuse => {
                    let message = format!("Sandbox {id} is already running");
                    return Err(AppError::new(ErrorClass::Conflict, message));
                }
                SandboxState::Running | SandboxState::Snapshotting => {
                    match self.move_end(caller, id, options.timeout_seconds, true).await {
                        Ok(sandbox) => return Ok(Connected { sandbox, resumed: false }),
                        // It runs no more.
                        Err(error) if is_overtaken(&error) && Instant::now() < until => continue,
                        Err(error) => return Err(error),
                    }
                }
                SandboxState::Paused => match self.transition(id, Kind::Resume) {
                    Ok((transition, underway)) => {
                        self.spawn_task("resume", move |app| async move {
                            app.resume(sandbox, options, transition).await;
                        });
                        (true, Some(underway))
                    }
                    Err(underway) => (false, Some(underway)),
                },
                SandboxState::Pausing | SandboxState::Resuming => (false, self.underway(id)),
                SandboxState::Killing => return Err(being(id, "killed")),
                SandboxState::Creating | SandboxState::Gone | SandboxState::Failed => {
                    return Err(not_found(id));
                }
            };
            let Some(underway) = underway else {
                if Instant::now() >= until {
                    return Err(late());
                }
                tokio::time::sleep(LOOK_EVERY).await;
                continue;
            };
            match underway.ended(until).await.ok_or_else(late)? {
                Ending::Look if Instant::now() >= until => return Err(late()),
                Ending::Look => {}
                Ending::Failed(error) => return Err(error.repeated()),
                Ending::Resumed(sandbox) if mine => {
                    return Ok(Connected { sandbox: *sandbox, resumed: true });
                }
                // Whoever joins may have asked for more time than who was first.
                Ending::Resumed(_) => {
                    let sandbox = self.move_end(caller, id, options.timeout_seconds, true).await?;
                    return Ok(Connected { sandbox, resumed: true });
                }
            }
        }
    }

    /// Resumes a sandbox, whoever waits for it, and tells them.
    async fn resume(&self, row: Sandbox, options: ResumeOptions, transition: Transition) {
        let id = row.asked.id.clone();
        let ending = match self.resume_now(row, options).await {
            Ok(Some(sandbox)) => {
                tracing::info!(sandbox = %id, "sandbox resumed");
                self.note(&id, "info", "sandbox resumed".to_owned()).await;
                Ending::Resumed(Box::new(sandbox))
            }
            Ok(None) => Ending::Look,
            Err(error) => {
                tracing::warn!(sandbox = %id, error = error.chain(), "a sandbox was not resumed");
                Ending::Failed(Arc::new(error))
            }
        };
        transition.end(ending);
    }

    /// `None` when it was not paused any more.
    async fn resume_now(&self, row: Sandbox, options: ResumeOptions) -> Result<Option<Sandbox>, AppError> {
        let id = &row.asked.id;
        let lease = Duration::from_secs(options.timeout_seconds.into());
        let limit = self.0.limits.max_sandboxes_per_team;
        let place = self.0.starts.enter()?;
        let begun = {
            let _gate = self.0.lease_gate.read().await;
            let end = self.0.clock.now().plus(lease);
            self.0.store.begin_resume(id, end, (limit > 0).then_some(limit)).await
        };
        let row = match begun {
            Ok(ResumeOutcome::Begun(row)) => *row,
            Ok(ResumeOutcome::LimitReached(limit)) => return Err(self.too_many_sandboxes(limit)),
            Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let turn = match place.turn().await {
            Ok(turn) => turn,
            Err(error) => {
                self.still_paused(&row).await?;
                return Err(error);
            }
        };
        let saved = row.paused.map_or(PauseMode::Full, |(mode, _)| mode);
        let mode = if options.memory { saved } else { PauseMode::Filesystem };
        let resumed = self.resume_on_node(&row, mode).await?;
        drop(turn);
        match resumed {
            Ok(started) => self.runs_again(&row, lease, &started, options.auto_pause).await.map(Some),
            Err(error) => {
                // What is left of it, the node knows.
                self.settle_now(&row).await;
                Err(refusal(id, error))
            }
        }
    }

    /// Asks the node until it says for certain whether the sandbox runs. `Err` when the daemon stops before that.
    async fn resume_on_node(
        &self,
        row: &Sandbox,
        mode: PauseMode,
    ) -> Result<Result<StartedSandbox, NodeError>, AppError> {
        let id = &row.asked.id;
        let (network, ingress) = stored_network(row);
        let request = StartSandbox {
            sandbox_id: id.clone(),
            template_id: row.asked.template.clone(),
            build_id: row.asked.build,
            resources: row.asked.resources,
            env: BTreeMap::new(),
            access_token: row.asked.access_token.clone(),
            network,
            ingress,
        };
        loop {
            let resuming = self.0.node.resume_sandbox(request.clone(), mode);
            match tokio::time::timeout(RESUME_DEADLINE, resuming).await {
                Ok(result) => return Ok(result),
                Err(_) => tracing::warn!(sandbox = %id, %mode, "a resume takes long"),
            }
            if !self.pause(Duration::from_secs(1)).await {
                return Err(AppError::new(ErrorClass::Unavailable, "the server is shutting down"));
            }
        }
    }

    /// Stores that it is back.
    async fn runs_again(
        &self,
        row: &Sandbox,
        lease: Duration,
        started: &StartedSandbox,
        auto_pause: Option<bool>,
    ) -> Result<Sandbox, AppError> {
        let id = &row.asked.id;
        let isolation = started.isolation.to_string();
        let stored = {
            let _gate = self.0.lease_gate.read().await;
            let resumed = || {
                let now = self.0.clock.now();
                let version = &started.envd_version;
                self.0.store.mark_resumed(id, now, now.plus(lease), version, &isolation, auto_pause)
            };
            self.insist(id, resumed).await?
        };
        match stored {
            Ok(sandbox) => {
                self.0.leases_changed.notify_one();
                Ok(sandbox)
            }
            Err(error) => {
                // A kill was quicker than the node; what it brought back must go, too.
                tracing::info!(sandbox = %id, error = chain(&error), "a sandbox was killed while it was resumed");
                self.finish_kill(id, None).await;
                Err(not_found(id))
            }
        }
    }

    /// Stores that it is paused as before.
    async fn still_paused(&self, row: &Sandbox) -> Result<(), AppError> {
        let id = &row.asked.id;
        let back = || self.0.store.move_sandbox(id, &[SandboxState::Resuming], SandboxState::Paused);
        if let Err(error) = self.insist(id, back).await? {
            tracing::debug!(sandbox = %id, error = chain(&error), "it was killed meanwhile");
        }
        Ok(())
    }
}

/// Whether it runs no more, after all.
fn is_overtaken(error: &AppError) -> bool {
    matches!(error.class(), ErrorClass::Conflict | ErrorClass::NotFound)
}

fn takes_long(id: &SandboxId, seconds: u32) -> AppError {
    let message = format!(
        "Sandbox \"{id}\" is still transitioning after {seconds} seconds \
         (limits.start_queue_seconds, limits.start_timeout_seconds). Try again in a moment."
    );
    AppError::new(ErrorClass::DeadlineExceeded, message).with_code("sandbox_placement_timeout")
}

/// The node's words are for the logs; the client gets ours.
fn refusal(id: &SandboxId, error: NodeError) -> AppError {
    let refused = match error.kind {
        NodeErrorKind::Exhausted | NodeErrorKind::Unavailable => AppError::new(
            ErrorClass::Unavailable,
            "there is no capacity for another sandbox right now, please try again",
        )
        .with_code("sandbox_capacity_unavailable"),
        NodeErrorKind::DeadlineExceeded => AppError::new(
            ErrorClass::DeadlineExceeded,
            "the sandbox did not come back in time, please try again",
        )
        .with_code("sandbox_placement_timeout"),
        NodeErrorKind::NotFound => not_found(id),
        NodeErrorKind::Unsupported => AppError::invalid(format!(
            "Sandbox \"{id}\" cannot be resumed with its memory on this machine; resume it with memory: false"
        )),
        NodeErrorKind::Internal => AppError::new(
            ErrorClass::Internal,
            format!("Sandbox \"{id}\" could not be resumed; it stays paused"),
        )
        .with_retry(Retry::Never),
    };
    refused.with_source(error)
}
