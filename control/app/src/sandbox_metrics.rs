//! Samples of what sandboxes use.

use hutch_store::{MetricPoint, StoreError};
use hutch_types::{SandboxId, Timestamp};

use crate::error::AppError;
use crate::{App, Caller};

/// Most sandboxes that one request may ask about.
pub const MAX_METRICS_IDS: usize = 100;
const SECOND_MS: i64 = 1000;
const HOUR_MS: i64 = 3600 * SECOND_MS;
/// How fine the samples of a range are: ranges shorter than the first figure have a sample for each of the second.
const STEPS_MS: [(i64, i64); 5] = [
    (HOUR_MS, 5 * SECOND_MS),
    (6 * HOUR_MS, 30 * SECOND_MS),
    (12 * HOUR_MS, 60 * SECOND_MS),
    (24 * HOUR_MS, 120 * SECOND_MS),
    (7 * 24 * HOUR_MS, 300 * SECOND_MS),
];
/// The step of longer ranges, unless it would give more than [`MAX_STEPS`] samples.
const LONGEST_STEP_MS: i64 = 900 * SECOND_MS;
/// Most steps of a range, however long history is kept. No step of the table gives more than that.
const MAX_STEPS: i64 = 2016;

impl App {
    /// Samples of a sandbox between two times, oldest first; those of ended sandboxes stay readable for as long as
    /// their records are kept. The longer the range that there are samples of, the fewer they are: one for every 5
    /// seconds of less than an hour, up to one for every 15 minutes of more than a week, each with the peaks of its step.
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
        let Some((first, last)) = self.0.store.metrics_extent(id, start, end).await? else {
            return Ok(Vec::new());
        };
        let step_ms = step_ms(last.0.saturating_sub(first.0));
        Ok(self.0.store.metrics(id, Some(first), Some(last), step_ms).await?)
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

/// The step for samples of a range, both in milliseconds.
fn step_ms(range_ms: i64) -> i64 {
    let fits = STEPS_MS.iter().find(|(limit, _)| range_ms < *limit);
    fits.map_or_else(|| LONGEST_STEP_MS.max(range_ms / MAX_STEPS), |(_, step)| *step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_grows_with_the_range() {
        let minutes = |n: i64| n * 60 * SECOND_MS;
        for (range, step) in [
            (0, 5),
            (minutes(60) - 1, 5),
            (minutes(60), 30),
            (minutes(360) - 1, 30),
            (minutes(360), 60),
            (minutes(720), 120),
            (minutes(1440), 300),
            (minutes(10_080) - 1, 300),
            (minutes(10_080), 900),
        ] {
            assert_eq!(step_ms(range), step * SECOND_MS, "{range}");
        }
    }

    #[test]
    fn an_answer_is_bounded_however_long_history_is_kept() {
        for days in 0..4000 {
            let range = days * 24 * HOUR_MS + HOUR_MS / 2;
            assert!(range / step_ms(range) <= MAX_STEPS, "{days}");
        }
        assert!(i64::MAX / step_ms(i64::MAX) <= MAX_STEPS + 1);
    }
}
