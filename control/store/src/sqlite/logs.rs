//! Log lines.

use std::collections::BTreeSet;

use hutch_types::Timestamp;
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::column::{Columns, integer, to_json};
use super::error::failed;
use crate::{LogEntry, LogQuery, SortOrder, StoreError};

macro_rules! matching {
    () => {
        "SELECT sandbox_id, at, level, message, fields FROM logs
         WHERE sandbox_id = ?1 AND (?3 IS NULL OR severity >= ?3) AND (?4 IS NULL OR instr(message, ?4) > 0)"
    };
}

const OLDEST_FIRST: &str = concat!(matching!(), " AND (?2 IS NULL OR at >= ?2) ORDER BY at, seq LIMIT ?5");
const NEWEST_FIRST: &str =
    concat!(matching!(), " AND (?2 IS NULL OR at <= ?2) ORDER BY at DESC, seq DESC LIMIT ?5");

/// All lines but the newest that fit; the very newest always does.
const TRIM: &str = "DELETE FROM logs WHERE seq IN (
    SELECT seq FROM (
        SELECT seq, SUM(64 + octet_length(message) + octet_length(fields)) OVER newest AS bytes,
               ROW_NUMBER() OVER newest AS n
        FROM logs WHERE sandbox_id = ?1
        WINDOW newest AS (ORDER BY at DESC, seq DESC ROWS UNBOUNDED PRECEDING))
    WHERE bytes > ?2 AND n > 1)";

/// The rank of a level; what is none of the four counts as `info`.
fn severity(level: &str) -> i64 {
    match level {
        "debug" => 0,
        "warn" => 2,
        "error" => 3,
        _ => 1,
    }
}

fn from_row(row: &SqliteRow) -> Result<LogEntry, StoreError> {
    let c = Columns::new(row, "log line");
    Ok(LogEntry {
        sandbox: c.parsed("sandbox_id")?,
        at: c.time("at")?,
        level: c.raw("level")?,
        message: c.raw("message")?,
        fields: c.json("fields")?,
    })
}

pub(super) async fn insert(
    conn: &mut SqliteConnection,
    entries: &[LogEntry],
    max_bytes: u64,
) -> Result<(), StoreError> {
    for entry in entries {
        sqlx::query(
            "INSERT INTO logs (sandbox_id, at, level, severity, message, fields) VALUES (?, ?, ?, ?, ?, ?)",
        )
        .bind(entry.sandbox.as_str())
        .bind(entry.at.0)
        .bind(&entry.level)
        .bind(severity(&entry.level))
        .bind(&entry.message)
        .bind(to_json(&entry.fields, "log line")?)
        .execute(&mut *conn)
        .await
        .map_err(failed("storing log lines"))?;
    }
    let sandboxes: BTreeSet<&str> = entries.iter().map(|e| e.sandbox.as_str()).collect();
    for sandbox in sandboxes {
        trim(conn, sandbox, max_bytes).await?;
    }
    Ok(())
}

/// Removes the oldest lines of a sandbox that has too many. Some room is made each time, so that not every line costs a
/// look at all of them.
async fn trim(conn: &mut SqliteConnection, sandbox: &str, max_bytes: u64) -> Result<(), StoreError> {
    let bytes: Option<i64> = sqlx::query_scalar("SELECT bytes FROM log_sizes WHERE sandbox_id = ?")
        .bind(sandbox)
        .fetch_optional(&mut *conn)
        .await
        .map_err(failed("reading the size of log lines"))?;
    if bytes.is_none_or(|bytes| u64::try_from(bytes).unwrap_or(0) <= max_bytes) {
        return Ok(());
    }
    sqlx::query(TRIM)
        .bind(sandbox)
        .bind(integer(max_bytes / 10 * 9))
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("removing the oldest log lines"))
}

/// Lines of the same millisecond keep the order in which they were appended.
pub(super) async fn query(
    conn: &mut SqliteConnection,
    query: &LogQuery,
) -> Result<Vec<LogEntry>, StoreError> {
    sqlx::query(match query.order {
        SortOrder::Asc => OLDEST_FIRST,
        SortOrder::Desc => NEWEST_FIRST,
    })
    .bind(query.sandbox.as_str())
    .bind(query.cursor.map(|t| t.0))
    .bind(query.min_level.as_deref().map(severity))
    .bind(&query.search)
    .bind(query.limit)
    .fetch_all(conn)
    .await
    .map_err(failed("reading log lines"))?
    .iter()
    .map(from_row)
    .collect()
}

/// Removes some of the lines from before a time; returns how many.
pub(super) async fn purge(
    conn: &mut SqliteConnection,
    before: Timestamp,
    limit: u32,
) -> Result<u64, StoreError> {
    sqlx::query("DELETE FROM logs WHERE seq IN (SELECT seq FROM logs WHERE at < ? LIMIT ?)")
        .bind(before.0)
        .bind(limit)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
        .map_err(failed("removing old log lines"))
}

/// Removes some of the lines of sandboxes, `ids` being a JSON array; returns how many.
pub(super) async fn forget(conn: &mut SqliteConnection, ids: &str, limit: u32) -> Result<u64, StoreError> {
    sqlx::query(
        "DELETE FROM logs WHERE seq IN (
             SELECT seq FROM logs WHERE sandbox_id IN (SELECT value FROM json_each(?)) LIMIT ?)",
    )
    .bind(ids)
    .bind(limit)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
    .map_err(failed("removing log lines"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::migrate::TELEMETRY;
    use crate::sqlite::plan::plan;

    #[test]
    fn levels_have_an_order_and_unknown_ones_are_informational() {
        assert!(severity("debug") < severity("info"));
        assert!(severity("info") < severity("warn"));
        assert!(severity("warn") < severity("error"));
        assert_eq!(severity("notice"), severity("info"));
    }

    #[tokio::test]
    async fn lines_are_read_in_the_order_of_the_index_and_not_sorted() {
        for sql in [OLDEST_FIRST, NEWEST_FIRST] {
            let plan = plan(TELEMETRY, sql).await;
            assert!(plan.contains("INDEX logs_by_sandbox") && !plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
