//! Brings the store and the node to the same view: what one knows and the other does not is ended.

use std::collections::HashSet;
use std::time::Duration;

use hutch_node_api::{NodeError, NodeErrorKind};
use hutch_store::{Sandbox, StoreError};
use hutch_types::{KillReason, SandboxId, SandboxState};

use crate::App;
use crate::error::{AppError, ErrorClass};

/// How long the node may take to say what it has.
const INVENTORY_DEADLINE: Duration = Duration::from_secs(30);

impl App {
    /// Compares what should run with what does. Safe at any time, beside creates and kills.
    pub(crate) async fn reconcile(&self) -> Result<(), AppError> {
        // The order matters: what the store had as running before the inventory was taken must be in it.
        let rows = self.0.store.live_sandboxes().await?;
        let inventory = match tokio::time::timeout(INVENTORY_DEADLINE, self.0.node.inventory()).await {
            Ok(inventory) => inventory.map_err(node_trouble)?,
            Err(_) => {
                return Err(node_trouble(NodeError::new(
                    NodeErrorKind::DeadlineExceeded,
                    "no inventory in time",
                )));
            }
        };
        let present: HashSet<&SandboxId> = inventory.sandboxes.iter().map(|s| &s.sandbox_id).collect();
        for row in &rows {
            self.settle(row, present.contains(&row.asked.id)).await?;
        }
        let known: HashSet<&SandboxId> = rows.iter().map(|r| &r.asked.id).collect();
        for id in present.difference(&known) {
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

    /// Settles one sandbox that the store has as live.
    async fn settle(&self, row: &Sandbox, is_present: bool) -> Result<(), AppError> {
        let id = &row.asked.id;
        match row.state {
            SandboxState::Killing => {
                let overdue = row.end_at <= self.0.clock.now();
                let reason = if overdue { KillReason::Timeout } else { KillReason::Request };
                self.finish_kill_later(id, Some(reason));
            }
            SandboxState::Creating => {
                // Not being started by this process, and still not running when looked at after that: its start died.
                if !self.0.starting.lock().contains(id) && self.is_still(row).await? {
                    self.end(
                        id,
                        SandboxState::Failed,
                        KillReason::StartFailed,
                        Some("its start was interrupted"),
                    )
                    .await;
                    self.finish_kill_later(id, None);
                }
            }
            SandboxState::Running
            | SandboxState::Snapshotting
            | SandboxState::Pausing
            | SandboxState::Resuming => {
                if !is_present && self.is_still(row).await? {
                    let detail = Some("the node no longer has it");
                    self.end(id, SandboxState::Gone, KillReason::Orphaned, detail).await;
                }
            }
            SandboxState::Paused | SandboxState::Gone | SandboxState::Failed => {}
        }
        Ok(())
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

pub(crate) fn node_trouble(error: NodeError) -> AppError {
    AppError::new(ErrorClass::Unavailable, "the node does not answer").with_source(error)
}
