//! The daemon inside every sandbox: processes, terminals, files.
//!
//! envd listens on one TCP port and speaks the wire that E2B's SDKs speak to a sandbox: Connect RPC (JSON and
//! protobuf, HTTP/1.1 and h2c) for [`process`] and [`filesystem`], plain HTTP for [`files`] and for what the host
//! asks of it ([`http`]). It knows nothing of the control plane, templates or leases; the host tells it who it is
//! through `POST /init`.
//!
//! Everything hangs off one [`State`] per instance. There are no statics, so that several instances can live in one
//! process (tests, the fake runtime).

pub mod auth;
pub mod config;
pub mod error;
pub mod files;
pub mod filesystem;
pub mod http;
pub mod logs;
mod metrics;
pub mod paths;
pub mod process;
pub mod server;
mod settings;
pub mod state;
mod trust;
pub mod users;

pub use config::{Config, Users};
pub use server::{router, serve};
pub use state::State;

/// The version of E2B's envd whose behaviour this one has; what the API reports as `envdVersion`.
pub const ENVD_VERSION: &str = "0.6.13";
