//! The control plane as clients see it: the real router, use-cases and SQLite store over a node that is played.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test panics when something is wrong")]

mod background;
mod create;
mod http_layer;
mod idempotency;
mod leases;
mod listing;
mod node;
mod openapi;
mod pauses;
mod resumes;
mod telemetry;
mod templates;
mod world;
