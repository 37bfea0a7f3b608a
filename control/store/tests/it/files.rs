//! Files: modes, versions, other processes, backups.

use std::error::Error;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use hutch_store::{ApiKey, DatabaseError, SqliteStore, Store, StoreError};
use hutch_types::{TeamId, Timestamp};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection, SqliteConnection};

const NOW: Timestamp = Timestamp(1_767_323_045_006);

fn key(team: TeamId, n: usize) -> ApiKey {
    ApiKey {
        id: format!("id-{n}"),
        team,
        name: format!("key-{n}"),
        hash: format!("hash-{n}"),
        mask_prefix: "ab".to_owned(),
        mask_suffix: "wxyz".to_owned(),
        created_at: NOW,
        last_used_at: None,
        revoked_at: None,
    }
}

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnectOptions::new().filename(path).create_if_missing(true).connect().await.unwrap()
}

fn modes(folder: &Path) -> Vec<(String, u32)> {
    let mut modes: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap())
        .map(|e| (e.file_name().into_string().unwrap(), e.metadata().unwrap().permissions().mode() & 0o777))
        .collect();
    modes.sort();
    modes
}

async fn refusal(path: &Path) -> DatabaseError {
    SqliteStore::open(path).await.map(|_| "the store opened").unwrap_err()
}

#[tokio::test]
async fn folders_are_made_and_files_are_the_owners_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a/b/hutch.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.default_team(NOW).await.unwrap();
    let files = modes(path.parent().unwrap());
    assert!(files.iter().any(|(name, _)| name == "hutch.db-wal"), "{files:?}");
    assert!(files.iter().all(|(_, mode)| *mode == 0o600), "{files:?}");
    store.close().await;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let store = SqliteStore::open(&path).await.unwrap();
    store.default_team(NOW).await.unwrap();
    assert!(modes(path.parent().unwrap()).iter().all(|(_, mode)| *mode == 0o600));
}

#[tokio::test]
async fn closing_leaves_no_log_behind_and_refuses_further_calls() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hutch.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let team = store.default_team(NOW).await.unwrap();
    store.close().await;
    let names: Vec<_> = modes(dir.path()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["hutch.db", "telemetry.db"]);
    let late = store.insert_api_key(key(team.id, 1)).await;
    assert!(matches!(late, Err(StoreError::Unavailable { .. })), "{late:?}");
    assert!(matches!(store.team(team.id).await, Err(StoreError::Unavailable { .. })));
}

#[tokio::test]
async fn a_newer_database_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hutch.db");
    SqliteStore::open(&path).await.unwrap().close().await;
    let mut conn = raw(&path).await;
    sqlx::query("PRAGMA user_version = 99").execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    let message = refusal(&path).await.to_string();
    assert!(message.contains("newer version of hutch (schema 99, this one knows 3)"), "{message}");
    assert!(message.contains(path.to_str().unwrap()), "{message}");
    let mut conn = raw(&path).await;
    let version: i64 = sqlx::query_scalar("PRAGMA user_version").fetch_one(&mut conn).await.unwrap();
    assert_eq!(version, 99);
}

#[tokio::test]
async fn what_is_not_a_database_of_ours_is_refused_and_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let foreign = dir.path().join("foreign.db");
    let mut conn = raw(&foreign).await;
    sqlx::query("CREATE TABLE notes (text)").execute(&mut conn).await.unwrap();
    conn.close().await.unwrap();
    let message = refusal(&foreign).await.to_string();
    assert!(message.contains("another program's database"), "{message}");

    let text = dir.path().join("text.db");
    std::fs::write(&text, "not a database, but long enough to have a header of a hundred bytes. ".repeat(9))
        .unwrap();
    let error = refusal(&text).await;
    assert!(error.source().is_some() && error.to_string().contains("text.db"), "{error}");
    assert!(std::fs::read_to_string(&text).unwrap().starts_with("not a database"));

    let folder = refusal(dir.path()).await;
    assert!(folder.source().is_some(), "{folder}");
    assert!(refusal(&dir.path().join("telemetry.db")).await.to_string().contains("choose another"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_may_open_a_new_database_at_the_same_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut opens = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let path = dir.path().join("hutch.db");
        opens.spawn(async move {
            let store = SqliteStore::open(&path).await.unwrap();
            store.default_team(NOW).await.unwrap().id
        });
    }
    let teams = opens.join_all().await;
    assert!(teams.iter().all(|t| *t == teams[0]), "{teams:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_write_waits_for_another_process_that_holds_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hutch.db");
    let store = Arc::new(SqliteStore::open(&path).await.unwrap());
    let team = store.default_team(NOW).await.unwrap().id;
    let mut other = raw(&path).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let mut write = tokio::task::JoinSet::new();
    let writer = Arc::clone(&store);
    write.spawn(async move { writer.insert_api_key(key(team, 1)).await });
    // Reads go on meanwhile.
    for _ in 0..50 {
        assert_eq!(store.api_keys(team).await.unwrap(), []);
    }
    assert!(write.try_join_next().is_none(), "it waits");
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    write.join_next().await.unwrap().unwrap().unwrap();
    assert_eq!(store.api_keys(team).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lock_that_is_never_given_back_is_an_answer_and_not_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hutch.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let team = store.default_team(NOW).await.unwrap().id;
    let mut other = raw(&path).await;
    sqlx::query("BEGIN IMMEDIATE").execute(&mut other).await.unwrap();
    let error = store.insert_api_key(key(team, 1)).await.unwrap_err();
    assert_eq!(error.to_string(), "the store is unavailable while storing an API key");
    assert!(error.source().unwrap().to_string().contains("locked"), "{error:?}");
    sqlx::query("COMMIT").execute(&mut other).await.unwrap();
    store.insert_api_key(key(team, 1)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_backup_taken_while_writes_go_on_is_a_database() {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(SqliteStore::open(&dir.path().join("hutch.db")).await.unwrap());
    let team = store.default_team(NOW).await.unwrap().id;
    for n in 0..100 {
        store.insert_api_key(key(team, n)).await.unwrap();
    }
    let copy = dir.path().join("copy/hutch.db");
    std::fs::create_dir(copy.parent().unwrap()).unwrap();
    std::fs::write(copy.with_file_name("hutch.db.partial"), "left by an earlier try").unwrap();
    let writer = Arc::clone(&store);
    let mut writes = tokio::task::JoinSet::new();
    writes.spawn(async move {
        for n in 100..200 {
            writer.insert_api_key(key(team, n)).await.unwrap();
        }
    });
    store.backup_to(&copy).await.unwrap();
    writes.join_next().await.unwrap().unwrap();
    assert_eq!(modes(copy.parent().unwrap()), [("hutch.db".to_owned(), 0o600)]);

    let again = store.backup_to(&copy).await.unwrap_err();
    assert!(again.source().unwrap().to_string().contains("exists"), "{again:?}");
    let restored = SqliteStore::open(&copy).await.unwrap();
    let keys = restored.api_keys(team).await.unwrap().len();
    assert!((100..=200).contains(&keys), "{keys}");
    assert_eq!(restored.api_key_by_hash("hash-99").await.unwrap(), key(team, 99));
    assert_eq!(restored.default_team(NOW).await.unwrap().id, team);
}

#[tokio::test]
async fn a_value_changed_from_outside_is_reported_and_not_guessed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hutch.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let team = store.default_team(NOW).await.unwrap();
    store.insert_api_key(key(team.id, 1)).await.unwrap();
    let mut conn = raw(&path).await;
    sqlx::query("PRAGMA foreign_keys = OFF").execute(&mut conn).await.unwrap();
    sqlx::query("UPDATE api_keys SET team_id = 'no id'").execute(&mut conn).await.unwrap();
    let error = store.api_key_by_hash("hash-1").await.unwrap_err();
    assert!(matches!(error, StoreError::Corrupt { what: "API key" }), "{error:?}");
}
