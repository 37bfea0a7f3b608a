//! `hutch template`: brings root file systems in and lists what there is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Subcommand;
use hutch_disk::{ImageConfig, ImportLimits, ImportProgress};
use hutch_store::{SqliteStore, Store, StoreError, Template, TemplateBuild};
use hutch_types::{BuildId, Clock, Resources, TemplateId};

use crate::config::Config;
use crate::{Common, node};

/// The tag that a template name without one means.
const DEFAULT_TAG: &str = "default";

#[derive(Debug, Subcommand)]
pub enum TemplateCommand {
    /// Make a template from a tar of a root file system. The server must be stopped.
    Import {
        #[command(flatten)]
        common: Common,
        /// Its name; a name that exists gets a new build.
        #[arg(long)]
        name: String,
        /// The tar, uncompressed, owners as inside.
        #[arg(long, value_name = "FILE")]
        rootfs: PathBuf,
        /// Virtual CPUs of its sandboxes.
        #[arg(long, default_value_t = 2)]
        cpu: u32,
        /// Memory of its sandboxes in MiB.
        #[arg(long, default_value_t = 512)]
        memory_mib: u32,
        /// Disk of its sandboxes in MiB.
        #[arg(long, default_value_t = 10_240)]
        disk_mib: u32,
    },
    /// List templates.
    List {
        #[command(flatten)]
        common: Common,
    },
}

impl TemplateCommand {
    pub fn common(&self) -> &Common {
        match self {
            Self::Import { common, .. } | Self::List { common } => common,
        }
    }
}

pub async fn run(command: TemplateCommand, config: &Config) -> anyhow::Result<()> {
    match command {
        TemplateCommand::Import { name, rootfs, cpu, memory_mib, disk_mib, .. } => {
            if !(1..=32).contains(&cpu) || memory_mib < 128 || disk_mib < 64 {
                bail!("a template needs 1 to 32 CPUs, at least 128 MiB of memory and 64 MiB of disk");
            }
            let max_processes = config.node.max_processes;
            let resources = Resources { vcpus: cpu, memory_mib, disk_mib, max_processes };
            import(config, &name, &rootfs, resources).await
        }
        TemplateCommand::List { .. } => list(config).await,
    }
}

async fn import(config: &Config, name: &str, rootfs: &Path, resources: Resources) -> anyhow::Result<()> {
    node::must_be_root()?;
    // The same rule as an id's: lower case, digits, dashes, underscores.
    if name.parse::<TemplateId>().is_err() {
        bail!("{name:?} is not a template name: use a-z, 0-9, - and _");
    }
    let started = Instant::now();
    let file = File::open(rootfs).with_context(|| format!("cannot open {}", rootfs.display()))?;
    let disks = node::open_disks(config).await?;
    let build = BuildId::random();
    let imported = {
        let disks = disks.clone();
        tokio::task::spawn_blocking(move || -> anyhow::Result<_> {
            let reader = BufReader::with_capacity(1 << 20, file);
            let imported = disks.import_tar(reader, ImportLimits::default(), &mut show_progress())?;
            let image = ImageConfig { env: BTreeMap::new(), ..ImageConfig::default() };
            disks.register_image(build, image, vec![imported.layer.clone()])?;
            disks.ensure_template(resources.disk_mib)?;
            Ok(imported)
        })
        .await?
        .with_context(|| format!("cannot import {}", rootfs.display()))?
    };
    let template = register(config, name, build, resources).await?;
    println!(
        "template {name} ({template}): {} files, {} MiB, build {build}, {:.1} s",
        imported.entries,
        imported.bytes >> 20,
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Every second one line, or one that is overwritten on a terminal.
fn show_progress() -> impl FnMut(ImportProgress) {
    let mut last = Instant::now();
    let end = if std::io::stderr().is_terminal() { "\r" } else { "\n" };
    move |progress| {
        if last.elapsed().as_secs() >= 1 {
            last = Instant::now();
            eprint!("importing: {} files, {} MiB{end}", progress.entries, progress.archive_bytes >> 20);
        }
    }
}

async fn register(
    config: &Config,
    name: &str,
    build: BuildId,
    resources: Resources,
) -> anyhow::Result<TemplateId> {
    let store = SqliteStore::open(&config.database()).await?;
    let now = Clock::system().now();
    let team = store.default_team(now).await?;
    let template = match store.find_template(team.id, name).await {
        Ok(found) => Template { updated_at: now, ..found },
        Err(StoreError::NotFound { .. }) => Template {
            id: TemplateId::random(),
            team: team.id,
            names: vec![name.to_owned()],
            public: true,
            created_at: now,
            updated_at: now,
            spawn_count: 0,
            last_spawned_at: None,
            build_count: 0,
        },
        Err(error) => return Err(error.into()),
    };
    let id = template.id.clone();
    store.upsert_template(template).await?;
    let record = TemplateBuild {
        id: build,
        template: id.clone(),
        status: "ready".to_owned(),
        resources,
        envd_version: hutch_types::ENVD_VERSION.to_owned(),
        created_at: now,
        updated_at: now,
        finished_at: Some(now),
    };
    store.insert_build(record, &[DEFAULT_TAG.to_owned()]).await?;
    store.close().await;
    Ok(id)
}

async fn list(config: &Config) -> anyhow::Result<()> {
    let store = SqliteStore::open(&config.database()).await?;
    let team = store.default_team(Clock::system().now()).await?;
    println!(
        "{:<24} {:<22} {:>5} {:>11} {:>10} {:>8}",
        "NAME", "ID", "CPUS", "MEMORY MIB", "DISK MIB", "STARTS"
    );
    for template in store.templates(team.id).await? {
        let resources = store.build_by_tag(&template.id, DEFAULT_TAG).await.map(|b| b.resources);
        let show = |f: fn(&Resources) -> u32| {
            resources.as_ref().map_or_else(|_| "-".to_owned(), |r| f(r).to_string())
        };
        println!(
            "{:<24} {:<22} {:>5} {:>11} {:>10} {:>8}",
            template.names.first().map_or("", String::as_str),
            template.id,
            show(|r| r.vcpus),
            show(|r| r.memory_mib),
            show(|r| r.disk_mib),
            template.spawn_count,
        );
    }
    store.close().await;
    Ok(())
}
