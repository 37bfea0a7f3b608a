//! Idempotency keys of creates.

use hutch_types::{TeamId, Timestamp};
use sqlx::SqliteConnection;

use super::column::Columns;
use super::error::{conflict, failed, not_found, rejected};
use crate::{IdempotencyClaim, IdempotencyRecord, StoreError};

/// How long a key is remembered after its claim.
const RETENTION_MS: i64 = 24 * 60 * 60 * 1000;

pub(super) async fn claim(
    conn: &mut SqliteConnection,
    team: TeamId,
    key: &str,
    fingerprint: &str,
    now: Timestamp,
    claim_until: Timestamp,
) -> Result<IdempotencyClaim, StoreError> {
    let attempted = "claiming an idempotency key";
    sqlx::query("DELETE FROM idempotency WHERE claimed_at <= ?")
        .bind(now.0.saturating_sub(RETENTION_MS))
        .execute(&mut *conn)
        .await
        .map_err(failed(attempted))?;
    let claimed = sqlx::query(
        "INSERT INTO idempotency (team_id, key, fingerprint, claimed_at, claim_until) VALUES (?, ?, ?, ?, ?)
         ON CONFLICT (team_id, key) DO NOTHING",
    )
    .bind(team.to_string())
    .bind(key)
    .bind(fingerprint)
    .bind(now.0)
    .bind(claim_until.0)
    .execute(&mut *conn)
    .await
    .map_err(rejected(attempted, || "the idempotency key is claimed".to_owned(), "team"))?;
    if claimed.rows_affected() == 1 {
        return Ok(IdempotencyClaim::Claimed);
    }

    let row = sqlx::query(
        "SELECT fingerprint, claim_until, status, body FROM idempotency WHERE team_id = ? AND key = ?",
    )
    .bind(team.to_string())
    .bind(key)
    .fetch_one(conn)
    .await
    .map_err(failed(attempted))?;
    let c = Columns::new(&row, "idempotency key");
    let answered = c.raw::<Option<i64>>("status")?.is_some();
    Ok(if c.raw::<&str>("fingerprint")? != fingerprint {
        IdempotencyClaim::Mismatch
    } else if answered {
        IdempotencyClaim::Answered(IdempotencyRecord { status: c.number("status")?, body: c.raw("body")? })
    } else if now < c.time("claim_until")? {
        IdempotencyClaim::InProgress
    } else {
        IdempotencyClaim::OutcomeUnknown
    })
}

pub(super) async fn finish(
    conn: &mut SqliteConnection,
    team: TeamId,
    key: &str,
    answer: &IdempotencyRecord,
) -> Result<(), StoreError> {
    let attempted = "recording an idempotent answer";
    let finished = sqlx::query(
        "UPDATE idempotency SET status = ?3, body = ?4 WHERE team_id = ?1 AND key = ?2 AND status IS NULL",
    )
    .bind(team.to_string())
    .bind(key)
    .bind(answer.status)
    .bind(&answer.body)
    .execute(&mut *conn)
    .await
    .map_err(failed(attempted))?;
    if finished.rows_affected() == 1 {
        return Ok(());
    }
    let known = sqlx::query("SELECT 1 FROM idempotency WHERE team_id = ? AND key = ?")
        .bind(team.to_string())
        .bind(key)
        .fetch_optional(conn)
        .await
        .map_err(failed(attempted))?;
    Err(if known.is_some() {
        conflict("the idempotency key is answered already")
    } else {
        not_found("claim of the idempotency key")
    })
}

pub(super) async fn release(conn: &mut SqliteConnection, team: TeamId, key: &str) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM idempotency WHERE team_id = ? AND key = ? AND status IS NULL")
        .bind(team.to_string())
        .bind(key)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("releasing an idempotency key"))
}
