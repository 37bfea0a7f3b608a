//! Where a sandbox's traffic goes.

use std::net::IpAddr;

use async_trait::async_trait;
use hutch_types::{SandboxId, Secret};

/// How to reach a running sandbox from its node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// The guest's address. Servers bound to all addresses answer here.
    pub address: IpAddr,
    /// The port that envd listens on at `address`. 49983 except for in-process instances of tests.
    pub envd_port: u16,
    /// What envd's internal routes want as `x-hutch-secret`; the tunnel to localhost-only servers needs it.
    pub secret: Secret,
}

/// Resolves sandbox ids for the edge.
#[async_trait]
pub trait RouteSource: Send + Sync + 'static {
    /// The route of a running sandbox; `None` when there is no such sandbox or it does not run.
    async fn route(&self, id: &SandboxId) -> Option<Route>;
}
