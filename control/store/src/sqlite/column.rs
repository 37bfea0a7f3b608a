//! Reading typed values out of rows, and writing them into binds.
//!
//! A value that does not fit its type means that the file was changed from outside: [`StoreError::Corrupt`].

use std::fmt::Display;
use std::str::FromStr;

use hutch_types::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::sqlite::SqliteRow;
use sqlx::{Decode, Row, Sqlite, Type};

use crate::StoreError;

/// Reads the columns of one row that holds a record of kind `what`.
pub(super) struct Columns<'r> {
    row: &'r SqliteRow,
    what: &'static str,
}

impl<'r> Columns<'r> {
    pub(super) fn new(row: &'r SqliteRow, what: &'static str) -> Self {
        Self { row, what }
    }

    fn corrupt(&self, column: &str, error: &dyn Display) -> StoreError {
        tracing::error!(what = self.what, column, %error, "a stored value is not readable");
        StoreError::Corrupt { what: self.what }
    }

    /// A value as SQLite holds it.
    pub(super) fn raw<T>(&self, column: &'static str) -> Result<T, StoreError>
    where
        T: Decode<'r, Sqlite> + Type<Sqlite>,
    {
        self.row.try_get(column).map_err(|e| self.corrupt(column, &e))
    }

    /// A text that parses as a `T`.
    pub(super) fn parsed<T>(&self, column: &'static str) -> Result<T, StoreError>
    where
        T: FromStr<Err: Display>,
    {
        self.raw::<&str>(column)?.parse().map_err(|e| self.corrupt(column, &e))
    }

    /// A text that parses as a `T`, where there is one.
    pub(super) fn parsed_if_any<T>(&self, column: &'static str) -> Result<Option<T>, StoreError>
    where
        T: FromStr<Err: Display>,
    {
        let text: Option<&str> = self.raw(column)?;
        text.map(|text| text.parse().map_err(|e| self.corrupt(column, &e))).transpose()
    }

    /// A text of JSON.
    pub(super) fn json<T: DeserializeOwned>(&self, column: &'static str) -> Result<T, StoreError> {
        serde_json::from_str(self.raw::<&str>(column)?).map_err(|e| self.corrupt(column, &e))
    }

    /// A number of another type than SQLite's.
    pub(super) fn number<T>(&self, column: &'static str) -> Result<T, StoreError>
    where
        T: TryFrom<i64, Error: Display>,
    {
        T::try_from(self.raw::<i64>(column)?).map_err(|e| self.corrupt(column, &e))
    }

    pub(super) fn time(&self, column: &'static str) -> Result<Timestamp, StoreError> {
        self.raw(column).map(Timestamp)
    }

    pub(super) fn time_if_any(&self, column: &'static str) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.raw::<Option<i64>>(column)?.map(Timestamp))
    }
}

/// A count or size as SQLite's integer; what is too large for it becomes the largest.
pub(super) fn integer(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A value as JSON text, to be kept or to be taken apart by SQLite's `json_each`.
pub(super) fn to_json<T: Serialize>(value: &T, what: &'static str) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| {
        tracing::error!(what, %error, "a value cannot be written as JSON");
        StoreError::Corrupt { what }
    })
}

#[cfg(test)]
mod tests {
    use sqlx::{Connection, SqliteConnection};

    use super::*;

    #[test]
    fn a_size_that_does_not_fit_is_the_largest_that_does() {
        assert_eq!(integer(0), 0);
        assert_eq!(integer(5_000_000_000), 5_000_000_000);
        assert_eq!(integer(u64::MAX), i64::MAX);
    }

    #[tokio::test]
    async fn values_that_do_not_fit_their_type_are_corrupt() {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.unwrap();
        let row = sqlx::query("SELECT -1 AS negative, 7 AS seven, 'x' AS text, NULL AS unset, '[1]' AS list")
            .fetch_one(&mut conn)
            .await
            .unwrap();
        let c = Columns::new(&row, "thing");
        assert!(matches!(c.number::<u8>("seven"), Ok(7)));
        assert!(matches!(c.json::<Vec<u8>>("list").as_deref(), Ok([1])));
        assert!(matches!(c.time_if_any("unset"), Ok(None)));
        assert!(matches!(c.parsed_if_any::<u8>("unset"), Ok(None)));
        assert!(matches!(c.parsed_if_any::<u8>("text"), Err(StoreError::Corrupt { .. })));
        assert!(matches!(c.number::<u8>("negative"), Err(StoreError::Corrupt { what: "thing" })));
        assert!(matches!(c.parsed::<u8>("text"), Err(StoreError::Corrupt { .. })));
        assert!(matches!(c.json::<u8>("text"), Err(StoreError::Corrupt { .. })));
        assert!(matches!(c.raw::<i64>("absent"), Err(StoreError::Corrupt { .. })));
    }
}
