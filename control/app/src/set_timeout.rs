//! A sandbox's lease: set, and what it has in common with refresh and connect.

use std::time::Duration;

use hutch_store::{Sandbox, StoreError};
use hutch_types::SandboxId;

use crate::error::AppError;
use crate::get_sandbox::{being, not_found};
use crate::limits::in_words;
use crate::{App, Caller};

impl App {
    /// Sets a running sandbox's end to `seconds` from now, later or earlier than before, but never beyond the
    /// longest run that the operator allows. 0 ends it at once.
    ///
    /// # Errors
    /// `NotFound`, also for a paused one; `Conflict` when it is in a transition; `Invalid` for a timeout above the limit, and for a sandbox that
    /// has run for that long.
    pub async fn set_timeout(
        &self,
        caller: &Caller,
        id: &SandboxId,
        seconds: u32,
    ) -> Result<Sandbox, AppError> {
        self.check_timeout(seconds)?;
        self.move_end(caller, id, seconds, false).await
    }

    /// Refuses a timeout above the operator's limit.
    pub(crate) fn check_timeout(&self, seconds: u32) -> Result<(), AppError> {
        let max = self.0.limits.max_timeout_seconds;
        if seconds <= max {
            return Ok(());
        }
        Err(AppError::invalid(format!(
            "Timeout cannot be greater than {} (limits.max_timeout_seconds)",
            in_words(max)
        )))
    }

    /// Moves the end of a running sandbox to `seconds` from now, capped by the longest run.
    pub(crate) async fn move_end(
        &self,
        caller: &Caller,
        id: &SandboxId,
        seconds: u32,
        only_extend: bool,
    ) -> Result<Sandbox, AppError> {
        let _gate = self.0.lease_gate.read().await;
        let sandbox = self.running_sandbox(caller.team, id).await?;
        let now = self.0.clock.now();
        let max = self.0.limits.max_timeout_seconds;
        let last_end = sandbox.started_at.plus(Duration::from_secs(max.into()));
        if last_end < now && !only_extend {
            return Err(AppError::invalid(format!(
                "Max instance length exceeded: the sandbox has run for {} (limits.max_timeout_seconds)",
                in_words(max)
            )));
        }
        let end = now.plus(Duration::from_secs(seconds.into())).min(last_end);
        let moved = match self.0.store.set_end_at(id, end, only_extend).await {
            Ok(sandbox) => sandbox,
            Err(StoreError::NotFound { .. }) => return Err(not_found(id)),
            // It ran a moment ago; what came in between is its end or a pause.
            Err(StoreError::Conflict { .. }) => {
                return Err(match self.running_sandbox(caller.team, id).await {
                    Err(error) => error,
                    Ok(_) => being(id, "paused"),
                });
            }
            Err(error) => return Err(error.into()),
        };
        self.0.leases_changed.notify_one();
        Ok(moved)
    }
}
