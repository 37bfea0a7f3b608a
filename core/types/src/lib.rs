//! What every tier of Hutch shares: ids, units, the sandbox state machine, task supervision, time, secrets.
//!
//! This crate knows no I/O, no HTTP, no SQL and no kernel interface. Everything may depend on it.

pub mod check;
pub mod clock;
pub mod ids;
pub mod ingress;
pub mod secret;
pub mod signed;
pub mod state;
pub mod supervise;
pub mod units;

pub use check::Check;
pub use clock::{Clock, Timestamp};
pub use ids::{BuildId, IdError, InstanceId, NodeId, SandboxId, TeamId, TemplateId};
pub use ingress::{Ingress, TokenHash};
pub use secret::Secret;
pub use state::{KillReason, PauseMode, SandboxEvent, SandboxState, TransitionError};
pub use units::{Isolation, NetworkPolicy, Resources};

/// The version of envd in this tree, as clients see it: they switch features by it, so it names the newest E2B envd whose
/// wire contract ours keeps.
pub const ENVD_VERSION: &str = "0.6.13";
