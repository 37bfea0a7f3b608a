//! Coming back to a sandbox.

use hutch_types::SandboxId;

use crate::error::AppError;
use crate::resume_sandbox::{Connected, IfRunning, ResumeOptions};
use crate::{App, Caller};

impl App {
    /// Makes sure that a sandbox runs and lives at least `seconds` from now, and returns it. One that runs is prolonged, never
    /// shortened; a paused one is resumed, with its memory if `memory` and if that was saved. Any number may ask at the
    /// same time.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when it is being killed; `Invalid` for a timeout above the limit, or when this machine cannot
    /// bring memory back; `LimitReached` when the team has too many sandboxes or too many starts wait; `Unavailable` when
    /// nothing is free, `Internal` when it failed: it stays paused. `DeadlineExceeded` when it takes long: it goes on.
    pub async fn connect_sandbox(
        &self,
        caller: &Caller,
        id: &SandboxId,
        seconds: u32,
        memory: bool,
    ) -> Result<Connected, AppError> {
        let options = ResumeOptions { timeout_seconds: seconds, memory, auto_pause: None };
        self.come_back(caller, id, options, IfRunning::Extend).await
    }
}
