//! Puts this host's part together: disks, network, runtime.

use std::path::PathBuf;

use anyhow::{Context, bail};
use hutch_disk::{DiskConfig, DiskStore};
use hutch_net::{NetConfig, Network};
use hutch_runtime_oci::{OciConfig, OciRuntime, OciSupport};
use hutch_types::Check;
use hutch_types::supervise::Supervisor;

use crate::config::Config;
use crate::doctor;

/// Where the node keeps its files.
pub fn node_dir(config: &Config) -> PathBuf {
    config.data_dir.join("node")
}

/// Opens the disks.
pub async fn open_disks(config: &Config) -> anyhow::Result<DiskStore> {
    let mut disks = DiskConfig::new(node_dir(config));
    disks.reserve_mib = config.node.disk_reserve_mib;
    let opened = tokio::task::spawn_blocking(move || DiskStore::open(disks)).await?;
    opened.context("the data directory cannot be used")
}

/// This host's network settings.
pub fn net_config(config: &Config) -> NetConfig {
    NetConfig {
        dns_upstreams: config.node.dns_upstreams.clone(),
        ..NetConfig::numbered(config.node.network_number)
    }
}

/// Everything that runs sandboxes on this host.
pub struct Node {
    pub disks: DiskStore,
    pub net: Network,
    pub runtime: OciRuntime,
}

/// Opens the node after checking that this host can be one.
pub async fn open(config: &Config, supervisor: &Supervisor) -> anyhow::Result<Node> {
    must_be_root()?;
    let criu = config.criu();
    let support = OciSupport::detect(&config.node.runc, Some(&criu));
    let saves_memory = support.criu.works();
    for (name, required, check) in doctor::oci_checks(support) {
        if let (true, Check::Fails(why)) = (required, check) {
            bail!("{name}: {why}");
        }
    }
    let guest_dir = config.guest_dir();
    for program in ["envd", "init"] {
        if !guest_dir.join(program).is_file() {
            bail!(
                "{} is missing: build the guest programs with `make build`, or point node.guest_dir at them",
                guest_dir.join(program).display()
            );
        }
    }
    raise_descriptor_limit();
    let disks = open_disks(config).await?;
    let net = Network::open(net_config(config), supervisor)
        .await
        .context("the sandbox network cannot be set up")?;
    let mut oci = OciConfig::new(node_dir(config), guest_dir, disks.clone(), net.clone());
    oci.runc.clone_from(&config.node.runc);
    oci.lxcfs.clone_from(&config.node.lxcfs);
    oci.pin_cpus = config.node.pin_cpus;
    oci.criu = saves_memory.then_some(criu);
    let runtime = OciRuntime::open(oci, supervisor).await.map_err(|e| anyhow::anyhow!(e.chain()))?;
    Ok(Node { disks, net, runtime })
}

/// Sandboxes need namespaces, mounts and nftables.
pub fn must_be_root() -> anyhow::Result<()> {
    if !rustix::process::geteuid().is_root() {
        bail!("sandboxes need root: run it again with sudo");
    }
    Ok(())
}

/// Every connection and sandbox costs descriptors: takes as many as the system allows.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files could not be raised");
    }
}
