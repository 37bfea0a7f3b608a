//! The life of a sandbox as a pure function. It decides; others act.
//!
//! ```text
//! creating -> running -> pausing -> paused -> resuming -> running
//!             running -> snapshotting -> running
//! creating -> failed            any live state -> killing -> gone
//! ```

use serde::{Deserialize, Serialize};

/// Where a sandbox is in its life.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
    strum::EnumIter,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum SandboxState {
    /// Accepted, not yet answering.
    Creating,
    /// Its envd answers.
    Running,
    /// Being saved; shown as paused.
    Pausing,
    /// Saved, costs only disk.
    Paused,
    /// Being restored.
    Resuming,
    /// Running, while a copy is being taken.
    Snapshotting,
    /// Being destroyed; no longer found by clients.
    Killing,
    /// Destroyed.
    Gone,
    /// Never came up.
    Failed,
}

/// What happens to a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum SandboxEvent {
    /// The instance answers.
    Started,
    /// The instance could not be started.
    StartFailed,
    /// Somebody, or an expired lease, asks for a pause.
    Pause,
    /// The state is saved.
    PauseDone,
    /// The state could not be saved; the sandbox was left running.
    PauseFailed,
    /// Somebody, or traffic, asks for it back.
    Resume,
    /// It answers again.
    Resumed,
    /// It could not be restored; what was saved is intact.
    ResumeFailed,
    /// A copy is asked for.
    Snapshot,
    /// The copy is taken, or has failed; either way the sandbox runs.
    SnapshotDone,
    /// Somebody, or an expired lease, asks for its end.
    Kill,
    /// Nothing of it is left.
    Killed,
    /// The instance died by itself.
    Died,
}

/// How much of a sandbox a pause saves, and a resume brings back.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, strum::Display, strum::EnumString,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum PauseMode {
    /// Memory, processes and files: it goes on where it was.
    Full,
    /// Files alone: it boots anew.
    Filesystem,
}

/// Why a sandbox ended; the text goes into events and logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, strum::Display, strum::EnumString)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum KillReason {
    /// A client asked.
    Request,
    /// The lease ran out.
    Timeout,
    /// An operator asked.
    Admin,
    /// The node no longer has it.
    Orphaned,
    /// The instance ended by itself.
    Died,
    /// It never came up.
    StartFailed,
}

/// An event that is not allowed in a state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a sandbox that is {state} does not take {event}")]
pub struct TransitionError {
    /// The state it is in.
    pub state: SandboxState,
    /// What was asked.
    pub event: SandboxEvent,
}

impl SandboxState {
    /// The state after `event`.
    ///
    /// # Errors
    /// [`TransitionError`] when the event does not fit the state. `Kill` and `Killed` fit every live state.
    pub fn apply(self, event: SandboxEvent) -> Result<Self, TransitionError> {
        use SandboxEvent as E;
        use SandboxState as S;
        Ok(match (self, event) {
            (S::Creating, E::Started) | (S::Resuming, E::Resumed) => S::Running,
            (S::Creating, E::StartFailed) => S::Failed,
            (S::Running | S::Snapshotting, E::Pause) => S::Pausing,
            (S::Pausing, E::PauseDone) | (S::Resuming, E::ResumeFailed) => S::Paused,
            (S::Pausing, E::PauseFailed) | (S::Snapshotting, E::SnapshotDone) => S::Running,
            (S::Paused, E::Resume) => S::Resuming,
            (S::Running, E::Snapshot) => S::Snapshotting,
            (S::Gone | S::Failed, _) => return Err(TransitionError { state: self, event }),
            (_, E::Kill) => S::Killing,
            (_, E::Killed) => S::Gone,
            // What is saved does not die with an instance; everything else does.
            (S::Creating | S::Running | S::Pausing | S::Snapshotting | S::Killing, E::Died) => S::Gone,
            (S::Resuming, E::Died) => S::Paused,
            _ => return Err(TransitionError { state: self, event }),
        })
    }

    /// Whether an instance may exist on a node in this state.
    pub fn has_instance(self) -> bool {
        !matches!(self, Self::Paused | Self::Gone | Self::Failed)
    }

    /// Whether nothing will happen to it any more.
    pub fn is_final(self) -> bool {
        matches!(self, Self::Gone | Self::Failed)
    }

    /// Whether clients see it as running.
    pub fn is_shown_running(self) -> bool {
        matches!(self, Self::Running | Self::Snapshotting)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use strum::IntoEnumIterator;

    fn any_event() -> impl Strategy<Value = SandboxEvent> {
        proptest::sample::select(SandboxEvent::iter().collect::<Vec<_>>())
    }

    #[test]
    fn every_live_state_can_be_killed() {
        for s in SandboxState::iter().filter(|s| !s.is_final()) {
            assert_eq!(s.apply(SandboxEvent::Kill), Ok(SandboxState::Killing), "{s}");
            assert_eq!(s.apply(SandboxEvent::Killed), Ok(SandboxState::Gone), "{s}");
        }
    }

    #[test]
    fn a_paused_sandbox_is_not_paused_again() {
        assert!(SandboxState::Paused.apply(SandboxEvent::Pause).is_err());
        assert!(SandboxState::Pausing.apply(SandboxEvent::Pause).is_err());
    }

    #[test]
    fn a_failed_pause_leaves_it_running_and_a_failed_resume_leaves_it_paused() {
        assert_eq!(SandboxState::Pausing.apply(SandboxEvent::PauseFailed), Ok(SandboxState::Running));
        assert_eq!(SandboxState::Resuming.apply(SandboxEvent::ResumeFailed), Ok(SandboxState::Paused));
    }

    proptest! {
        #[test]
        fn the_end_is_final_and_always_reachable(events in proptest::collection::vec(any_event(), 0..40)) {
            let mut s = SandboxState::Creating;
            for e in events {
                let before = s;
                if let Ok(next) = s.apply(e) {
                    prop_assert!(!before.is_final());
                    s = next;
                }
            }
            if !s.is_final() {
                let s = s.apply(SandboxEvent::Kill).unwrap();
                prop_assert_eq!(s.apply(SandboxEvent::Killed).unwrap(), SandboxState::Gone);
            }
        }

        #[test]
        fn nothing_runs_after_killing_began(events in proptest::collection::vec(any_event(), 0..40)) {
            let mut s = SandboxState::Killing;
            for e in events {
                if let Ok(next) = s.apply(e) {
                    s = next;
                }
                prop_assert!(matches!(s, SandboxState::Killing | SandboxState::Gone), "{}", s);
            }
        }
    }
}
