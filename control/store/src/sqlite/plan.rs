//! For tests: how SQLite would answer a query.

use std::path::Path;

use sqlx::{AssertSqlSafe, Connection, Row, SqliteConnection};

use super::migrate::{Schema, migrate};

/// The steps of the plan for `sql` in an empty database, one a line.
pub(super) async fn plan(schema: Schema, sql: &'static str) -> String {
    let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    migrate(&mut conn, Path::new("test"), schema).await.unwrap();
    let rows =
        sqlx::query(AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"))).fetch_all(&mut conn).await.unwrap();
    rows.iter().map(|row| row.get::<String, _>("detail")).collect::<Vec<_>>().join("\n")
}
