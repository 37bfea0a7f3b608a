//! Drives a whole envd over loopback, as the typed client and as a raw HTTP client. Runs as root or not: every user is
//! the one who runs the tests.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "tests")]

mod binary;
mod files;
mod filesystem;
mod hostile;
mod http;
mod internal;
mod output;
mod paths;
mod process;
mod pty;
mod support;
mod watch;
