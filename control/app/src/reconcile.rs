//! Brings the store and the node to the same view: what one knows and the other does not is ended, and what a daemon
//! that died left in the middle is settled by what the node has.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use hutch_node_api::{Inventory, NodeError, NodeErrorKind};
use hutch_store::{Sandbox, StoreError};
use hutch_types::{KillReason, SandboxId, SandboxState};

use crate::App;
use crate::backoff::Backoff;
use crate::error::{AppError, ErrorClass, chain};
use crate::transition::Kind;
use crate::verdict::{Present, Verdict, verdict};

/// How long the node may take to say what it has.
const INVENTORY_DEADLINE: Duration = Duration::from_secs(30);
/// What a sandbox lives at least that came back while its daemon died: who asked for it was told nothing, and needs the time
/// to ask again.
const LEAST_LEASE: Duration = Duration::from_secs(300);
/// What is left of a lease at least after a pause that was interrupted.
const AFTER_INTERRUPTION: Duration = Duration::from_secs(10);

impl App {
    /// Compares what should be with what is. Safe at any time, beside creates, pauses, resumes and kills.
    pub(crate) async fn reconcile(&self) -> Result<(), AppError> {
        // The order matters: what the store had as running before the inventory was taken must be in it.
        let mut rows = self.0.store.live_sandboxes().await?;
        rows.extend(self.0.store.paused_sandboxes().await?);
        let inventory = self.inventory().await?;
        let present = presence(&inventory);
        let doubtful: Vec<&Sandbox> = rows
            .iter()
            .filter(|row| verdict(row.state, saved(row), present_of(&present, row)) != Verdict::Agrees)
            .collect();
        self.settle(&doubtful).await?;
        let known: HashSet<&SandboxId> = rows.iter().map(|r| &r.asked.id).collect();
        for id in present.keys().filter(|id| !known.contains(*id)) {
            let unwanted = match self.0.store.sandbox(id).await {
                Ok(row) => row.state.is_final(),
                Err(StoreError::NotFound { .. }) => true,
                Err(error) => return Err(error.into()),
            };
            if unwanted {
                tracing::warn!(sandbox = %id, "the node has a sandbox that should not be; it is destroyed");
                self.finish_kill_later(id, None);
            }
        }
        Ok(())
    }

    /// Settles what looked wrong, and is looked at again: with no transition of this process under way, and by an inventory
    /// that was taken after that. One that is being changed is left to who changes it.
    async fn settle(&self, doubtful: &[&Sandbox]) -> Result<(), AppError> {
        let mut held = Vec::new();
        for row in doubtful {
            let Ok((transition, _)) = self.transition(&row.asked.id, Kind::Settle) else { continue };
            match self.0.store.sandbox(&row.asked.id).await {
                Ok(now) if now.state == row.state => held.push((now, transition)),
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if held.is_empty() {
            return Ok(());
        }
        let inventory = self.inventory().await?;
        let present = presence(&inventory);
        for (row, _transition) in held {
            self.carry_out(&row, verdict(row.state, saved(&row), present_of(&present, &row))).await?;
        }
        Ok(())
    }

    /// Settles one sandbox that the caller holds the transition of, by what the node has. Tries until it succeeds or the
    /// daemon stops.
    pub(crate) async fn settle_now(&self, row: &Sandbox) {
        let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));
        loop {
            let settled = async {
                let row = self.0.store.sandbox(&row.asked.id).await?;
                let inventory = self.inventory().await?;
                let is = present_of(&presence(&inventory), &row);
                self.carry_out(&row, verdict(row.state, saved(&row), is)).await
            };
            let Err(error) = settled.await else { return };
            tracing::warn!(sandbox = %row.asked.id, error = error.chain(), "a sandbox could not be settled, trying again");
            if !self.pause(backoff.pause()).await {
                return;
            }
        }
    }

    async fn inventory(&self) -> Result<Inventory, AppError> {
        match tokio::time::timeout(INVENTORY_DEADLINE, self.0.node.inventory()).await {
            Ok(inventory) => inventory.map_err(node_trouble),
            Err(_) => {
                Err(node_trouble(NodeError::new(NodeErrorKind::DeadlineExceeded, "no inventory in time")))
            }
        }
    }

    async fn carry_out(&self, row: &Sandbox, verdict: Verdict) -> Result<(), AppError> {
        let id = &row.asked.id;
        let now = self.0.clock.now();
        let changed = match verdict {
            Verdict::Agrees => return Ok(()),
            Verdict::FinishKill => {
                let reason = if row.end_at <= now { KillReason::Timeout } else { KillReason::Request };
                self.finish_kill_later(id, Some(reason));
                return Ok(());
            }
            Verdict::StartDied => {
                // Not being started by this process, and still not running when looked at after that: its start died.
                if !self.0.starting.lock().contains(id) && self.is_still(row).await? {
                    let detail = Some("its start was interrupted");
                    self.end(id, SandboxState::Failed, KillReason::StartFailed, detail).await;
                    self.finish_kill_later(id, None);
                }
                return Ok(());
            }
            Verdict::Orphaned => {
                if self.is_still(row).await? {
                    let detail = match row.state {
                        SandboxState::Paused => "the node no longer has what was saved of it",
                        _ => "the node no longer has it",
                    };
                    self.end(id, SandboxState::Gone, KillReason::Orphaned, Some(detail)).await;
                }
                return Ok(());
            }
            Verdict::PauseAgain(mode) => {
                let pause = self.0.node.pause_sandbox(id, mode);
                let paused = tokio::time::timeout(INVENTORY_DEADLINE, pause).await;
                if !matches!(paused, Ok(Ok(()))) {
                    tracing::warn!(sandbox = %id, "a sandbox runs that should be paused");
                }
                return Ok(());
            }
            Verdict::IsPaused(mode) => self.0.store.mark_paused(id, &[row.state], mode, now).await,
            Verdict::PauseInterrupted => {
                let _gate = self.0.lease_gate.read().await;
                let now = self.0.clock.now();
                self.0.store.abort_pause(id, now, now.plus(AFTER_INTERRUPTION)).await
            }
            Verdict::HasResumed => {
                let _gate = self.0.lease_gate.read().await;
                let now = self.0.clock.now();
                let end = row.end_at.max(now.plus(LEAST_LEASE));
                let store = &self.0.store;
                store.mark_resumed(id, now, end, &row.envd_version, &row.isolation, None).await
            }
        };
        match changed {
            Ok(row) => {
                tracing::warn!(sandbox = %id, state = %row.state, "a sandbox was settled by what the node has");
                self.0.leases_changed.notify_one();
                Ok(())
            }
            // A kill came in between.
            Err(error @ (StoreError::NotFound { .. } | StoreError::Conflict { .. })) => {
                tracing::debug!(sandbox = %id, error = chain(&error), "it was changed meanwhile");
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    async fn is_still(&self, row: &Sandbox) -> Result<bool, AppError> {
        match self.0.store.sandbox(&row.asked.id).await {
            Ok(now) => Ok(now.state == row.state),
            Err(StoreError::NotFound { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn finish_kill_later(&self, id: &SandboxId, reason: Option<KillReason>) {
        let id = id.clone();
        self.spawn_task("kill", |app| async move { app.finish_kill(&id, reason).await });
    }
}

/// What is saved of it, as far as the store knows.
fn saved(row: &Sandbox) -> Option<hutch_types::PauseMode> {
    row.paused.map(|(mode, _)| mode)
}

fn presence(inventory: &Inventory) -> HashMap<&SandboxId, Present> {
    let paused = inventory.paused.iter().map(|s| (&s.sandbox_id, Present::Paused(s.mode)));
    let running = inventory.sandboxes.iter().map(|s| (&s.sandbox_id, Present::Running));
    // One that is in both lists runs.
    paused.chain(running).collect()
}

fn present_of(present: &HashMap<&SandboxId, Present>, row: &Sandbox) -> Present {
    present.get(&row.asked.id).copied().unwrap_or(Present::Nothing)
}

pub(crate) fn node_trouble(error: NodeError) -> AppError {
    AppError::new(ErrorClass::Unavailable, "the node does not answer").with_source(error)
}
