//! Sandboxes: their records and the changes of their lives.

use hutch_types::{KillReason, SandboxId, SandboxState, Secret, TeamId, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::column::{Columns, to_json};
use super::error::{conflict, failed, not_found, rejected};
use super::templates::resources_from;
use crate::{CreateOutcome, NewSandbox, Sandbox, StoreError};

macro_rules! columns {
    () => {
        "id, team_id, template_id, build_id, alias, vcpus, memory_mib, disk_mib, max_processes, metadata, \
         access_token, allow_internet_access, extra, created_at, first_end_at, state, started_at, end_at, \
         envd_version, isolation, ended_at, end_reason, traffic_token, auto_pause, pause_mode, paused_at"
    };
}
pub(super) use columns;

pub(super) fn from_row(row: &SqliteRow) -> Result<Sandbox, StoreError> {
    let c = Columns::new(row, "sandbox");
    let ended = match c.time_if_any("ended_at")? {
        Some(at) => Some((at, c.parsed("end_reason")?)),
        None => None,
    };
    let paused = match (c.parsed_if_any("pause_mode")?, c.time_if_any("paused_at")?) {
        (Some(mode), Some(since)) => Some((mode, since)),
        _ => None,
    };
    Ok(Sandbox {
        asked: NewSandbox {
            id: c.parsed("id")?,
            team: c.parsed("team_id")?,
            template: c.parsed("template_id")?,
            build: c.parsed("build_id")?,
            alias: c.raw("alias")?,
            resources: resources_from(&c)?,
            metadata: c.json("metadata")?,
            access_token: Secret::new(c.raw::<String>("access_token")?),
            traffic_token: c.raw::<Option<String>>("traffic_token")?.map(Secret::new),
            allow_internet_access: c.raw("allow_internet_access")?,
            auto_pause: c.parsed_if_any("auto_pause")?,
            extra: c.json("extra")?,
            created_at: c.time("created_at")?,
            end_at: c.time("first_end_at")?,
        },
        state: c.parsed("state")?,
        started_at: c.time("started_at")?,
        end_at: c.time("end_at")?,
        envd_version: c.raw("envd_version")?,
        isolation: c.raw("isolation")?,
        paused,
        ended,
    })
}

const COUNT_LIVE: &str = "SELECT COUNT(*) FROM sandboxes WHERE team_id = ? AND ended_at IS NULL
    AND state IN ('creating', 'running', 'pausing', 'resuming', 'snapshotting')";

const EXPIRED: &str = concat!(
    "SELECT ",
    columns!(),
    " FROM sandboxes WHERE state = 'running' AND end_at <= ? ORDER BY end_at, id LIMIT ?"
);

const NEXT_DEADLINE: &str = "SELECT MIN(end_at) FROM sandboxes WHERE state = 'running'";

const RUNNING_TOKENS: &str = "SELECT id, access_token FROM sandboxes
    WHERE ended_at IS NULL AND state IN ('running', 'snapshotting')";

const ENDED_BEFORE: &str = "SELECT id FROM sandboxes WHERE ended_at < ? ORDER BY ended_at LIMIT ?";

pub(super) fn from_rows(rows: &[SqliteRow]) -> Result<Vec<Sandbox>, StoreError> {
    rows.iter().map(from_row).collect()
}

/// The sandboxes of a team that count against its limit.
pub(super) async fn count_live(
    conn: &mut SqliteConnection,
    team: TeamId,
    attempted: &'static str,
) -> Result<i64, StoreError> {
    sqlx::query_scalar(COUNT_LIVE).bind(team.to_string()).fetch_one(conn).await.map_err(failed(attempted))
}

pub(super) async fn insert(
    conn: &mut SqliteConnection,
    new: &NewSandbox,
    team_limit: Option<u32>,
) -> Result<CreateOutcome, StoreError> {
    let attempted = "storing a sandbox";
    if let Some(limit) = team_limit
        && count_live(conn, new.team, attempted).await? >= i64::from(limit)
    {
        return Ok(CreateOutcome::LimitReached(limit));
    }
    sqlx::query(concat!(
        "INSERT INTO sandboxes (",
        columns!(),
        ") VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15,
                   'creating', ?14, ?15, '', '', NULL, NULL, ?16, ?17, NULL, NULL)"
    ))
    .bind(new.id.as_str())
    .bind(new.team.to_string())
    .bind(new.template.as_str())
    .bind(new.build.to_string())
    .bind(&new.alias)
    .bind(new.resources.vcpus)
    .bind(new.resources.memory_mib)
    .bind(new.resources.disk_mib)
    .bind(new.resources.max_processes)
    .bind(to_json(&new.metadata, "sandbox")?)
    .bind(new.access_token.expose())
    .bind(new.allow_internet_access)
    .bind(to_json(&new.extra, "sandbox")?)
    .bind(new.created_at.0)
    .bind(new.end_at.0)
    .bind(new.traffic_token.as_ref().map(Secret::expose))
    .bind(new.auto_pause.map(|mode| mode.to_string()))
    .execute(conn)
    .await
    .map(|_| CreateOutcome::Created)
    .map_err(rejected(attempted, || format!("sandbox '{}' exists", new.id), "team"))
}

pub(super) async fn find(conn: &mut SqliteConnection, id: &SandboxId) -> Result<Option<Sandbox>, StoreError> {
    sqlx::query(concat!("SELECT ", columns!(), " FROM sandboxes WHERE id = ?"))
        .bind(id.as_str())
        .fetch_optional(conn)
        .await
        .map_err(failed("reading a sandbox"))?
        .as_ref()
        .map(from_row)
        .transpose()
}

fn missing(id: &SandboxId) -> StoreError {
    not_found(format!("sandbox '{id}'"))
}

pub(super) async fn get(conn: &mut SqliteConnection, id: &SandboxId) -> Result<Sandbox, StoreError> {
    find(conn, id).await?.ok_or_else(|| missing(id))
}

/// What a guarded change answers: the record after it, or why the guard did not hold.
pub(super) async fn changed(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    row: Option<SqliteRow>,
) -> Result<Sandbox, StoreError> {
    match row {
        Some(row) => from_row(&row),
        None => match find(conn, id).await? {
            Some(sandbox) if sandbox.ended.is_none() => {
                Err(conflict(format!("sandbox '{id}' is {}", sandbox.state)))
            }
            _ => Err(missing(id)),
        },
    }
}

pub(super) async fn mark_running(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    started_at: Timestamp,
    end_at: Timestamp,
    envd_version: &str,
    isolation: &str,
) -> Result<Sandbox, StoreError> {
    let row = sqlx::query(concat!(
        "UPDATE sandboxes SET state = 'running', started_at = ?, end_at = ?, envd_version = ?, isolation = ?
         WHERE id = ? AND state = 'creating' RETURNING ",
        columns!()
    ))
    .bind(started_at.0)
    .bind(end_at.0)
    .bind(envd_version)
    .bind(isolation)
    .bind(id.as_str())
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed("marking a sandbox as running"))?;
    changed(conn, id, row).await
}

pub(super) async fn set_end_at(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    end_at: Timestamp,
    only_extend: bool,
) -> Result<Sandbox, StoreError> {
    let row = sqlx::query(concat!(
        "UPDATE sandboxes SET end_at = CASE WHEN ?3 THEN max(end_at, ?2) ELSE ?2 END
         WHERE id = ?1 AND state IN ('running', 'snapshotting') RETURNING ",
        columns!()
    ))
    .bind(id.as_str())
    .bind(end_at.0)
    .bind(only_extend)
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed("moving a deadline"))?;
    changed(conn, id, row).await
}

pub(super) async fn move_state(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    from: &[SandboxState],
    to: SandboxState,
) -> Result<Sandbox, StoreError> {
    if to.is_final() {
        return Err(conflict(format!("sandbox '{id}' does not become {to} without a reason")));
    }
    let row = sqlx::query(concat!(
        "UPDATE sandboxes SET state = ?2
         WHERE id = ?1 AND ended_at IS NULL AND state IN (SELECT value FROM json_each(?3)) RETURNING ",
        columns!()
    ))
    .bind(id.as_str())
    .bind(to.to_string())
    .bind(to_json(&from, "sandbox state")?)
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed("changing a sandbox's state"))?;
    changed(conn, id, row).await
}

pub(super) async fn end(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    state: SandboxState,
    reason: KillReason,
    now: Timestamp,
) -> Result<bool, StoreError> {
    if !state.is_final() {
        return Err(conflict(format!("sandbox '{id}' does not end by being {state}")));
    }
    let ended = sqlx::query(
        "UPDATE sandboxes SET state = ?, ended_at = ?, end_reason = ? WHERE id = ? AND ended_at IS NULL",
    )
    .bind(state.to_string())
    .bind(now.0)
    .bind(reason.to_string())
    .bind(id.as_str())
    .execute(&mut *conn)
    .await
    .map_err(failed("ending a sandbox"))?;
    if ended.rows_affected() == 1 {
        return Ok(true);
    }
    get(conn, id).await.map(|_| false)
}

pub(super) async fn live(conn: &mut SqliteConnection) -> Result<Vec<Sandbox>, StoreError> {
    let rows = sqlx::query(concat!(
        "SELECT ",
        columns!(),
        " FROM sandboxes WHERE ended_at IS NULL AND state <> 'paused' ORDER BY started_at, id"
    ))
    .fetch_all(conn)
    .await
    .map_err(failed("reading the live sandboxes"))?;
    from_rows(&rows)
}

/// Every sandbox that clients see running, with envd's access token.
pub(super) async fn running_tokens(
    conn: &mut SqliteConnection,
) -> Result<Vec<(SandboxId, Secret)>, StoreError> {
    let rows = sqlx::query(RUNNING_TOKENS)
        .fetch_all(conn)
        .await
        .map_err(failed("reading the tokens of the running sandboxes"))?;
    rows.iter()
        .map(|row| {
            let c = Columns::new(row, "sandbox");
            Ok((c.parsed("id")?, Secret::new(c.raw::<String>("access_token")?)))
        })
        .collect()
}

/// A deadline at the end of time stays there.
pub(super) async fn shift(conn: &mut SqliteConnection, delta_ms: i64) -> Result<u64, StoreError> {
    sqlx::query(
        "UPDATE sandboxes SET started_at = started_at + ?1, paused_at = paused_at + ?1,
             end_at = CASE WHEN ?1 > 0 AND end_at > 9223372036854775807 - ?1 THEN 9223372036854775807
                           ELSE end_at + ?1 END
         WHERE ended_at IS NULL",
    )
    .bind(delta_ms)
    .execute(conn)
    .await
    .map(|done| done.rows_affected())
    .map_err(failed("shifting deadlines"))
}

pub(super) async fn expired(
    conn: &mut SqliteConnection,
    now: Timestamp,
    limit: u32,
) -> Result<Vec<Sandbox>, StoreError> {
    let rows = sqlx::query(EXPIRED)
        .bind(now.0)
        .bind(limit)
        .fetch_all(conn)
        .await
        .map_err(failed("looking for expired sandboxes"))?;
    from_rows(&rows)
}

pub(super) async fn next_deadline(conn: &mut SqliteConnection) -> Result<Option<Timestamp>, StoreError> {
    sqlx::query_scalar::<_, Option<i64>>(NEXT_DEADLINE)
        .fetch_one(conn)
        .await
        .map(|at| at.map(Timestamp))
        .map_err(failed("reading the next deadline"))
}

/// Some of the sandboxes that ended before a time.
pub(super) async fn ended_before(
    conn: &mut SqliteConnection,
    before: Timestamp,
    limit: u32,
) -> Result<Vec<String>, StoreError> {
    sqlx::query_scalar(ENDED_BEFORE)
        .bind(before.0)
        .bind(limit)
        .fetch_all(conn)
        .await
        .map_err(failed("looking for sandboxes to forget"))
}

/// Removes records, `ids` being a JSON array.
pub(super) async fn forget(conn: &mut SqliteConnection, ids: &str) -> Result<u64, StoreError> {
    sqlx::query("DELETE FROM sandboxes WHERE ended_at IS NOT NULL AND id IN (SELECT value FROM json_each(?))")
        .bind(ids)
        .execute(conn)
        .await
        .map(|done| done.rows_affected())
        .map_err(failed("forgetting ended sandboxes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sqlite::migrate::MAIN;
    use crate::sqlite::plan::plan;

    #[tokio::test]
    async fn what_is_asked_all_the_time_is_answered_by_an_index() {
        for (sql, index) in [
            (COUNT_LIVE, "COVERING INDEX sandboxes_live"),
            (EXPIRED, "INDEX sandboxes_deadline"),
            (RUNNING_TOKENS, "INDEX sandboxes_live"),
            (NEXT_DEADLINE, "COVERING INDEX sandboxes_deadline"),
            (ENDED_BEFORE, "INDEX sandboxes_ended"),
        ] {
            let plan = plan(MAIN, sql).await;
            assert!(plan.contains(index), "{sql}: {plan}");
        }
    }
}
