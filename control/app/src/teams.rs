//! Teams, and whether the control plane can work at all.

use hutch_store::Team;

use crate::error::{AppError, ErrorClass};
use crate::{App, Caller};

impl App {
    /// The teams that the caller may act for: the key's.
    ///
    /// # Errors
    /// `Unavailable` when the store is.
    pub async fn teams(&self, caller: &Caller) -> Result<Vec<Team>, AppError> {
        Ok(vec![self.0.store.team(caller.team).await?])
    }

    /// Whether requests can be served.
    ///
    /// # Errors
    /// `Unavailable` while shutting down, or when the store does not answer.
    pub async fn check_health(&self) -> Result<(), AppError> {
        if self.is_draining() {
            return Err(AppError::new(ErrorClass::Unavailable, "the server is shutting down"));
        }
        self.0.store.next_deadline().await?;
        Ok(())
    }
}
