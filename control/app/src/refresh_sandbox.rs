//! The older way to prolong a lease.

use hutch_store::Sandbox;
use hutch_types::SandboxId;

use crate::error::AppError;
use crate::{App, Caller};

/// The longest and the shortest duration of a refresh, in seconds.
const REFRESH_SECONDS: std::ops::RangeInclusive<u32> = 15..=3600;

impl App {
    /// Makes sure that a running sandbox lives at least `seconds` from now (default and least 15, most 3600); never
    /// shortens its life.
    ///
    /// # Errors
    /// `NotFound`, also for a paused one; `Conflict` when it is in a transition; `Invalid` for more than an hour.
    pub async fn refresh_sandbox(
        &self,
        caller: &Caller,
        id: &SandboxId,
        seconds: Option<u32>,
    ) -> Result<Sandbox, AppError> {
        let (least, most) = (*REFRESH_SECONDS.start(), *REFRESH_SECONDS.end());
        let seconds = seconds.unwrap_or(least);
        if seconds > most {
            return Err(AppError::invalid(format!("duration cannot be greater than {most} seconds")));
        }
        self.move_end(caller, id, seconds.max(least), true).await
    }
}
