//! Forgetting what is old, in small transactions that other writes get in between.

use hutch_types::Timestamp;

use super::column::to_json;
use super::database::Durability;
use super::{SqliteStore, logs, metrics, sandboxes};
use crate::StoreError;

/// Sandboxes in one step.
const SANDBOXES: u32 = 200;
/// Samples or log lines in one transaction: some ten milliseconds of work.
const ROWS: u32 = 2_000;

impl SqliteStore {
    /// Removes sandboxes that ended before `before`. Their samples and lines go first: should it be cut short, the
    /// record is still there to be found by the next purge.
    pub(super) async fn purge_ended(&self, before: Timestamp) -> Result<u64, StoreError> {
        let attempted = "forgetting ended sandboxes";
        let mut forgotten = 0;
        loop {
            let ids = self
                .main
                .read(attempted, move |c| Box::pin(sandboxes::ended_before(c, before, SANDBOXES)))
                .await?;
            if ids.is_empty() {
                return Ok(forgotten);
            }
            let ids = to_json(&ids, "list of ids")?;
            self.forget_telemetry(&ids).await?;
            let removed = self
                .main
                .write(attempted, Durability::Synced, move |c| {
                    Box::pin(async move { sandboxes::forget(c, &ids).await })
                })
                .await?;
            forgotten += removed;
            if removed == 0 {
                // Another process is purging the same ones.
                return Ok(forgotten);
            }
        }
    }

    async fn forget_telemetry(&self, ids: &str) -> Result<(), StoreError> {
        loop {
            let ids = ids.to_owned();
            let removed = self
                .telemetry
                .write("forgetting samples and log lines", Durability::Relaxed, move |c| {
                    Box::pin(async move {
                        Ok(metrics::forget(c, &ids, ROWS).await? + logs::forget(c, &ids, ROWS).await?)
                    })
                })
                .await?;
            if removed == 0 {
                return Ok(());
            }
        }
    }

    /// Removes samples and log lines from before `before`.
    pub(super) async fn purge_old_telemetry(&self, before: Timestamp) -> Result<u64, StoreError> {
        let mut total = 0;
        loop {
            let removed = self
                .telemetry
                .write("removing old samples and log lines", Durability::Relaxed, move |c| {
                    Box::pin(async move {
                        Ok(metrics::purge(c, before, ROWS).await? + logs::purge(c, before, ROWS).await?)
                    })
                })
                .await?;
            if removed == 0 {
                return Ok(total);
            }
            total += removed;
        }
    }
}
