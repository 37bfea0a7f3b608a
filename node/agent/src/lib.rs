//! The node's side of the node protocol: one actor per sandbox, the warm pool, adoption, samples.
//!
//! The agent decides how a host runs its sandboxes. It knows the [`Runtime`](hutch_runtime::Runtime) trait but no
//! backend, speaks to envd only through HTTP, and keeps no truth that it cannot rebuild: after the daemon's death
//! [`Agent::start`] finds everything again from the labels on the instances.
//!
//! A start request travels `agent` -> `sandbox` (its actor) -> `pool` (an instance, ready or booted for it) ->
//! `claim` (identity) -> route and answer. `sample` follows a running sandbox, `events` keeps what control fetches,
//! `guests` answers what sandboxes ask of their node.

mod adopt;
mod agent;
mod claim;
mod config;
mod envd;
mod error;
mod events;
mod guests;
mod labels;
mod memory;
mod node;
mod pool;
mod sample;
mod sandbox;
mod shared;
mod work;

pub use agent::Agent;
pub use config::{AgentConfig, PoolConfig};
pub use pool::PoolStatus;
