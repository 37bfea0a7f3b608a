//! Samples of what sandboxes use.

use hutch_store::{MetricPoint, StoreError};
use hutch_types::{SandboxId, Timestamp};

use crate::error::AppError;
use crate::{App, Caller};

/// Most sandboxes that one request may ask about.
pub const MAX_METRICS_IDS: usize = 100;
/// Most samples of an answer; longer ranges are thinned evenly. An hour of samples fits.
const MAX_POINTS: u32 = 1000;

impl App {
    /// Samples of a sandbox between two times, oldest first; those of ended sandboxes stay readable for as long as
    /// their records are kept.
    ///
    /// # Errors
    /// `Invalid` for a range that ends before it starts; `NotFound`.
    pub async fn sandbox_metrics(
        &self,
        caller: &Caller,
        id: &SandboxId,
        start: Option<Timestamp>,
        end: Option<Timestamp>,
    ) -> Result<Vec<MetricPoint>, AppError> {
        if let (Some(start), Some(end)) = (start, end)
            && start > end
        {
            return Err(AppError::invalid("start must not be after end"));
        }
        self.owned_sandbox(caller.team, id).await?;
        Ok(self.0.store.metrics(id, start, end, MAX_POINTS).await?)
    }

    /// The latest sample of each of the sandboxes that are the caller's; others are left out.
    ///
    /// # Errors
    /// `Invalid` for more than [`MAX_METRICS_IDS`].
    pub async fn latest_metrics(
        &self,
        caller: &Caller,
        ids: &[SandboxId],
    ) -> Result<Vec<MetricPoint>, AppError> {
        if ids.len() > MAX_METRICS_IDS {
            return Err(AppError::invalid(format!(
                "Too many sandboxes requested, maximum is {MAX_METRICS_IDS}"
            )));
        }
        let mut own = Vec::with_capacity(ids.len());
        for id in ids {
            match self.0.store.sandbox(id).await {
                Ok(sandbox) if sandbox.asked.team == caller.team => own.push(id.clone()),
                Ok(_) | Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.0.store.latest_metrics(&own).await?)
    }
}
