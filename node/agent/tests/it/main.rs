//! The agent on the fake runtime.
#![expect(clippy::unwrap_used, reason = "helpers of tests")]

mod adoption;
mod events;
mod guests;
mod latency;
mod pause;
mod pool;
mod secrets;
mod starts;
mod stops;
mod support;
