//! Brings a database file to the schema of this version: forward only, and never backward by guessing.
//!
//! SQLite's own header fields say what a file is: `application_id` whose, `user_version` at which schema. Each
//! migration sets them itself, so that it and its number are one transaction.

use std::path::Path;

use sqlx::{Row, SqliteConnection};

use super::error::{DatabaseError, unusable};

/// One of the two database files: its mark and its migrations, oldest first. The schema version is their number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schema {
    /// `application_id` of the file.
    pub(super) application_id: i64,
    /// What to run to get from one version to the next.
    pub(super) migrations: &'static [&'static str],
}

/// Teams, templates, sandboxes: what must not be lost.
pub(super) const MAIN: Schema = Schema {
    application_id: 0x4875_7463,
    migrations: &[
        include_str!("../../migrations/0001_initial.sql"),
        include_str!("../../migrations/0002_traffic_token.sql"),
        include_str!("../../migrations/0003_pause.sql"),
    ],
};

/// Samples and log lines.
pub(super) const TELEMETRY: Schema = Schema {
    application_id: 0x4875_7464,
    migrations: &[
        include_str!("../../migrations/telemetry/0001_initial.sql"),
        include_str!("../../migrations/telemetry/0002_log_sizes.sql"),
    ],
};

/// Runs what is missing. Several processes may do so at the same time: the version is read again under the write lock.
pub(super) async fn migrate(
    conn: &mut SqliteConnection,
    path: &Path,
    schema: Schema,
) -> Result<(), DatabaseError> {
    if check(conn, path, schema).await? == schema.migrations.len() {
        return Ok(());
    }
    run(conn, path, "BEGIN IMMEDIATE").await?;
    let outcome = upgrade(conn, path, schema).await;
    run(conn, path, if outcome.is_ok() { "COMMIT" } else { "ROLLBACK" }).await?;
    outcome
}

async fn upgrade(conn: &mut SqliteConnection, path: &Path, schema: Schema) -> Result<(), DatabaseError> {
    let version = check(conn, path, schema).await?;
    for (at, migration) in schema.migrations.iter().enumerate().skip(version) {
        tracing::info!(path = %path.display(), version = at + 1, "migrating the database");
        run(conn, path, migration).await?;
    }
    Ok(())
}

async fn run(conn: &mut SqliteConnection, path: &Path, sql: &'static str) -> Result<(), DatabaseError> {
    sqlx::raw_sql(sql)
        .execute(conn)
        .await
        .map(drop)
        .map_err(|e| unusable(path, "cannot be brought to this version's schema", e))
}

/// The version of the file, if it is one of ours and not newer than this program.
async fn check(conn: &mut SqliteConnection, path: &Path, schema: Schema) -> Result<usize, DatabaseError> {
    let refuse = |reason: String| DatabaseError::refused(path, reason);
    let row = sqlx::query(
        "SELECT a.application_id, v.user_version, (SELECT COUNT(*) FROM sqlite_schema) \
         FROM pragma_application_id AS a, pragma_user_version AS v",
    )
    .fetch_one(conn)
    .await
    .and_then(|row| Ok((row.try_get::<i64, _>(0)?, row.try_get::<i64, _>(1)?, row.try_get::<i64, _>(2)?)))
    .map_err(|e| unusable(path, "cannot be read; it may not be a database, or be damaged", e))?;
    match row {
        (0, 0, 0) => Ok(0),
        (id, version, _) if id == schema.application_id => {
            let known = schema.migrations.len();
            usize::try_from(version).ok().filter(|v| *v <= known).ok_or_else(|| {
                refuse(format!(
                    "was written by a newer version of hutch (schema {version}, this one knows {known}); \
                     run that version, or restore a backup made by this one"
                ))
            })
        }
        _ => Err(refuse("is another program's database; choose another path".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Connection;

    use super::*;

    const ONE: &str = "CREATE TABLE a (n INTEGER); INSERT INTO a VALUES (7);
                       PRAGMA application_id = 42; PRAGMA user_version = 1";
    const V1: Schema = Schema { application_id: 42, migrations: &[ONE] };
    const V2: Schema = Schema {
        application_id: 42,
        migrations: &[ONE, "ALTER TABLE a ADD m INTEGER; PRAGMA user_version = 2"],
    };
    const BROKEN: Schema =
        Schema { application_id: 42, migrations: &[ONE, "DROP TABLE a; PRAGMA user_version = 2; nonsense"] };

    async fn connection() -> SqliteConnection {
        SqliteConnection::connect("sqlite::memory:").await.unwrap()
    }

    async fn apply(conn: &mut SqliteConnection, schema: Schema) -> Result<(), DatabaseError> {
        migrate(conn, Path::new("test"), schema).await
    }

    async fn number(conn: &mut SqliteConnection, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(conn).await.unwrap()
    }

    #[tokio::test]
    async fn the_embedded_migrations_mark_the_file_as_what_it_is() {
        for schema in [MAIN, TELEMETRY] {
            let mut conn = connection().await;
            apply(&mut conn, schema).await.unwrap();
            assert_eq!(number(&mut conn, "PRAGMA application_id").await, schema.application_id);
            let version = number(&mut conn, "PRAGMA user_version").await;
            assert_eq!(usize::try_from(version).unwrap(), schema.migrations.len());
            apply(&mut conn, schema).await.unwrap();
        }
        let mut conn = connection().await;
        apply(&mut conn, TELEMETRY).await.unwrap();
        assert!(apply(&mut conn, MAIN).await.is_err(), "one is not the other");
    }

    #[tokio::test]
    async fn an_older_file_is_brought_forward_with_its_rows() {
        let mut conn = connection().await;
        apply(&mut conn, V1).await.unwrap();
        apply(&mut conn, V2).await.unwrap();
        assert_eq!(number(&mut conn, "SELECT n FROM a WHERE m IS NULL").await, 7);
        let error = apply(&mut conn, V1).await.unwrap_err();
        assert!(error.to_string().contains("newer version"), "{error}");
    }

    #[tokio::test]
    async fn a_migration_that_fails_leaves_the_file_as_it_was() {
        let mut conn = connection().await;
        apply(&mut conn, V1).await.unwrap();
        assert!(apply(&mut conn, BROKEN).await.is_err());
        assert_eq!(number(&mut conn, "SELECT n FROM a").await, 7);
        apply(&mut conn, V2).await.unwrap();
    }
}
