//! The ready instances of one build and size, and who waits for one.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use hutch_runtime::Instance;
use hutch_types::InstanceId;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::plan::ShelfView;
use crate::envd::Envd;
use crate::error::StartError;

/// Pause after a failed refill; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// An instance that answers, belongs to nobody and may reach nothing.
#[derive(Debug)]
pub(crate) struct Warm {
    pub instance: Arc<dyn Instance>,
    /// Connected already.
    pub envd: Envd,
}

impl Warm {
    pub fn id(&self) -> &InstanceId {
        &self.instance.spec().id
    }

    pub fn is_alive(&self) -> bool {
        self.instance.exited().now_or_never().is_none()
    }
}

/// A warm instance on a shelf. Dropping it ends the task that watches the instance.
#[derive(Debug)]
pub(super) struct Ready {
    pub warm: Warm,
    pub _watch: DropGuard,
}

/// A request that waits for an instance.
#[derive(Debug)]
pub(super) struct Waiter {
    /// Counts up over all shelves.
    pub ticket: u64,
    pub tx: oneshot::Sender<Result<Warm, StartError>>,
}

/// The ready instances of one build and size, and who waits for one.
#[derive(Debug, Default)]
pub(super) struct Shelf {
    /// How many are wanted; `None` while nobody has said, which keeps what was adopted for a while.
    pub target: Option<usize>,
    /// The longest ready one is claimed first.
    pub ready: VecDeque<Ready>,
    pub booting: usize,
    pub waiting: VecDeque<Waiter>,
    /// Refills pause until then: one has just been claimed, or the last one failed.
    pub quiet_until: Option<Instant>,
    pub failed_until: Option<Instant>,
    failures: u32,
}

impl Shelf {
    pub fn view(&self) -> ShelfView {
        let target = self.target.unwrap_or(0);
        let is_low = self.ready.len() * 2 < target;
        let quiet = if is_low { None } else { self.quiet_until };
        ShelfView {
            target,
            ready: self.ready.len(),
            booting: self.booting,
            waiting: self.waiting.len(),
            first_unserved: self.waiting.get(self.booting).map(|w| w.ticket),
            not_before: quiet.max(self.failed_until),
        }
    }

    /// Whether nothing is there and nothing is wanted.
    pub fn is_idle(&self) -> bool {
        self.target.unwrap_or(0) == 0 && self.ready.is_empty() && self.booting == 0 && self.waiting.is_empty()
    }

    /// Whether one more ready instance is wanted.
    pub fn has_room(&self) -> bool {
        self.ready.len() < self.target.unwrap_or(0)
    }

    /// A boot succeeded.
    pub fn note_success(&mut self) {
        self.failures = 0;
        self.failed_until = None;
    }

    /// A boot failed, or a ready instance died: refills pause, longer each time. Returns for how long.
    pub fn note_failure(&mut self, now: Instant) -> Duration {
        let pause = FIRST_PAUSE.saturating_mul(2u32.saturating_pow(self.failures)).min(LONGEST_PAUSE);
        self.failures = self.failures.saturating_add(1);
        self.failed_until = Some(now + pause);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failed_refills_pause_longer_each_time_and_a_success_forgives() {
        let (mut shelf, now) = (Shelf::default(), Instant::now());
        let pauses: Vec<u64> = (0..8).map(|_| shelf.note_failure(now).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(shelf.view().not_before, Some(now + Duration::from_secs(60)));
        shelf.note_success();
        assert_eq!(shelf.view().not_before, None);
        assert_eq!(shelf.note_failure(now).as_secs(), 1);
    }

    #[test]
    fn a_shelf_that_runs_low_is_not_kept_quiet() {
        let quiet_until = Some(Instant::now());
        let shelf = |target| Shelf { quiet_until, target: Some(target), ..Shelf::default() };
        assert_eq!(shelf(1).view().not_before, None);
        assert_eq!(shelf(0).view().not_before, quiet_until);
    }
}
