//! What follows from what the store says of a sandbox and what the node has of it. A pure function; others act.

use hutch_types::{PauseMode, SandboxState};

/// What the node has of a sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Present {
    /// An instance.
    Running,
    /// A saved instance.
    Paused(PauseMode),
    /// Nothing.
    Nothing,
}

/// What to do. Anything but [`Verdict::Agrees`] must be looked at again when nobody is changing the sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing.
    Agrees,
    /// A kill has begun and must be completed.
    FinishKill,
    /// Its start did not complete: it has failed, and what there is of it goes.
    StartDied,
    /// There is nothing of it: it ends.
    Orphaned,
    /// It is saved, so it is paused.
    IsPaused(PauseMode),
    /// It runs although it was to be paused, so it goes on.
    PauseInterrupted,
    /// It runs although a client was told that it is paused: it is paused again.
    PauseAgain(PauseMode),
    /// It is back, so it runs.
    HasResumed,
}

/// `saved` is what the store believes to be saved of it.
pub(crate) fn verdict(state: SandboxState, saved: Option<PauseMode>, present: Present) -> Verdict {
    use SandboxState as S;
    match (state, present) {
        (S::Gone | S::Failed, _) => Verdict::Agrees,
        (S::Killing, _) => Verdict::FinishKill,
        (S::Creating, _) => Verdict::StartDied,
        (S::Running | S::Snapshotting, Present::Running) => Verdict::Agrees,
        (S::Pausing, Present::Running) => Verdict::PauseInterrupted,
        (S::Paused, Present::Running) => Verdict::PauseAgain(saved.unwrap_or(PauseMode::Full)),
        (S::Resuming, Present::Running) => Verdict::HasResumed,
        (S::Paused, Present::Paused(mode)) if saved == Some(mode) => Verdict::Agrees,
        (S::Running | S::Snapshotting | S::Pausing | S::Paused | S::Resuming, Present::Paused(mode)) => {
            Verdict::IsPaused(mode)
        }
        (S::Running | S::Snapshotting | S::Pausing | S::Paused | S::Resuming, Present::Nothing) => {
            Verdict::Orphaned
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: Present = Present::Paused(PauseMode::Full);
    const FILES: Present = Present::Paused(PauseMode::Filesystem);

    #[test]
    fn what_the_node_has_decides() {
        use SandboxState as S;
        use Verdict as V;
        let (is_full, is_files) = (V::IsPaused(PauseMode::Full), V::IsPaused(PauseMode::Filesystem));
        for (state, running, full, files, nothing) in [
            (S::Creating, V::StartDied, V::StartDied, V::StartDied, V::StartDied),
            (S::Running, V::Agrees, is_full, is_files, V::Orphaned),
            (S::Snapshotting, V::Agrees, is_full, is_files, V::Orphaned),
            (S::Pausing, V::PauseInterrupted, is_full, is_files, V::Orphaned),
            (S::Paused, V::PauseAgain(PauseMode::Full), V::Agrees, is_files, V::Orphaned),
            (S::Resuming, V::HasResumed, is_full, is_files, V::Orphaned),
            (S::Killing, V::FinishKill, V::FinishKill, V::FinishKill, V::FinishKill),
            (S::Gone, V::Agrees, V::Agrees, V::Agrees, V::Agrees),
            (S::Failed, V::Agrees, V::Agrees, V::Agrees, V::Agrees),
        ] {
            let saved = Some(PauseMode::Full);
            assert_eq!(verdict(state, saved, Present::Running), running, "{state}, running");
            assert_eq!(verdict(state, saved, FULL), full, "{state}, saved with memory");
            assert_eq!(verdict(state, saved, FILES), files, "{state}, its files saved");
            assert_eq!(verdict(state, saved, Present::Nothing), nothing, "{state}, nothing");
        }
    }

    #[test]
    fn what_is_saved_is_taken_from_the_node() {
        let paused = SandboxState::Paused;
        let files = Some(PauseMode::Filesystem);
        assert_eq!(verdict(paused, files, FILES), Verdict::Agrees);
        assert_eq!(verdict(paused, files, FULL), Verdict::IsPaused(PauseMode::Full));
        assert_eq!(verdict(paused, None, FULL), Verdict::IsPaused(PauseMode::Full));
        assert_eq!(verdict(paused, files, Present::Running), Verdict::PauseAgain(PauseMode::Filesystem));
    }

    #[test]
    fn what_is_saved_or_runs_is_not_ended() {
        use SandboxState as S;
        for state in [S::Running, S::Snapshotting, S::Pausing, S::Paused, S::Resuming] {
            for present in [Present::Running, FULL, FILES] {
                assert_ne!(
                    verdict(state, Some(PauseMode::Full), present),
                    Verdict::Orphaned,
                    "{state} {present:?}"
                );
            }
        }
    }
}
