//! Coming back to a sandbox.

use hutch_store::Sandbox;
use hutch_types::SandboxId;

use crate::error::AppError;
use crate::{App, Caller};

impl App {
    /// Makes sure that a running sandbox lives at least `seconds` from now and returns it; never shortens its life.
    ///
    /// # Errors
    /// `NotFound`; `Conflict` when it is being killed; `Invalid` for a timeout above the limit.
    pub async fn connect_sandbox(
        &self,
        caller: &Caller,
        id: &SandboxId,
        seconds: u32,
    ) -> Result<Sandbox, AppError> {
        self.check_timeout(seconds)?;
        self.move_end(caller, id, seconds, true).await
    }
}
