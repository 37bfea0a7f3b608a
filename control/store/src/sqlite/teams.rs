//! Teams.

use hutch_types::{TeamId, Timestamp};
use sqlx::SqliteConnection;
use sqlx::sqlite::SqliteRow;

use super::column::Columns;
use super::error::{failed, not_found, rejected};
use crate::{StoreError, Team};

/// The slug by which the team of a fresh install is known.
const DEFAULT_SLUG: &str = "default";

fn from_row(row: &SqliteRow) -> Result<Team, StoreError> {
    let c = Columns::new(row, "team");
    Ok(Team {
        id: c.parsed("id")?,
        name: c.raw("name")?,
        slug: c.raw("slug")?,
        created_at: c.time("created_at")?,
    })
}

pub(super) async fn insert(conn: &mut SqliteConnection, team: &Team) -> Result<(), StoreError> {
    sqlx::query("INSERT INTO teams (id, name, slug, created_at) VALUES (?, ?, ?, ?)")
        .bind(team.id.to_string())
        .bind(&team.name)
        .bind(&team.slug)
        .bind(team.created_at.0)
        .execute(conn)
        .await
        .map(drop)
        .map_err(rejected("storing a team", || "a team with this id or slug exists".to_owned(), "team"))
}

pub(super) async fn get(conn: &mut SqliteConnection, id: TeamId) -> Result<Team, StoreError> {
    let row = sqlx::query("SELECT id, name, slug, created_at FROM teams WHERE id = ?")
        .bind(id.to_string())
        .fetch_optional(conn)
        .await
        .map_err(failed("reading a team"))?;
    from_row(&row.ok_or_else(|| not_found("team"))?)
}

pub(super) async fn default_if_any(conn: &mut SqliteConnection) -> Result<Option<Team>, StoreError> {
    let row = sqlx::query("SELECT id, name, slug, created_at FROM teams WHERE slug = ?")
        .bind(DEFAULT_SLUG)
        .fetch_optional(conn)
        .await
        .map_err(failed("reading the default team"))?;
    row.as_ref().map(from_row).transpose()
}

pub(super) async fn default_or_new(conn: &mut SqliteConnection, now: Timestamp) -> Result<Team, StoreError> {
    if let Some(team) = default_if_any(conn).await? {
        return Ok(team);
    }
    let team = Team {
        id: TeamId::random(),
        name: "Default".to_owned(),
        slug: DEFAULT_SLUG.to_owned(),
        created_at: now,
    };
    insert(conn, &team).await?;
    Ok(team)
}
