//! One sandbox, as its owner may see it.

use hutch_store::{Sandbox, StoreError};
use hutch_types::{SandboxId, SandboxState, TeamId};

use crate::error::{AppError, ErrorClass};
use crate::{App, Caller};

impl App {
    /// A live sandbox of the caller's team.
    ///
    /// # Errors
    /// `NotFound` for one that does not exist, has ended or is ending, is not up yet, or is another team's.
    pub async fn get_sandbox(&self, caller: &Caller, id: &SandboxId) -> Result<Sandbox, AppError> {
        let sandbox = self.owned_sandbox(caller.team, id).await?;
        if is_shown(sandbox.state) { Ok(sandbox) } else { Err(not_found(id)) }
    }

    /// A sandbox of the team in whatever state.
    pub(crate) async fn owned_sandbox(&self, team: TeamId, id: &SandboxId) -> Result<Sandbox, AppError> {
        match self.0.store.sandbox(id).await {
            Ok(sandbox) if sandbox.asked.team == team => Ok(sandbox),
            Ok(_) | Err(StoreError::NotFound { .. }) => Err(not_found(id)),
            Err(error) => Err(error.into()),
        }
    }

    /// A running sandbox of the team, for what only a running one takes.
    pub(crate) async fn running_sandbox(&self, team: TeamId, id: &SandboxId) -> Result<Sandbox, AppError> {
        let sandbox = self.owned_sandbox(team, id).await?;
        match sandbox.state {
            SandboxState::Running | SandboxState::Snapshotting => Ok(sandbox),
            SandboxState::Killing => Err(being(id, "killed")),
            SandboxState::Pausing => Err(being(id, "paused")),
            SandboxState::Resuming => Err(being(id, "resumed")),
            // Clients know one that is saved as one that has no run to change.
            SandboxState::Paused | SandboxState::Creating | SandboxState::Gone | SandboxState::Failed => {
                Err(not_found(id))
            }
        }
    }
}

/// Whether clients see a sandbox in this state at all.
fn is_shown(state: SandboxState) -> bool {
    match state {
        SandboxState::Running
        | SandboxState::Snapshotting
        | SandboxState::Pausing
        | SandboxState::Paused
        | SandboxState::Resuming => true,
        SandboxState::Creating | SandboxState::Killing | SandboxState::Gone | SandboxState::Failed => false,
    }
}

pub(crate) fn not_found(id: &SandboxId) -> AppError {
    AppError::not_found(format!("Sandbox \"{id}\" doesn't exist or you don't have access to it"))
}

pub(crate) fn being(id: &SandboxId, what: &str) -> AppError {
    AppError::new(ErrorClass::Conflict, format!("Sandbox \"{id}\" is being {what}"))
}
