//! Pausing and resuming: changes of a sandbox's record, each guarded by the state in the same statement.

use hutch_types::{PauseMode, SandboxId, SandboxState, Timestamp};
use sqlx::SqliteConnection;

use super::column::to_json;
use super::error::failed;
use super::sandboxes::{changed, columns, count_live, from_rows, get};
use crate::{ResumeOutcome, Sandbox, StoreError};

/// A new run of a sandbox.
pub(super) struct Run {
    pub(super) started_at: Timestamp,
    pub(super) end_at: Timestamp,
    pub(super) envd_version: String,
    pub(super) isolation: String,
}

pub(super) async fn paused(conn: &mut SqliteConnection) -> Result<Vec<Sandbox>, StoreError> {
    let rows = sqlx::query(concat!(
        "SELECT ",
        columns!(),
        " FROM sandboxes WHERE ended_at IS NULL AND state = 'paused' ORDER BY started_at, id"
    ))
    .fetch_all(conn)
    .await
    .map_err(failed("reading the paused sandboxes"))?;
    from_rows(&rows)
}

pub(super) async fn begin_pause(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    mode: PauseMode,
    now: Timestamp,
) -> Result<Sandbox, StoreError> {
    let row = sqlx::query(concat!(
        "UPDATE sandboxes SET state = 'pausing', pause_mode = ?2, paused_at = ?3
         WHERE id = ?1 AND state IN ('running', 'snapshotting') RETURNING ",
        columns!()
    ))
    .bind(id.as_str())
    .bind(mode.to_string())
    .bind(now.0)
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed("beginning a pause"))?;
    changed(conn, id, row).await
}

/// A deadline at the end of time stays there.
pub(super) async fn abort_pause(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    now: Timestamp,
    at_least: Timestamp,
) -> Result<Sandbox, StoreError> {
    let row = sqlx::query(concat!(
        "UPDATE sandboxes SET state = 'running', pause_mode = NULL, paused_at = NULL,
             end_at = max(?3, CASE WHEN end_at > 9223372036854775807 - max(0, ?2 - paused_at)
                                   THEN 9223372036854775807 ELSE end_at + max(0, ?2 - paused_at) END)
         WHERE id = ?1 AND state = 'pausing' RETURNING ",
        columns!()
    ))
    .bind(id.as_str())
    .bind(now.0)
    .bind(at_least.0)
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed("taking a pause back"))?;
    changed(conn, id, row).await
}

pub(super) async fn mark_paused(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    from: &[SandboxState],
    mode: PauseMode,
    now: Timestamp,
) -> Result<Sandbox, StoreError> {
    let row = sqlx::query(concat!(
        "UPDATE sandboxes SET state = 'paused', pause_mode = ?2, paused_at = coalesce(paused_at, ?3)
         WHERE id = ?1 AND ended_at IS NULL AND state IN (SELECT value FROM json_each(?4)) RETURNING ",
        columns!()
    ))
    .bind(id.as_str())
    .bind(mode.to_string())
    .bind(now.0)
    .bind(to_json(&from, "sandbox state")?)
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed("marking a sandbox as paused"))?;
    changed(conn, id, row).await
}

pub(super) async fn begin_resume(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    end_at: Timestamp,
    team_limit: Option<u32>,
) -> Result<ResumeOutcome, StoreError> {
    let attempted = "beginning a resume";
    if let Some(limit) = team_limit {
        let sandbox = get(conn, id).await?;
        // One that is not paused is told so below, not that there is no room for it.
        if sandbox.state == SandboxState::Paused
            && count_live(conn, sandbox.asked.team, attempted).await? >= i64::from(limit)
        {
            return Ok(ResumeOutcome::LimitReached(limit));
        }
    }
    let row = sqlx::query(concat!(
        "UPDATE sandboxes SET state = 'resuming', end_at = ?2 WHERE id = ?1 AND state = 'paused' RETURNING ",
        columns!()
    ))
    .bind(id.as_str())
    .bind(end_at.0)
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed(attempted))?;
    changed(conn, id, row).await.map(|sandbox| ResumeOutcome::Begun(Box::new(sandbox)))
}

pub(super) async fn mark_resumed(
    conn: &mut SqliteConnection,
    id: &SandboxId,
    run: &Run,
    auto_pause: Option<bool>,
) -> Result<Sandbox, StoreError> {
    let row = sqlx::query(concat!(
        "UPDATE sandboxes SET state = 'running', started_at = ?2, end_at = ?3, envd_version = ?4,
             isolation = ?5, pause_mode = NULL, paused_at = NULL,
             auto_pause = CASE WHEN ?6 IS NULL THEN auto_pause WHEN ?6 THEN coalesce(auto_pause, 'full') END
         WHERE id = ?1 AND state = 'resuming' RETURNING ",
        columns!()
    ))
    .bind(id.as_str())
    .bind(run.started_at.0)
    .bind(run.end_at.0)
    .bind(&run.envd_version)
    .bind(&run.isolation)
    .bind(auto_pause)
    .fetch_optional(&mut *conn)
    .await
    .map_err(failed("marking a sandbox as resumed"))?;
    changed(conn, id, row).await
}
