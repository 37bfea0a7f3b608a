//! The node protocol: what `control` and `edge` ask of a host that runs sandboxes.
//!
//! `control` decides where and whether, a node decides how; they meet only here. In the single-process mode the
//! node's agent implements these traits directly; between machines the same messages travel as JSON, which is why all
//! of them are plain serialisable data.
//!
//! A node keeps no truth that it cannot rebuild: [`NodeClient::inventory`] says what is really there.

mod message;
mod route;

pub use message::{
    Inventory, LogLine, NodeError, NodeErrorKind, NodeEvent, NodeEvents, NodeInfo, ResourceSample,
    RunningSandbox, StartSandbox, StartedSandbox,
};
pub use route::{Route, RouteSource, SignedFile, SignedUrls};

use std::time::Duration;

use async_trait::async_trait;
use hutch_types::{NetworkPolicy, SandboxId};

/// One node, as seen from control. All calls have a deadline of the implementation's and may be repeated.
#[async_trait]
pub trait NodeClient: Send + Sync + 'static {
    /// What this node is and can do.
    async fn info(&self) -> Result<NodeInfo, NodeError>;

    /// Starts a sandbox and returns when its envd answers with the identity of the request in force. Starting an id that already runs
    /// returns the running one.
    ///
    /// # Errors
    /// [`NodeErrorKind::NotFound`] without the image, [`NodeErrorKind::Exhausted`] when nothing is free,
    /// [`NodeErrorKind::Unavailable`] while draining, else [`NodeErrorKind::Internal`]. After an error nothing is left.
    async fn start_sandbox(&self, request: StartSandbox) -> Result<StartedSandbox, NodeError>;

    /// Destroys a sandbox with all that belongs to it. Works from every state; an unknown id is success.
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), NodeError>;

    /// Replaces a running sandbox's network policy atomically.
    async fn set_network(&self, id: &SandboxId, policy: NetworkPolicy) -> Result<(), NodeError>;

    /// What is really on the node.
    async fn inventory(&self) -> Result<Inventory, NodeError>;

    /// Events after cursor `after` (0 = from the oldest kept), waiting up to `wait` for the first one. The node keeps a
    /// bounded number; when some were lost in between, `missed` is true and the caller takes an inventory.
    async fn events(&self, after: u64, wait: Duration) -> Result<NodeEvents, NodeError>;
}
