//! Named background tasks. `tokio::spawn` is banned elsewhere, so that every task has a name in the logs, a panic is
//! reported where it happened, and shutdown can wait for all of them.

use std::future::Future;
use std::time::Duration;

use tokio_util::sync::{CancellationToken, WaitForCancellationFuture};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// Owns the tasks of one daemon. Clones share the same set.
#[derive(Debug, Clone, Default)]
pub struct Supervisor {
    tracker: TaskTracker,
    stop: CancellationToken,
}

impl Supervisor {
    /// A new, empty set of tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs `task` in the background under `name`. A panic inside is logged and ends that task alone.
    #[expect(clippy::disallowed_methods, reason = "the one place that spawns")]
    pub fn spawn<F>(&self, name: &'static str, task: F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let span = tracing::debug_span!("task", name);
        let running = self.tracker.track_future(task.instrument(span));
        let handle = tokio::spawn(running);
        tokio::spawn(async move {
            if let Err(error) = handle.await
                && error.is_panic()
            {
                tracing::error!(task = name, %error, "a background task panicked");
            }
        });
    }

    /// Completes when shutdown was asked for. Loops select on it.
    pub fn stopping(&self) -> WaitForCancellationFuture<'_> {
        self.stop.cancelled()
    }

    /// Whether shutdown was asked for.
    pub fn is_stopping(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Asks all tasks to end and waits for them, at most `grace`. Returns how many were still running then.
    pub async fn shutdown(&self, grace: Duration) -> usize {
        self.stop.cancel();
        self.tracker.close();
        match tokio::time::timeout(grace, self.tracker.wait()).await {
            Ok(()) => 0,
            Err(_) => self.tracker.len(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shutdown_waits_for_tasks_that_listen_and_counts_those_that_do_not() {
        let s = Supervisor::new();
        let s2 = s.clone();
        s.spawn("listens", async move { s2.stopping().await });
        assert_eq!(s.shutdown(Duration::from_secs(5)).await, 0);

        let s = Supervisor::new();
        s.spawn("deaf", std::future::pending());
        assert_eq!(s.shutdown(Duration::from_millis(20)).await, 1);
    }

    #[tokio::test]
    async fn a_panic_ends_only_its_own_task() {
        let s = Supervisor::new();
        s.spawn("panics", async { panic!("on purpose") });
        let (tx, rx) = tokio::sync::oneshot::channel();
        s.spawn("works", async move { tx.send(7).unwrap() });
        assert_eq!(rx.await, Ok(7));
    }
}
