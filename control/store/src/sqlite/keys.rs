//! API keys.

use hutch_types::{TeamId, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::column::Columns;
use super::error::{failed, not_found, rejected};
use crate::{ApiKey, StoreError};

macro_rules! columns {
    () => {
        "id, team_id, name, hash, mask_prefix, mask_suffix, created_at, last_used_at, revoked_at"
    };
}

fn from_row(row: &SqliteRow) -> Result<ApiKey, StoreError> {
    let c = Columns::new(row, "API key");
    Ok(ApiKey {
        id: c.raw("id")?,
        team: c.parsed("team_id")?,
        name: c.raw("name")?,
        hash: c.raw("hash")?,
        mask_prefix: c.raw("mask_prefix")?,
        mask_suffix: c.raw("mask_suffix")?,
        created_at: c.time("created_at")?,
        last_used_at: c.time_if_any("last_used_at")?,
        revoked_at: c.time_if_any("revoked_at")?,
    })
}

pub(super) async fn insert(conn: &mut SqliteConnection, key: &ApiKey) -> Result<(), StoreError> {
    sqlx::query(concat!("INSERT INTO api_keys (", columns!(), ") VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"))
        .bind(&key.id)
        .bind(key.team.to_string())
        .bind(&key.name)
        .bind(&key.hash)
        .bind(&key.mask_prefix)
        .bind(&key.mask_suffix)
        .bind(key.created_at.0)
        .bind(key.last_used_at.map(|t| t.0))
        .bind(key.revoked_at.map(|t| t.0))
        .execute(conn)
        .await
        .map(drop)
        .map_err(rejected(
            "storing an API key",
            || format!("an API key with the name '{}' exists", key.name),
            "team",
        ))
}

pub(super) async fn by_hash(conn: &mut SqliteConnection, hash: &str) -> Result<ApiKey, StoreError> {
    let row =
        sqlx::query(concat!("SELECT ", columns!(), " FROM api_keys WHERE hash = ? AND revoked_at IS NULL"))
            .bind(hash)
            .fetch_optional(conn)
            .await
            .map_err(failed("looking up an API key"))?;
    from_row(&row.ok_or_else(|| not_found("API key"))?)
}

pub(super) async fn list(conn: &mut SqliteConnection, team: TeamId) -> Result<Vec<ApiKey>, StoreError> {
    sqlx::query(concat!("SELECT ", columns!(), " FROM api_keys WHERE team_id = ? ORDER BY created_at, id"))
        .bind(team.to_string())
        .fetch_all(conn)
        .await
        .map_err(failed("listing API keys"))?
        .iter()
        .map(from_row)
        .collect()
}

/// An id wins over a name, so that a key named like another's id cannot shield it.
pub(super) async fn revoke(
    conn: &mut SqliteConnection,
    team: TeamId,
    id_or_name: &str,
    now: Timestamp,
) -> Result<ApiKey, StoreError> {
    let row = sqlx::query(concat!(
        "UPDATE api_keys SET revoked_at = ?3 WHERE id = (
             SELECT id FROM api_keys
             WHERE team_id = ?1 AND (id = ?2 OR name = ?2) AND revoked_at IS NULL
             ORDER BY id <> ?2 LIMIT 1
         ) RETURNING ",
        columns!()
    ))
    .bind(team.to_string())
    .bind(id_or_name)
    .bind(now.0)
    .fetch_optional(conn)
    .await
    .map_err(failed("revoking an API key"))?;
    from_row(&row.ok_or_else(|| not_found("API key"))?)
}

pub(super) async fn touch(conn: &mut SqliteConnection, id: &str, now: Timestamp) -> Result<(), StoreError> {
    sqlx::query("UPDATE api_keys SET last_used_at = max(coalesce(last_used_at, ?2), ?2) WHERE id = ?1")
        .bind(id)
        .bind(now.0)
        .execute(conn)
        .await
        .map(drop)
        .map_err(failed("noting the use of an API key"))
}
