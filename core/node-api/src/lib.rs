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
    Inventory, LogLine, NodeError, NodeErrorKind, NodeEvent, NodeEvents, NodeInfo, PausedSandbox,
    ResourceSample, RunningSandbox, StartSandbox, StartedSandbox,
};
pub use route::{Route, RouteSource, SignedFile, SignedUrls};

use std::time::Duration;

use async_trait::async_trait;
use hutch_types::{NetworkPolicy, PauseMode, SandboxId};

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

    /// Destroys a sandbox, running or paused, with all that belongs to it. Works from every state; an unknown id is success.
    async fn stop_sandbox(&self, id: &SandboxId) -> Result<(), NodeError>;

    /// Saves a running sandbox and ends its instance. Returns when what was saved survives the node. A sandbox that is paused
    /// already stays as it is, whatever was saved of it.
    ///
    /// # Errors
    /// Then it runs on. [`NodeErrorKind::NotFound`] when it is not here, [`NodeErrorKind::Unsupported`] when this node
    /// cannot save memory, [`NodeErrorKind::Unavailable`] while it starts or the node drains, else
    /// [`NodeErrorKind::Internal`].
    async fn pause_sandbox(&self, id: &SandboxId, mode: PauseMode) -> Result<(), NodeError>;

    /// Brings a paused sandbox back and returns when its envd answers, with the network policy in force. With
    /// [`PauseMode::Full`] it goes on where it was and the request's environment is not used, with
    /// [`PauseMode::Filesystem`] it boots anew with it. One that runs already is left as it is. Any number may ask at the same time.
    ///
    /// # Errors
    /// Then it is paused as before. [`NodeErrorKind::NotFound`] when it is not here, [`NodeErrorKind::Unsupported`] when
    /// its memory is asked for and was not saved, else as for [`Self::start_sandbox`].
    async fn resume_sandbox(
        &self,
        request: StartSandbox,
        mode: PauseMode,
    ) -> Result<StartedSandbox, NodeError>;

    /// Replaces a running sandbox's network policy atomically.
    async fn set_network(&self, id: &SandboxId, policy: NetworkPolicy) -> Result<(), NodeError>;

    /// What is really on the node.
    async fn inventory(&self) -> Result<Inventory, NodeError>;

    /// Events after cursor `after` (0 = from the oldest kept), waiting up to `wait` for the first one. The node keeps a
    /// bounded number; when some were lost in between, `missed` is true and the caller takes an inventory.
    async fn events(&self, after: u64, wait: Duration) -> Result<NodeEvents, NodeError>;
}
