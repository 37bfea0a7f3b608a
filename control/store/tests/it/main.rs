//! The SQLite store against the conformance suite, and what is SQLite's alone.

#![expect(clippy::unwrap_used, reason = "tests, and what they call")]

mod conformance;
mod files;
mod kill;
