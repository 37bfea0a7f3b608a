//! The handshake, and orders from a real ACME server with real name servers. What is not installed is skipped.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod acme;
mod handshake;
mod servers;
