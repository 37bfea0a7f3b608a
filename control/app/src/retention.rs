//! Forgets what has been kept for long enough: ended sandboxes with their logs and metrics, and the older logs and
//! metrics of sandboxes that still live.

use std::time::Duration;

use hutch_types::Timestamp;

use crate::App;
use crate::error::chain;

const EVERY: Duration = Duration::from_secs(3600);
const DAY_MS: i64 = 86_400_000;

/// Runs until the daemon stops.
pub(crate) async fn run(app: App) {
    loop {
        let kept_ms = i64::from(app.0.limits.history_days).saturating_mul(DAY_MS);
        let before = Timestamp(app.0.clock.now().0.saturating_sub(kept_ms));
        match app.0.store.purge(before).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "records of ended sandboxes were removed"),
            Err(error) => tracing::warn!(error = chain(&error), "old records were not removed"),
        }
        match app.0.store.purge_telemetry(before).await {
            Ok(0) => {}
            Ok(count) => tracing::info!(count, "old log lines and samples were removed"),
            Err(error) => tracing::warn!(error = chain(&error), "old log lines and samples were not removed"),
        }
        if !app.pause(EVERY).await {
            return;
        }
    }
}
