//! Samples in answers.

use std::collections::BTreeMap;

use hutch_app::MetricPoint;
use serde::Serialize;
use utoipa::ToSchema;

/// What a sandbox used at one moment. Sizes in bytes.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxMetric {
    /// RFC 3339.
    #[schema(deprecated)]
    timestamp: String,
    /// Seconds since 1970.
    timestamp_unix: i64,
    cpu_count: u32,
    /// Of all its CPUs.
    cpu_used_pct: f64,
    mem_used: u64,
    mem_total: u64,
    mem_cache: u64,
    disk_used: u64,
    disk_total: u64,
}

impl From<&MetricPoint> for SandboxMetric {
    fn from(point: &MetricPoint) -> Self {
        Self {
            timestamp: point.at.to_rfc3339(),
            timestamp_unix: point.at.0.div_euclid(1000),
            cpu_count: point.cpu_count,
            cpu_used_pct: if point.cpu_used_pct.is_finite() { point.cpu_used_pct } else { 0.0 },
            mem_used: point.mem_used_bytes,
            mem_total: point.mem_total_bytes,
            mem_cache: point.mem_cache_bytes,
            disk_used: point.disk_used_bytes,
            disk_total: point.disk_total_bytes,
        }
    }
}

/// The latest sample of each sandbox, by its id.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = SandboxesWithMetrics)]
pub(crate) struct SandboxesMetrics {
    sandboxes: BTreeMap<String, SandboxMetric>,
}

impl SandboxesMetrics {
    pub(crate) fn new(points: &[MetricPoint]) -> Self {
        Self { sandboxes: points.iter().map(|p| (p.sandbox.to_string(), p.into())).collect() }
    }
}
