//! Samples.

use hutch_types::{SandboxId, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::column::{Columns, integer, to_json};
use super::error::failed;
use crate::{MetricPoint, StoreError};

macro_rules! columns {
    () => {
        "sandbox_id, at, cpu_count, cpu_used_pct, mem_used_bytes, mem_total_bytes, mem_cache_bytes, \
         disk_used_bytes, disk_total_bytes"
    };
}

/// Two look-ups in the index, however many samples there are.
const EXTENT: &str = "SELECT (SELECT MIN(at) FROM metrics WHERE sandbox_id = ?1 AND at >= ?2 AND at <= ?3),
                             (SELECT MAX(at) FROM metrics WHERE sandbox_id = ?1 AND at >= ?2 AND at <= ?3)";

fn from_row(row: &SqliteRow) -> Result<MetricPoint, StoreError> {
    let c = Columns::new(row, "sample");
    Ok(MetricPoint {
        sandbox: c.parsed("sandbox_id")?,
        at: c.time("at")?,
        cpu_count: c.number("cpu_count")?,
        cpu_used_pct: c.raw("cpu_used_pct")?,
        mem_used_bytes: c.number("mem_used_bytes")?,
        mem_total_bytes: c.number("mem_total_bytes")?,
        mem_cache_bytes: c.number("mem_cache_bytes")?,
        disk_used_bytes: c.number("disk_used_bytes")?,
        disk_total_bytes: c.number("disk_total_bytes")?,
    })
}

fn from_rows(rows: &[SqliteRow]) -> Result<Vec<MetricPoint>, StoreError> {
    rows.iter().map(from_row).collect()
}

/// A second sample of the same millisecond replaces the first.
pub(super) async fn insert(conn: &mut SqliteConnection, points: &[MetricPoint]) -> Result<(), StoreError> {
    for p in points {
        // SQLite has no NaN: it would arrive as NULL.
        let cpu_used_pct = if p.cpu_used_pct.is_finite() { p.cpu_used_pct } else { 0.0 };
        sqlx::query(concat!(
            "INSERT OR REPLACE INTO metrics (",
            columns!(),
            ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
        ))
        .bind(p.sandbox.as_str())
        .bind(p.at.0)
        .bind(p.cpu_count)
        .bind(cpu_used_pct)
        .bind(integer(p.mem_used_bytes))
        .bind(integer(p.mem_total_bytes))
        .bind(integer(p.mem_cache_bytes))
        .bind(integer(p.disk_used_bytes))
        .bind(integer(p.disk_total_bytes))
        .execute(&mut *conn)
        .await
        .map_err(failed("storing samples"))?;
    }
    Ok(())
}

/// Grouping keeps the peaks, which thinning would lose.
pub(super) async fn between(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
    step_ms: i64,
) -> Result<Vec<MetricPoint>, StoreError> {
    let rows = sqlx::query(
        "SELECT sandbox_id, MAX(at) AS at, MAX(cpu_count) AS cpu_count, MAX(cpu_used_pct) AS cpu_used_pct,
                MAX(mem_used_bytes) AS mem_used_bytes, MAX(mem_total_bytes) AS mem_total_bytes,
                MAX(mem_cache_bytes) AS mem_cache_bytes, MAX(disk_used_bytes) AS disk_used_bytes,
                MAX(disk_total_bytes) AS disk_total_bytes
         FROM metrics
         WHERE sandbox_id = ?1 AND metrics.at >= ?2 AND metrics.at <= ?3
         GROUP BY metrics.at / ?4
         ORDER BY at",
    )
    .bind(id.as_str())
    .bind(start.map_or(i64::MIN, |t| t.0))
    .bind(end.map_or(i64::MAX, |t| t.0))
    .bind(step_ms.max(1))
    .fetch_all(conn)
    .await
    .map_err(failed("reading samples"))?;
    from_rows(&rows)
}

pub(super) async fn extent(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    start: Option<Timestamp>,
    end: Option<Timestamp>,
) -> Result<Option<(Timestamp, Timestamp)>, StoreError> {
    let (first, last): (Option<i64>, Option<i64>) = sqlx::query_as(EXTENT)
        .bind(id.as_str())
        .bind(start.map_or(i64::MIN, |t| t.0))
        .bind(end.map_or(i64::MAX, |t| t.0))
        .fetch_one(conn)
        .await
        .map_err(failed("reading the times of samples"))?;
    Ok(first.zip(last).map(|(first, last)| (Timestamp(first), Timestamp(last))))
}

pub(super) async fn latest(
    conn: &mut SqliteConnection,
    ids: &[SandboxId],
) -> Result<Vec<MetricPoint>, StoreError> {
    let rows = sqlx::query(concat!(
        "SELECT ",
        columns!(),
        " FROM (SELECT DISTINCT value FROM json_each(?)) AS wanted
          JOIN metrics AS m ON m.sandbox_id = wanted.value
           AND m.at = (SELECT MAX(at) FROM metrics WHERE sandbox_id = wanted.value)
          ORDER BY m.sandbox_id"
    ))
    .bind(to_json(&ids, "list of ids")?)
    .fetch_all(conn)
    .await
    .map_err(failed("reading the latest samples"))?;
    from_rows(&rows)
}

/// Removes some of the samples from before a time; returns how many.
pub(super) async fn purge(
    conn: &mut SqliteConnection,
    before: Timestamp,
    limit: u32,
) -> Result<u64, StoreError> {
    sqlx::query("DELETE FROM metrics WHERE rowid IN (SELECT rowid FROM metrics WHERE at < ? LIMIT ?)")
        .bind(before.0)
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
        .map_err(failed("removing old samples"))
}

/// Removes some of the samples of sandboxes, `ids` being a JSON array; returns how many.
pub(super) async fn forget(conn: &mut SqliteConnection, ids: &str, limit: u32) -> Result<u64, StoreError> {
    sqlx::query(
        "DELETE FROM metrics WHERE rowid IN (
             SELECT rowid FROM metrics WHERE sandbox_id IN (SELECT value FROM json_each(?)) LIMIT ?)",
    )
    .bind(ids)
    .bind(limit)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
    .map_err(failed("removing samples"))
}
