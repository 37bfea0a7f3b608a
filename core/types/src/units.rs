//! Sizes, policies and the isolation kinds. A number carries its unit in its name.

use serde::{Deserialize, Serialize};

/// What a sandbox may use. Enforced by the node on the sandbox as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Resources {
    /// Virtual CPUs: the CPU time quota is this many whole cores.
    pub vcpus: u32,
    /// Memory limit in MiB; above it the kernel kills the greediest process inside.
    pub memory_mib: u32,
    /// Size of the writable disk in MiB; above it writes fail with `ENOSPC`.
    pub disk_mib: u32,
    /// Most processes and threads at a time.
    pub max_processes: u32,
}

/// How a sandbox is separated from its host, strongest last.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    strum::Display,
    strum::EnumString,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Isolation {
    /// No isolation at all: processes of the host in a scratch folder. Tests only.
    Fake,
    /// Hardened OCI container: namespaces, user namespace, seccomp, cgroups; the host's kernel is shared.
    Container,
    /// gVisor: a kernel in user space between the guest and the host's.
    Gvisor,
    /// Firecracker: a microVM with a kernel of its own.
    Microvm,
}

/// What a sandbox may reach. Private, link-local, loopback and other sandboxes' addresses are denied always.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkPolicy {
    /// False: nothing outside the sandbox can be reached, DNS included.
    pub allow_internet_access: bool,
}

impl Default for NetworkPolicy {
    fn default() -> Self {
        Self { allow_internet_access: true }
    }
}
