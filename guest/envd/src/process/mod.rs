//! Processes and terminals: the service `process.Process`.
//!
//! ```text
//! Start ─ spawn ─▶ Process ─┬─ pump: pipes or pty ─▶ Hub ─▶ Subscription per client ─▶ stream
//!                           └─ waiter: lifetime, exit ─▶ Registry (live → ended for 30 s)
//! ```
//!
//! A process belongs to nobody but itself: clients come and go, their number may be zero (output is then dropped), and
//! only its own end, a signal or its lifetime ends it.

mod error;
mod exit;
mod hub;
mod input;
mod keepalive;
mod pty;
mod registry;
mod run;
mod service;
mod spawn;
mod stream;

pub use exit::Exit;
pub use keepalive::keepalive_interval;
pub use registry::{Process, Registry};
pub use service::ProcessService;
