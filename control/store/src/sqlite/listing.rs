//! Pages of sandboxes.

use sqlx::query::Query;
use sqlx::sqlite::SqliteArguments;
use sqlx::{Row, Sqlite, SqliteConnection};

use super::column::to_json;
use super::error::failed;
use super::sandboxes::{columns, from_row};
use crate::{PageToken, SandboxFilter, SandboxPage, SortOrder, StoreError};

/// What the filter lets through, states aside. Pairs are compared as `json_each` reads them on both sides, so that no
/// escape can make them differ.
macro_rules! matching {
    () => {
        "FROM sandboxes AS s
         WHERE s.team_id = ?1 AND s.ended_at IS NULL
           AND (?2 IS NULL OR s.started_at >= ?2)
           AND (?3 IS NULL OR s.template_id = ?3)
           AND NOT EXISTS (SELECT 1 FROM json_each(?4) AS f WHERE NOT EXISTS (
                   SELECT 1 FROM json_each(s.metadata) AS m WHERE m.key = f.key AND m.value = f.value))"
    };
}

macro_rules! in_states {
    () => {
        " AND ((?5 AND s.state IN ('running', 'snapshotting'))
            OR (?6 AND s.state IN ('pausing', 'paused', 'resuming')))"
    };
}

const NEWEST_FIRST: &str = concat!(
    "SELECT ",
    columns!(),
    " ",
    matching!(),
    in_states!(),
    " AND (?7 IS NULL OR (s.started_at, s.id) < (?7, ?8)) ORDER BY s.started_at DESC, s.id DESC LIMIT ?9"
);

const OLDEST_FIRST: &str = concat!(
    "SELECT ",
    columns!(),
    " ",
    matching!(),
    in_states!(),
    " AND (?7 IS NULL OR (s.started_at, s.id) > (?7, ?8)) ORDER BY s.started_at, s.id LIMIT ?9"
);

const COUNT_RUNNING: &str =
    concat!("SELECT COUNT(*) ", matching!(), " AND s.state IN ('running', 'snapshotting')");

/// The first four binds.
fn filtered<'q>(
    sql: &'static str,
    filter: &SandboxFilter,
    metadata: &'q str,
) -> Query<'q, Sqlite, SqliteArguments> {
    sqlx::query(sql)
        .bind(filter.team.to_string())
        .bind(filter.started_after.map(|t| t.0))
        .bind(filter.template.as_ref().map(|t| t.as_str().to_owned()))
        .bind(metadata)
}

pub(super) async fn page(
    conn: &mut SqliteConnection,
    filter: &SandboxFilter,
) -> Result<SandboxPage, StoreError> {
    let metadata = to_json(&filter.metadata, "metadata filter")?;
    let sql = match filter.order {
        SortOrder::Asc => OLDEST_FIRST,
        SortOrder::Desc => NEWEST_FIRST,
    };
    // One row more than asked for tells whether there is a next page.
    let rows = filtered(sql, filter, &metadata)
        .bind(filter.running)
        .bind(filter.paused)
        .bind(filter.after.as_ref().map(|t| t.started_at.0))
        .bind(filter.after.as_ref().map(|t| t.id.as_str().to_owned()))
        .bind(i64::from(filter.limit).saturating_add(1))
        .fetch_all(&mut *conn)
        .await
        .map_err(failed("listing sandboxes"))?;
    let mut sandboxes = rows.iter().map(from_row).collect::<Result<Vec<_>, _>>()?;
    let limit = usize::try_from(filter.limit).unwrap_or(usize::MAX);
    let more = sandboxes.len() > limit;
    sandboxes.truncate(limit);
    let next = sandboxes.last().filter(|_| more).map(|last| PageToken {
        started_at: last.started_at,
        id: last.asked.id.clone(),
        order: filter.order,
    });
    let total_running = if filter.running { count_running(conn, filter, &metadata).await? } else { 0 };
    Ok(SandboxPage { sandboxes, next, total_running })
}

async fn count_running(
    conn: &mut SqliteConnection,
    filter: &SandboxFilter,
    metadata: &str,
) -> Result<u64, StoreError> {
    let attempted = "counting sandboxes";
    let row = filtered(COUNT_RUNNING, filter, metadata).fetch_one(conn).await.map_err(failed(attempted))?;
    let count: i64 = row.try_get(0).map_err(failed(attempted))?;
    Ok(u64::try_from(count).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::migrate::MAIN;
    use crate::sqlite::plan::plan;

    #[tokio::test]
    async fn a_page_is_read_in_the_order_of_the_index_and_not_sorted() {
        for sql in [NEWEST_FIRST, OLDEST_FIRST, COUNT_RUNNING] {
            let plan = plan(MAIN, sql).await;
            assert!(plan.contains("INDEX sandboxes_live"), "{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}
