//! What a runtime is opened with, and where it keeps its files.

use std::path::{Path, PathBuf};

use hutch_disk::DiskStore;
use hutch_net::Network;
use sha2::{Digest, Sha256};

/// The port on which envd listens inside; E2B's clients count on it.
pub(crate) const ENVD_PORT: u16 = 49983;

/// Settings of an [`crate::OciRuntime`].
#[derive(Debug, Clone)]
pub struct OciConfig {
    /// Instance records, bundles, guest builds and runc's own state. Made when missing, readable by root alone.
    pub data_dir: PathBuf,
    /// The runtime's command: a path, or a name to find in `PATH`.
    pub runc: PathBuf,
    /// CRIU's command, 4.2 or later. `None`: instances can only be paused with their files.
    pub criu: Option<PathBuf>,
    /// Holds the static binaries `init` and `envd` that new instances boot.
    pub guest_dir: PathBuf,
    /// Where disks come from.
    pub disks: DiskStore,
    /// Where slots come from.
    pub net: Network,
    /// lxcfs, which shows instances their own limits in /proc: a path, or a name to find in `PATH`. Empty, or not there: they
    /// show the host's figures.
    pub lxcfs: PathBuf,
    /// Whether an instance runs on as many CPUs as it has, instead of on all of them within its quota.
    pub pin_cpus: bool,
    /// The cgroup below the root of every hierarchy that holds those of the instances: one path component, and no other
    /// daemon's.
    pub cgroup_parent: String,
}

impl OciConfig {
    /// Defaults: `runc` from `PATH`, no lxcfs, pinned CPUs, a cgroup parent derived from the data directory.
    pub fn new(
        data_dir: impl Into<PathBuf>,
        guest_dir: impl Into<PathBuf>,
        disks: DiskStore,
        net: Network,
    ) -> Self {
        let data_dir = data_dir.into();
        let cgroup_parent = format!("hutch-{}", short_hash(&data_dir));
        let lxcfs = PathBuf::new();
        Self {
            data_dir,
            runc: "runc".into(),
            criu: None,
            guest_dir: guest_dir.into(),
            disks,
            net,
            lxcfs,
            pin_cpus: true,
            cgroup_parent,
        }
    }
}

/// Names a directory in few characters, the same for every way to write it.
fn short_hash(dir: &Path) -> String {
    let absolute = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    let real = std::fs::canonicalize(&absolute).unwrap_or(absolute);
    let hash = Sha256::digest(real.as_os_str().as_encoded_bytes());
    hash.iter().take(5).map(|b| format!("{b:02x}")).collect()
}

/// Where things are below the data directory.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    /// One directory per instance: record, labels, bundle, runc's log.
    pub instances: PathBuf,
    /// Guest builds by content hash.
    pub guest: PathBuf,
    /// Where [`Self::guest`] is mounted: containers that are restored open it with an unprivileged uid, which does not get
    /// through the data directory.
    pub guest_mount: PathBuf,
    /// runc's state of all containers.
    pub state: PathBuf,
    /// lxcfs's pid file and mount.
    pub lxcfs: PathBuf,
    /// CRIU's settings.
    pub criu_settings: PathBuf,
}

impl Paths {
    pub fn below(data_dir: &Path) -> Self {
        Self {
            instances: data_dir.join("instances"),
            guest: data_dir.join("guest"),
            guest_mount: Path::new("/run/hutch").join(format!("guest-{}", short_hash(data_dir))),
            state: data_dir.join("runc"),
            lxcfs: data_dir.join("lxcfs"),
            criu_settings: data_dir.join("criu.conf"),
        }
    }

    pub fn instance(&self, name: &str) -> PathBuf {
        self.instances.join(name)
    }
}
