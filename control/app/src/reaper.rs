//! Ends sandboxes whose lease is over, or pauses those that are to be paused then. One task; it sleeps until the next deadline and wakes when one changes.

use std::time::Duration;

use hutch_store::StoreError;
use hutch_types::{KillReason, SandboxState, Timestamp};
use tokio::time::Instant;

use crate::App;
use crate::error::chain;

/// The longest sleep: a clock that was set is noticed within this time, and so is a clock that tests move.
const TICK: Duration = Duration::from_millis(250);
/// The shortest sleep: an overdue sandbox that cannot be taken right now does not make it spin.
const AT_LEAST: Duration = Duration::from_millis(5);
/// The store is asked at least this often, whatever is believed about the next deadline.
const LOOK_AT_LEAST_EVERY: Duration = Duration::from_secs(10);
/// Sandboxes that are taken at a time.
const BATCH: u32 = 64;

/// Runs until the daemon stops.
pub(crate) async fn run(app: App) {
    let mut next: Option<Timestamp> = None;
    let mut looked: Option<Instant> = None;
    loop {
        let stale = looked.is_none_or(|at| at.elapsed() >= LOOK_AT_LEAST_EVERY);
        let due = next.is_some_and(|at| at <= app.0.clock.now());
        if stale || due {
            match app.reap().await {
                Ok(deadline) => {
                    next = deadline;
                    looked = Some(Instant::now());
                }
                Err(error) => {
                    tracing::error!(
                        error = chain(&error),
                        "overdue sandboxes could not be looked up, trying again"
                    );
                    looked = None;
                }
            }
        }
        let sleep = next.map_or(TICK, |at| at.until(app.0.clock.now()).min(TICK));
        let sleep = if looked.is_none() { TICK } else { sleep.max(AT_LEAST) };
        tokio::select! {
            () = app.0.supervisor.stopping() => return,
            () = app.0.leases_changed.notified() => looked = None,
            () = tokio::time::sleep(sleep) => {}
        }
        if app.follow_clock().await {
            looked = None;
        }
    }
}

impl App {
    /// Takes all overdue sandboxes from their clients and has them killed or paused in the background. Returns the next deadline.
    async fn reap(&self) -> Result<Option<Timestamp>, StoreError> {
        let _alone = self.0.lease_gate.write().await;
        loop {
            let overdue = self.0.store.expired(self.0.clock.now(), BATCH).await?;
            let full = u32::try_from(overdue.len()).is_ok_and(|n| n >= BATCH);
            let mut taken = 0usize;
            for sandbox in overdue {
                let id = sandbox.asked.id;
                if let Some(mode) = sandbox.asked.auto_pause {
                    let begun = self.pause_expired(&id, mode).await?;
                    taken = taken.saturating_add(usize::from(begun));
                    continue;
                }
                let from = [SandboxState::Running, SandboxState::Snapshotting];
                match self.0.store.move_sandbox(&id, &from, SandboxState::Killing).await {
                    Ok(_) => {
                        taken = taken.saturating_add(1);
                        self.spawn_task("kill", |app| async move {
                            app.finish_kill(&id, Some(KillReason::Timeout)).await;
                        });
                    }
                    // Somebody else was faster.
                    Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            if !full || taken == 0 {
                return self.0.store.next_deadline().await;
            }
        }
    }

    /// When the system's clock was set, moves all leases along. Returns whether it was.
    async fn follow_clock(&self) -> bool {
        let _alone = self.0.lease_gate.write().await;
        let Some(jump) = self.0.clock.take_jump() else { return false };
        tracing::warn!(jump_ms = jump, "the system's clock was set; leases move along");
        // Nobody may see the new time before the deadlines have moved, or leases would end early.
        while let Err(error) = self.0.store.shift_leases(jump).await {
            tracing::error!(
                error = chain(&error),
                "leases could not be moved along with the clock, trying again"
            );
            if !self.pause(TICK).await {
                break;
            }
        }
        true
    }
}
