//! The store in SQLite: two files, so that what needs no sync of the disk does not wait for what does.
//!
//! - the main file: teams, keys, templates, sandboxes, idempotency; an acknowledged write survives a power failure;
//! - `telemetry.db` next to it: samples and log lines, which survive a failure of the process.
//!
//! Several processes may have the files open. `database` is how a file is read and written, the modules named after
//! records hold their SQL, and `store` binds both to the trait.

mod backup;
mod column;
mod database;
mod error;
mod file;
mod idempotency;
mod keys;
mod listing;
mod logs;
mod metrics;
mod migrate;
mod pauses;
#[cfg(test)]
mod plan;
mod purge;
mod sandboxes;
mod store;
mod teams;
mod templates;
mod writer;

use std::path::Path;
use std::time::Duration;

use hutch_types::supervise::Supervisor;

use self::database::{Database, Location};
pub use self::error::DatabaseError;

/// How long [`SqliteStore::close`] waits for writes that are queued.
const CLOSE_GRACE: Duration = Duration::from_secs(10);

/// The [`Store`](crate::Store) in SQLite.
///
/// Open it within a Tokio runtime: it starts its writers there. Dropping it abandons nothing that was acknowledged.
#[derive(Debug)]
pub struct SqliteStore {
    main: Database,
    telemetry: Database,
    tasks: Supervisor,
}

impl SqliteStore {
    /// Opens the database at `path`, and `telemetry.db` next to it; creates what is missing, folders included, and
    /// brings the schema to this version's. The files are readable by their owner only.
    ///
    /// # Errors
    /// [`DatabaseError`] when a file cannot be opened, is not Hutch's or was written by a newer version.
    pub async fn open(path: &Path) -> Result<Self, DatabaseError> {
        let telemetry = path.with_file_name("telemetry.db");
        if telemetry == path {
            return Err(DatabaseError::refused(
                path,
                "has the name that is kept for samples and log lines; choose another",
            ));
        }
        file::prepare(path).await?;
        file::prepare(&telemetry).await?;
        Self::start(
            Location { path: Some(path.to_owned()), schema: migrate::MAIN },
            Location { path: Some(telemetry), schema: migrate::TELEMETRY },
        )
        .await
    }

    /// A store of its own in memory, gone when it is dropped. For tests: reads queue with writes.
    ///
    /// # Errors
    /// [`DatabaseError`] when there is no memory for it.
    pub async fn open_in_memory() -> Result<Self, DatabaseError> {
        Self::start(
            Location { path: None, schema: migrate::MAIN },
            Location { path: None, schema: migrate::TELEMETRY },
        )
        .await
    }

    async fn start(main: Location, telemetry: Location) -> Result<Self, DatabaseError> {
        let tasks = Supervisor::new();
        let main = Database::open(main, &tasks).await?;
        let telemetry = Database::open(telemetry, &tasks).await?;
        Ok(Self { main, telemetry, tasks })
    }

    /// Finishes what is queued and closes the files; calls after it are `Unavailable`. Not needed for safety: it
    /// leaves no log for the next start to replay.
    pub async fn close(&self) {
        self.main.close_readers().await;
        self.telemetry.close_readers().await;
        if self.tasks.shutdown(CLOSE_GRACE).await > 0 {
            tracing::warn!("the store did not finish its writes in time");
        }
    }
}
