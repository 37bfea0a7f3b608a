//! Copies of the main database while it is in use.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sqlx::Connection;

use super::SqliteStore;
use super::error::{DatabaseError, unusable};
use super::file::{MODE, blocking, folder_of, sync_folder};

impl SqliteStore {
    /// Writes a consistent copy of the main database to `path` (not of samples and log lines), durably; writes go on
    /// meanwhile. The copy is a database that [`SqliteStore::open`] opens. Cancellation may leave a file
    /// `<path>.partial`, which the next backup to `path` replaces.
    ///
    /// # Errors
    /// [`DatabaseError`] when `path` exists or cannot be written, and for a store in memory.
    pub async fn backup_to(&self, path: &Path) -> Result<(), DatabaseError> {
        let Some(source) = self.main.location().path.clone() else {
            return Err(DatabaseError::refused(path, "is not written: a store in memory has no backups"));
        };
        let Some(partial) = path.to_str().map(|p| format!("{p}.partial")) else {
            return Err(DatabaseError::refused(path, "cannot be written: its name is not UTF-8"));
        };

        let (target, scratch) = (path.to_owned(), partial.clone());
        blocking(path.to_owned(), "cannot be written", move || {
            if target.exists() {
                return Err(io::Error::new(ErrorKind::AlreadyExists, "it exists already"));
            }
            match fs::remove_file(&scratch) {
                Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
                _ => {}
            }
            // SQLite fills an empty file; made here, nobody else can read it at any moment.
            OpenOptions::new().write(true).create_new(true).mode(MODE).open(&scratch).map(drop)
        })
        .await?;

        let mut conn = self
            .main
            .location()
            .connect_plain()
            .await
            .map_err(|e| unusable(&source, "cannot be opened", e))?;
        let copied = sqlx::query("VACUUM INTO ?").bind(&partial).execute(&mut conn).await;
        drop(conn.close().await);
        copied.map_err(|e| unusable(path, "cannot be written", e))?;

        let target = path.to_owned();
        blocking(path.to_owned(), "cannot be written", move || {
            fs::File::open(&partial)?.sync_all()?;
            fs::rename(&partial, &target)?;
            sync_folder(folder_of(&target))
        })
        .await
    }
}
