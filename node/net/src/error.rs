//! Why network operations fail.

use std::io;

use crate::subnet::Subnet;

/// Why an operation on the network of sandboxes failed.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// A setting cannot work.
    #[error("{what}")]
    Config {
        /// What is wrong.
        what: String,
    },
    /// The host uses addresses of the sandbox subnet itself.
    #[error("the sandbox subnet {subnet} overlaps the host's network {used}: choose another subnet")]
    SubnetInUse {
        /// The configured subnet.
        subnet: Subnet,
        /// What the host has a route to.
        used: Subnet,
    },
    /// Another daemon uses the same table.
    #[error("nftables table {table} is in use by another hutch: choose another table, prefix and subnet")]
    InUse {
        /// The table.
        table: String,
    },
    /// All slots are taken.
    #[error("network slots (limit {limit}) exhausted")]
    Exhausted {
        /// The limit, `max_slots`.
        limit: u32,
    },
    /// The slot has no interface on this host, or its index is in use already.
    #[error("there is no network slot {index} to take over")]
    NoSlot {
        /// The slot's index.
        index: u32,
    },
    /// The process to attach to is gone, or it is in the host's own network namespace.
    #[error("process {pid} has no network namespace of its own")]
    NoNamespace {
        /// The process.
        pid: i32,
    },
    /// A step failed.
    #[error("{attempted}")]
    Failed {
        /// What was attempted on what.
        attempted: String,
        /// Why it failed.
        #[source]
        source: io::Error,
    },
    /// A step did not end in time.
    #[error("{attempted} took longer than {limit_ms} ms")]
    TimedOut {
        /// What was attempted on what.
        attempted: String,
        /// The deadline in milliseconds.
        limit_ms: u64,
    },
}

impl NetError {
    /// Whether the cause is a limit: the same call can succeed later.
    pub fn is_exhausted(&self) -> bool {
        matches!(self, Self::Exhausted { .. })
    }
}

/// Adds what was attempted to an I/O error.
pub(crate) trait Attempt<T> {
    fn attempting(self, attempted: impl FnOnce() -> String) -> Result<T, NetError>;
}

impl<T, E: Into<io::Error>> Attempt<T> for Result<T, E> {
    fn attempting(self, attempted: impl FnOnce() -> String) -> Result<T, NetError> {
        self.map_err(|error| NetError::Failed { attempted: attempted(), source: error.into() })
    }
}
