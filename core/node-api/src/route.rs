//! Where a sandbox's traffic goes.

use std::net::IpAddr;
use std::sync::Arc;

use async_trait::async_trait;
use hutch_types::signed::Operation;
use hutch_types::{Ingress, SandboxId, Secret};

/// How to reach a running sandbox from its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The guest's address. Servers bound to all addresses answer here.
    pub address: IpAddr,
    /// The port that envd listens on at `address`. 49983 except for in-process instances of tests.
    pub envd_port: u16,
    /// What envd's internal routes want as `x-hutch-secret`; the tunnel to localhost-only servers needs it.
    pub secret: Secret,
    /// What holds for requests to all ports but envd's.
    pub ingress: Arc<Ingress>,
}

/// Resolves sandbox ids for the edge.
#[async_trait]
pub trait RouteSource: Send + Sync + 'static {
    /// The route of a running sandbox; `None` when there is no such sandbox or it does not run.
    async fn route(&self, id: &SandboxId) -> Option<Route>;
}

/// A request for a file by a signed URL that does not say which sandbox it is of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SignedFile {
    /// The path as in the query.
    pub path: String,
    /// What is to be done.
    pub operation: Operation,
    /// The user as in the query; empty when there is none.
    pub username: String,
    /// When the URL ends, in Unix seconds.
    pub expiration: Option<i64>,
    /// The signature.
    pub signature: String,
}

/// Finds the sandbox whose token made a signature.
#[async_trait]
pub trait SignedUrls: Send + Sync + 'static {
    /// The running sandbox that `file` is of. Whether the URL has expired is envd's to say.
    async fn sandbox_of(&self, file: &SignedFile) -> Option<SandboxId>;
}
