//! `GET /metrics`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State as Shared;
use http::{HeaderName, HeaderValue, header};
use hutch_types::Clock;
use serde::Serialize;

use crate::error::HttpError;
use crate::metrics;
use crate::state::State;

/// What the sandbox uses right now, in bytes and percent.
#[derive(Debug, Serialize)]
pub(crate) struct Metrics {
    /// Seconds since 1970.
    ts: i64,
    cpu_count: u32,
    cpu_used_pct: f64,
    mem_total: u64,
    mem_used: u64,
    mem_cache: u64,
    mem_total_mib: u64,
    mem_used_mib: u64,
    disk_used: u64,
    disk_total: u64,
}

/// The figures, never from a cache.
pub(crate) async fn metrics(
    Shared(state): Shared<Arc<State>>,
) -> Result<([(HeaderName, HeaderValue); 1], Json<Metrics>), HttpError> {
    let figures = tokio::task::spawn_blocking(move || {
        let limits = state.limits();
        let memory = metrics::memory(limits)?;
        let (disk_total, disk_used) = metrics::disk(limits)?;
        let cpu_count = metrics::cpu_count(limits);
        Some(Metrics {
            ts: Clock::system().now().0 / 1000,
            cpu_count,
            cpu_used_pct: state.cpu.percent(cpu_count),
            mem_total: memory.total,
            mem_used: memory.used,
            mem_cache: memory.cache,
            mem_total_mib: memory.total >> 20,
            mem_used_mib: memory.used >> 20,
            disk_used,
            disk_total,
        })
    });
    let figures =
        figures.await.ok().flatten().ok_or_else(|| HttpError::internal("the figures cannot be read"))?;
    Ok(([(header::CACHE_CONTROL, HeaderValue::from_static("no-store"))], Json(figures)))
}
