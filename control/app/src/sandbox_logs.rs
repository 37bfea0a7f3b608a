//! Log lines of a sandbox; those of ended sandboxes stay readable for as long as their records are kept.

use hutch_store::{LogEntry, LogQuery, SortOrder};
use hutch_types::{SandboxId, Timestamp};

use crate::error::AppError;
use crate::{App, Caller};

/// Most lines of an answer, and the number when none is asked for.
pub const MAX_LOG_LINES: u32 = 1000;
/// Longest text to search for, in characters.
pub const MAX_LOG_SEARCH: usize = 256;

/// Which lines.
#[derive(Debug, Clone)]
pub struct LogsQuery {
    /// Oldest first: lines at or after; newest first: lines at or before.
    pub cursor: Option<Timestamp>,
    /// Oldest or newest first.
    pub order: SortOrder,
    /// At least this level: `debug`, `info`, `warn` or `error`.
    pub min_level: Option<String>,
    /// Case-sensitive part of the message.
    pub search: Option<String>,
    /// At most this many lines, at most [`MAX_LOG_LINES`].
    pub limit: u32,
}

impl App {
    /// Log lines of a sandbox of the caller's team.
    ///
    /// # Errors
    /// `NotFound` for one that never existed, is forgotten or is another team's; `Invalid` for an overlong search.
    pub async fn sandbox_logs(
        &self,
        caller: &Caller,
        id: &SandboxId,
        query: LogsQuery,
    ) -> Result<Vec<LogEntry>, AppError> {
        if query.search.as_ref().is_some_and(|s| s.chars().count() > MAX_LOG_SEARCH) {
            return Err(AppError::invalid(format!(
                "search cannot be longer than {MAX_LOG_SEARCH} characters"
            )));
        }
        self.owned_sandbox(caller.team, id).await?;
        let query = LogQuery {
            sandbox: id.clone(),
            cursor: query.cursor,
            order: query.order,
            min_level: query.min_level,
            search: query.search.filter(|s| !s.is_empty()),
            limit: query.limit.min(MAX_LOG_LINES),
        };
        Ok(self.0.store.logs(query).await?)
    }
}
