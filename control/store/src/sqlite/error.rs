//! From the database's errors to [`StoreError`] and [`DatabaseError`].

use std::path::{Path, PathBuf};

use crate::StoreError;

/// A database file that cannot be opened or copied; the reason says what to do.
#[derive(Debug, thiserror::Error)]
#[error("the database {} {reason}", path.display())]
pub struct DatabaseError {
    /// Where it is.
    pub path: PathBuf,
    /// What is wrong with it, as the rest of a sentence.
    pub reason: String,
    /// The error below, if there was one.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl DatabaseError {
    /// One that has no cause below it.
    pub(super) fn refused(path: &Path, reason: impl Into<String>) -> Self {
        Self { path: path.to_owned(), reason: reason.into(), source: None }
    }

    /// Whether another process has a lock on it.
    pub(super) fn is_busy(&self) -> bool {
        /// SQLite's `SQLITE_BUSY`: the lower byte of all codes of this kind.
        const BUSY: u32 = 5;
        self.source
            .as_ref()
            .and_then(|e| e.downcast_ref::<sqlx::Error>())
            .and_then(sqlx::Error::as_database_error)
            .and_then(|e| e.code()?.parse::<u32>().ok())
            .is_some_and(|code| code & 0xff == BUSY)
    }
}

/// Whatever went wrong in the database while `attempted`; a value that cannot be decoded is [`StoreError::Corrupt`].
pub(super) fn failed(attempted: &'static str) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| match source {
        sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => {
            tracing::error!(error = %source, attempted, "a stored value is not readable");
            StoreError::Corrupt { what: "value" }
        }
        source => StoreError::Unavailable { attempted, source: Box::new(source) },
    }
}

/// Like [`failed`], but a broken rule of the schema is the caller's conflict: `taken` for a key or name that exists,
/// `missing` for a reference to nothing.
pub(super) fn rejected(
    attempted: &'static str,
    taken: impl FnOnce() -> String,
    missing: &'static str,
) -> impl FnOnce(sqlx::Error) -> StoreError {
    move |source| match source
        .as_database_error()
        .map(|e| (e.is_unique_violation(), e.is_foreign_key_violation()))
    {
        Some((true, _)) => StoreError::Conflict { what: taken() },
        Some((_, true)) => StoreError::NotFound { what: missing.to_owned() },
        _ => failed(attempted)(source),
    }
}

/// A database file that cannot be used.
pub(super) fn unusable(
    path: &Path,
    reason: &str,
    source: impl std::error::Error + Send + Sync + 'static,
) -> DatabaseError {
    DatabaseError { path: path.to_owned(), reason: reason.to_owned(), source: Some(Box::new(source)) }
}

/// A record that is not there.
pub(super) fn not_found(what: impl Into<String>) -> StoreError {
    StoreError::NotFound { what: what.into() }
}

/// A record that is in the way.
pub(super) fn conflict(what: impl Into<String>) -> StoreError {
    StoreError::Conflict { what: what.into() }
}
