//! `hutch sandbox`: what an operator does without a server.

use std::time::Duration;

use clap::Subcommand;
use hutch_runtime::Runtime;
use hutch_types::supervise::Supervisor;

use crate::config::Config;
use crate::{Common, node};

#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Destroy every sandbox, running or paused, and all that belongs to them: processes, mounts, disks, links, rules, cgroups. The server must be
    /// stopped; when it is started again, it reports them as killed.
    Purge {
        #[command(flatten)]
        common: Common,
    },
}

impl SandboxCommand {
    pub fn common(&self) -> &Common {
        match self {
            Self::Purge { common } => common,
        }
    }
}

pub async fn run(command: SandboxCommand, config: &Config) -> anyhow::Result<()> {
    match command {
        SandboxCommand::Purge { .. } => purge(config).await,
    }
}

async fn purge(config: &Config) -> anyhow::Result<()> {
    let supervisor = Supervisor::new();
    let node = node::open(config, &supervisor).await?;
    let chained = |e: hutch_runtime::RuntimeError| anyhow::anyhow!(e.chain());
    let found = node.runtime.adopt().await.map_err(chained)?;
    let count = found.adopted.len() + found.paused.len() + found.lost.len();
    for instance in found.adopted {
        instance.kill().await.map_err(chained)?;
    }
    for instance in found.paused {
        node.runtime.discard(&instance.spec.id).await.map_err(chained)?;
    }
    node.runtime.close().await.map_err(chained)?;
    node.net.teardown().await?;
    let disks = node.disks;
    tokio::task::spawn_blocking(move || disks.remove_mount_dir()).await??;
    supervisor.shutdown(Duration::from_secs(5)).await;
    println!("{count} sandboxes destroyed");
    Ok(())
}
