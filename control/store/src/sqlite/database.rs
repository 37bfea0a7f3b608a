//! One database file: a pool of readers, and a writer that commits in groups.
//!
//! SQLite allows one writer at a time, and a durable commit costs a sync of the disk. So all writes go through one
//! queue to one task with one connection. Whatever waits while a commit is under way forms the next transaction
//! together, each write within a savepoint of its own: concurrent writes share a sync, and one that fails takes back
//! nothing but itself. An answer is given after the commit. A caller that goes away changes nothing about that.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::time::{Duration, Instant};

use hutch_types::supervise::Supervisor;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{ConnectOptions, SqliteConnection, SqlitePool};
use tokio::sync::{mpsc, oneshot};

use super::error::{DatabaseError, failed, unusable};
use super::migrate::{Schema, migrate};
use super::writer::{Job, Write, Writer};
use crate::StoreError;

/// How long a statement waits for another process's write lock.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait where SQLite does not.
const BUSY_RETRY: Duration = Duration::from_millis(20);
/// How long a caller waits for anything at all. Longer than a wait for the lock, since a queue may be before it.
const DEADLINE: Duration = Duration::from_secs(20);
/// Writes that may wait. More callers than that wait for room, at most until their deadline.
const QUEUE: usize = 1024;
/// Bytes that the write-ahead log keeps on disk after a burst.
const LOG_LIMIT: &str = "67108864";
/// Connections that read. Each has a thread, and most reads take well below a millisecond.
const READERS: u32 = 4;

/// A piece of work on a connection.
pub(super) type Work<'c, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'c>>;

/// What an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Durability {
    /// A failure of the machine.
    Synced,
    /// A failure of the process; the last seconds may be lost with the machine.
    Relaxed,
}

/// Where a database lives and how hard its commits are.
#[derive(Debug, Clone)]
pub(super) struct Location {
    /// The file; `None` for one in memory.
    pub(super) path: Option<PathBuf>,
    pub(super) schema: Schema,
}

impl Location {
    /// The file's path, or a name for one in memory.
    pub(super) fn shown(&self) -> &Path {
        self.path.as_deref().unwrap_or(Path::new(":memory:"))
    }

    fn options(&self) -> SqliteConnectOptions {
        let options = match &self.path {
            Some(path) => SqliteConnectOptions::new().filename(path),
            None => SqliteConnectOptions::new().in_memory(true),
        };
        options.busy_timeout(BUSY_TIMEOUT).foreign_keys(true).disable_statement_logging()
    }

    /// A connection that writes, to a file that has this version's schema.
    ///
    /// Turning a new file to write-ahead logging takes a lock that SQLite does not wait for. So when another process
    /// does the same at this moment, it is this that waits.
    pub(super) async fn connect(&self) -> Result<SqliteConnection, DatabaseError> {
        let start = Instant::now();
        loop {
            match self.try_connect().await {
                Err(error) if error.is_busy() && start.elapsed() < BUSY_TIMEOUT => {
                    tokio::time::sleep(BUSY_RETRY).await;
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_connect(&self) -> Result<SqliteConnection, DatabaseError> {
        let mut options = self.options().synchronous(SqliteSynchronous::Full);
        if self.path.is_some() {
            options = options.journal_mode(SqliteJournalMode::Wal).pragma("journal_size_limit", LOG_LIMIT);
        }
        let mut conn = options.connect().await.map_err(|e| unusable(self.shown(), "cannot be opened", e))?;
        migrate(&mut conn, self.shown(), self.schema).await?;
        Ok(conn)
    }

    /// A connection for one piece of maintenance; it neither creates nor migrates.
    pub(super) async fn connect_plain(&self) -> Result<SqliteConnection, sqlx::Error> {
        self.options().connect().await
    }
}

/// A handle to one database file.
#[derive(Debug)]
pub(super) struct Database {
    location: Location,
    writes: mpsc::Sender<Box<dyn Job>>,
    /// `None` for a database in memory: it is its one connection, so reads queue with the writes.
    readers: Option<SqlitePool>,
}

impl Database {
    /// Opens the file, brings it to this version's schema and starts its writer under `tasks`.
    pub(super) async fn open(location: Location, tasks: &Supervisor) -> Result<Self, DatabaseError> {
        let conn = location.connect().await?;
        let readers = location.path.is_some().then(|| {
            SqlitePoolOptions::new()
                .max_connections(READERS)
                .acquire_timeout(DEADLINE)
                .test_before_acquire(false)
                .connect_lazy_with(location.options().pragma("query_only", "ON"))
        });
        let (writes, queue) = mpsc::channel(QUEUE);
        let writer = Writer::new(location.clone(), conn, queue, tasks.clone());
        tasks.spawn("store-writer", writer.run());
        Ok(Self { location, writes, readers })
    }

    pub(super) fn location(&self) -> &Location {
        &self.location
    }

    /// Does `work` in a transaction. `Unavailable` after a deadline: then it may still happen.
    pub(super) async fn write<T, F>(
        &self,
        attempted: &'static str,
        durability: Durability,
        work: F,
    ) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Work<'c, T> + Send + 'static,
    {
        let unavailable = |source| StoreError::Unavailable { attempted, source };
        let (reply, answer) = oneshot::channel();
        let job = Write::new(attempted, durability, work, reply);
        let answered = tokio::time::timeout(DEADLINE, async {
            self.writes.send(Box::new(job)).await.map_err(|_| "the store is closed")?;
            answer.await.map_err(|_| "the store is closed")
        });
        match answered.await {
            Ok(Ok(result)) => result,
            Ok(Err(closed)) => Err(unavailable(closed.into())),
            Err(elapsed) => Err(unavailable(elapsed.into())),
        }
    }

    /// Does `work`, which changes nothing, on what is committed.
    pub(super) async fn read<T, F>(&self, attempted: &'static str, work: F) -> Result<T, StoreError>
    where
        T: Send + 'static,
        F: for<'c> FnOnce(&'c mut SqliteConnection) -> Work<'c, T> + Send + 'static,
    {
        let Some(readers) = &self.readers else {
            return self.write(attempted, Durability::Relaxed, work).await;
        };
        let answered = tokio::time::timeout(DEADLINE, async {
            let mut conn = readers.acquire().await.map_err(failed(attempted))?;
            work(&mut conn).await
        });
        answered.await.unwrap_or_else(|e| Err(StoreError::Unavailable { attempted, source: e.into() }))
    }

    /// Closes the readers. The writer ends when its supervisor asks it to.
    pub(super) async fn close_readers(&self) {
        if let Some(readers) = &self.readers {
            readers.close().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sqlx::Row;

    use super::*;
    use crate::sqlite::migrate::MAIN;

    /// A database in a folder of its own.
    async fn database(tasks: &Supervisor) -> (tempfile::TempDir, Arc<Database>) {
        let dir = tempfile::tempdir().unwrap();
        let location = Location { path: Some(dir.path().join("test.db")), schema: MAIN };
        std::fs::File::create(dir.path().join("test.db")).unwrap();
        (dir, Arc::new(Database::open(location, tasks).await.unwrap()))
    }

    async fn insert(db: &Database, n: usize) -> Result<(), StoreError> {
        db.write("adding", Durability::Synced, move |c| {
            Box::pin(async move {
                sqlx::query("INSERT INTO teams (id, name, slug, created_at) VALUES (?1, ?2, ?1, 0)")
                    .bind(n.to_string())
                    .bind("x".repeat(20_000))
                    .execute(c)
                    .await
                    .map(drop)
                    .map_err(failed("adding"))
            })
        })
        .await
    }

    async fn count(db: &Database) -> i64 {
        db.read("counting", |c| {
            Box::pin(async move {
                sqlx::query_scalar("SELECT COUNT(*) FROM teams")
                    .fetch_one(c)
                    .await
                    .map_err(failed("counting"))
            })
        })
        .await
        .unwrap()
    }

    /// Runs one statement as a write of its own.
    async fn execute(db: &Database, sql: &'static str) -> Result<(), StoreError> {
        db.write("executing", Durability::Synced, move |c| {
            Box::pin(
                async move { sqlx::raw_sql(sql).execute(c).await.map(drop).map_err(failed("executing")) },
            )
        })
        .await
    }

    async fn setting(db: &Database, sql: &'static str) -> String {
        db.write("asking", Durability::Synced, move |c| {
            Box::pin(async move {
                let row = sqlx::query(sql).fetch_one(c).await.map_err(failed("asking"))?;
                let number = row.try_get::<i64, _>(0).map(|n| n.to_string());
                number.or_else(|_| row.try_get(0)).map_err(failed("asking"))
            })
        })
        .await
        .unwrap()
    }

    #[tokio::test]
    async fn commits_are_synced_to_a_write_ahead_log() {
        let (_dir, db) = database(&Supervisor::new()).await;
        assert_eq!(setting(&db, "PRAGMA journal_mode").await, "wal");
        assert_eq!(setting(&db, "PRAGMA synchronous").await, "2");
        assert_eq!(setting(&db, "PRAGMA foreign_keys").await, "1");
        assert_eq!(setting(&db, "PRAGMA busy_timeout").await, "5000");
    }

    #[tokio::test]
    async fn durability_is_what_the_strictest_write_of_a_group_asks_for() {
        let (_dir, db) = database(&Supervisor::new()).await;
        let synchronous = async |durability| {
            db.write("asking", durability, |c| {
                Box::pin(async move {
                    sqlx::query_scalar::<_, i64>("PRAGMA synchronous")
                        .fetch_one(c)
                        .await
                        .map_err(failed("asking"))
                })
            })
            .await
            .unwrap()
        };
        assert_eq!(synchronous(Durability::Relaxed).await, 1);
        assert_eq!(synchronous(Durability::Synced).await, 2);
        let (relaxed, synced) =
            tokio::join!(synchronous(Durability::Relaxed), synchronous(Durability::Synced));
        assert_eq!((relaxed, synced), (2, 2), "both are one transaction");
    }

    #[tokio::test]
    async fn a_reader_cannot_write() {
        let (_dir, db) = database(&Supervisor::new()).await;
        let written = db
            .read("reading", |c| {
                Box::pin(async move {
                    sqlx::query("DELETE FROM teams").execute(c).await.map(drop).map_err(failed("reading"))
                })
            })
            .await;
        assert!(matches!(written, Err(StoreError::Unavailable { .. })), "{written:?}");
    }

    #[tokio::test]
    async fn a_full_disk_is_an_answer_and_nothing_acknowledged_is_lost() {
        let (_dir, db) = database(&Supervisor::new()).await;
        execute(&db, "PRAGMA max_page_count = 60").await.unwrap();
        let mut kept = 0;
        let error = loop {
            match insert(&db, kept).await {
                Ok(()) => kept += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
        assert!(kept > 0);
        assert_eq!(count(&db).await, i64::try_from(kept).unwrap());
        execute(&db, "PRAGMA max_page_count = 1000").await.unwrap();
        insert(&db, kept).await.unwrap();
        assert_eq!(count(&db).await, i64::try_from(kept).unwrap() + 1);
    }

    #[tokio::test]
    async fn a_write_that_ends_the_transaction_spoils_its_group_alone() {
        let (_dir, db) = database(&Supervisor::new()).await;
        let (first, spoiler, last) = tokio::join!(insert(&db, 1), execute(&db, "ROLLBACK"), insert(&db, 2));
        for outcome in [first, spoiler, last] {
            assert!(matches!(outcome, Err(StoreError::Unavailable { .. })), "{outcome:?}");
        }
        assert_eq!(count(&db).await, 0, "nothing of the group was kept");
        insert(&db, 1).await.unwrap();
        assert_eq!(count(&db).await, 1);
    }

    #[tokio::test]
    async fn what_is_queued_at_shutdown_is_still_written() {
        let tasks = Supervisor::new();
        let (dir, db) = database(&tasks).await;
        let (first, second, left) =
            tokio::join!(insert(&db, 1), insert(&db, 2), tasks.shutdown(Duration::from_secs(10)));
        assert!(first.is_ok() && second.is_ok(), "{first:?} {second:?}");
        assert_eq!(left, 0);
        let again = Location { path: Some(dir.path().join("test.db")), schema: MAIN };
        let db = Database::open(again, &Supervisor::new()).await.unwrap();
        assert_eq!(count(&db).await, 2);
    }
}
