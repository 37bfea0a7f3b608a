//! What all parts of one agent share.

use std::sync::Arc;
use std::time::Duration;

use hutch_runtime::{Instance, Runtime};
use hutch_types::supervise::Supervisor;
use hutch_types::{Clock, InstanceId};
use tokio_util::sync::CancellationToken;

use crate::config::AgentConfig;
use crate::work::Work;

/// First pause after a failed kill; it doubles up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// What all parts of one agent share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub config: AgentConfig,
    pub runtime: Arc<dyn Runtime>,
    pub supervisor: Supervisor,
    pub clock: Clock,
    /// Set when the agent shuts down: nothing new begins, sandboxes are left alone.
    pub closing: CancellationToken,
    /// Everything that somebody may want to wait for.
    pub work: Work,
}

impl Shared {
    /// Kills `instance`, again and again until nothing of it is left, or until the agent shuts down: what is left
    /// then is found by the next adoption.
    pub async fn reap(&self, instance: &dyn Instance) {
        let id: &InstanceId = &instance.spec().id;
        let mut pause = FIRST_PAUSE;
        loop {
            match instance.kill().await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(instance = %id, error = error.chain(), "could not remove an instance, will try again");
                }
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => pause = (pause * 2).min(LONGEST_PAUSE),
                () = self.closing.cancelled() => return,
            }
        }
    }

    /// [`Shared::reap`] in the background, counted as work in flight.
    pub fn reap_behind(self: &Arc<Self>, instance: Arc<dyn Instance>) {
        let (shared, job) = (self.clone(), self.work.begin());
        self.supervisor.spawn("reap", async move {
            shared.reap(&*instance).await;
            drop(job);
        });
    }
}
