//! Counts what is in flight, so that shutdown and tests can wait for it.

use tokio::sync::watch;

/// The number of jobs in flight. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Work(watch::Sender<usize>);

/// One job in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct Job(watch::Sender<usize>);

impl Default for Work {
    fn default() -> Self {
        Self(watch::Sender::new(0))
    }
}

impl Work {
    /// Counts one more job.
    pub fn begin(&self) -> Job {
        self.0.send_modify(|n| *n += 1);
        Job(self.0.clone())
    }

    /// Completes when nothing is in flight. Cancellation safe.
    pub async fn idle(&self) {
        // The sender lives in `self`, so that waiting cannot fail.
        drop(self.0.subscribe().wait_for(|n| *n == 0).await);
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n = n.saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    #[tokio::test]
    async fn it_is_idle_when_the_last_job_ends() {
        let work = Work::default();
        let (a, b) = (work.begin(), work.begin());
        assert!(work.idle().now_or_never().is_none());
        drop(a);
        assert!(work.idle().now_or_never().is_none());
        drop(b);
        work.idle().await;
    }
}
