//! The runtime itself: what is shared by all instances.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use hutch_disk::{DiskError, DiskStore};
use hutch_net::Network;
use hutch_runtime::{Adoption, Capabilities, Instance, InstanceSpec, Runtime, RuntimeError};
use hutch_types::supervise::Supervisor;
use hutch_types::{BuildId, InstanceId, Isolation, PauseMode, Resources};
use tokio::sync::oneshot;

use crate::cgroup::{Cgroups, Layout};
use crate::config::{OciConfig, Paths};
use crate::cpus::Cpus;
use crate::flavor::Flavor;
use crate::host::{HostLimits, raise_shared_tables};
use crate::lxcfs::{self, Lxcfs};
use crate::{criu, guest};

/// Instances as OCI containers. Clones are the same runtime.
#[derive(Debug, Clone)]
pub struct OciRuntime {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub paths: Paths,
    pub flavor: Flavor,
    /// The guest build that new instances boot.
    pub guest: PathBuf,
    /// Saves and restores memory; without it that cannot be done.
    pub criu: Option<PathBuf>,
    pub disks: DiskStore,
    pub net: Network,
    pub cgroups: Cgroups,
    pub host: HostLimits,
    pub lxcfs: Lxcfs,
    /// Those that instances share.
    pub cpus: Cpus,
    /// Detected once: it does not change while the host runs.
    pub limits_swap: bool,
    pub supervisor: Supervisor,
}

impl OciRuntime {
    /// Opens the data directory and installs the guest build. Does not touch instances: [`Runtime::adopt`] does.
    ///
    /// # Errors
    /// [`RuntimeError::Failed`] when a directory cannot be made, the guest build is incomplete, or there are no cgroups.
    pub async fn open(config: OciConfig, supervisor: &Supervisor) -> Result<Self, RuntimeError> {
        let own = supervisor.clone();
        let runtime = blocking("open the container runtime", move || {
            let data_dir = config.data_dir;
            make_dir(&data_dir)?;
            // runc resolves relative paths from the bundle.
            let data_dir = fs::canonicalize(&data_dir)
                .map_err(|e| RuntimeError::failed(format!("resolve {}", data_dir.display()), e))?;
            let paths = Paths::below(&data_dir);
            for dir in [&paths.instances, &paths.guest, &paths.state] {
                make_dir(dir)?;
            }
            // Restored containers get through here with an unprivileged uid.
            fs::set_permissions(&paths.guest, fs::Permissions::from_mode(0o711))
                .map_err(|e| RuntimeError::failed(format!("set the mode of {}", paths.guest.display()), e))?;
            let guest = guest::install(&config.guest_dir, &paths.guest).map_err(|e| {
                RuntimeError::failed(format!("install the guest build in {}", config.guest_dir.display()), e)
            })?;
            guest::publish(&paths.guest, &paths.guest_mount)
                .map_err(|e| RuntimeError::failed(format!("mount {}", paths.guest_mount.display()), e))?;
            let guest = paths.guest_mount.join(guest.file_name().unwrap_or_default());
            criu::write_settings(&paths.criu_settings)
                .map_err(|e| RuntimeError::failed("write CRIU's settings", e))?;
            raise_shared_tables();
            let layout = Layout::detect().map_err(|e| RuntimeError::failed("find the host's cgroups", e))?;
            let limits_swap = layout.limits_swap();
            let can_pin = config.pin_cpus && layout.controllers().iter().any(|name| name == "cpuset");
            let cpus = if can_pin { Cpus::detect() } else { Cpus::unrestricted() };
            let lxcfs = Lxcfs::new(&config.lxcfs, paths.lxcfs.clone());
            Ok(Self {
                inner: Arc::new(Inner {
                    flavor: Flavor::container(config.runc, paths.state.clone()),
                    paths,
                    guest,
                    criu: config.criu,
                    disks: config.disks,
                    net: config.net,
                    cgroups: Cgroups::new(layout, config.cgroup_parent),
                    host: HostLimits::detect(),
                    lxcfs,
                    cpus,
                    limits_swap,
                    supervisor: own,
                }),
            })
        })
        .await?;
        lxcfs::begin(&runtime.inner, supervisor).await;
        Ok(runtime)
    }

    /// Removes the cgroup that holds those of the instances, ends lxcfs and unmounts the guest builds. For when this host is
    /// to run no more instances: it fails while there are any.
    pub async fn close(&self) -> Result<(), RuntimeError> {
        self.inner.lxcfs.close().await?;
        let (cgroups, guest) = (self.inner.cgroups.clone(), self.inner.paths.guest_mount.clone());
        blocking("remove the parent cgroup", move || {
            cgroups.remove_parent().map_err(|e| RuntimeError::failed("remove the parent cgroup", e))?;
            guest::withdraw(&guest)
                .map_err(|e| RuntimeError::failed(format!("unmount {}", guest.display()), e))
        })
        .await
    }
}

#[async_trait]
impl Runtime for OciRuntime {
    fn isolation(&self) -> Isolation {
        self.inner.flavor.isolation
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            adopt: true,
            limits: true,
            network_policy: true,
            memory: self.inner.criu.is_some(),
            isolated: true,
        }
    }

    async fn builds(&self) -> Result<Vec<BuildId>, RuntimeError> {
        let disks = self.inner.disks.clone();
        blocking("list images", move || {
            let images = disks.images().map_err(disk_error("list images"))?;
            Ok(images.into_iter().map(|image| image.build_id).collect())
        })
        .await
    }

    async fn start(&self, spec: InstanceSpec) -> Result<Arc<dyn Instance>, RuntimeError> {
        let inner = self.inner.clone();
        let (tx, rx) = oneshot::channel();
        // In a task of its own: a caller that goes away must not leave half an instance, nor a whole one.
        self.inner.supervisor.spawn("start instance", async move {
            let result = inner.start(spec).await;
            if let Err(Ok(unwanted)) = tx.send(result)
                && let Err(error) = unwanted.kill().await
            {
                let id = &unwanted.spec().id;
                tracing::error!(instance = %id, error = error.chain(), "an unwanted instance is left");
            }
        });
        match rx.await {
            Ok(result) => result.map(|instance| instance as Arc<dyn Instance>),
            Err(error) => Err(RuntimeError::failed("start an instance", error)),
        }
    }

    async fn resume(&self, id: &InstanceId, mode: PauseMode) -> Result<Arc<dyn Instance>, RuntimeError> {
        let (inner, id) = (self.inner.clone(), id.clone());
        let (tx, rx) = oneshot::channel();
        // As for a start; but nobody's work is thrown away here: it is paused again.
        self.inner.supervisor.spawn("resume instance", async move {
            let result = inner.resume(&id, mode).await;
            if let Err(Ok(unwanted)) = tx.send(result)
                && let Err(error) = unwanted.pause(mode).await
            {
                tracing::error!(instance = %id, error = error.chain(), "an instance that nobody wants runs");
            }
        });
        match rx.await {
            Ok(result) => result.map(|instance| instance as Arc<dyn Instance>),
            Err(error) => Err(RuntimeError::failed("resume an instance", error)),
        }
    }

    async fn discard(&self, id: &InstanceId) -> Result<(), RuntimeError> {
        let (inner, id) = (self.inner.clone(), id.clone());
        let (tx, rx) = oneshot::channel();
        self.inner.supervisor.spawn("discard instance", async move {
            if let Err(Err(error)) = tx.send(inner.remove(id.as_str(), None, None).await) {
                tracing::error!(instance = %id, error = error.chain(), "could not discard an instance");
            }
        });
        rx.await.unwrap_or_else(|error| Err(RuntimeError::failed("discard the instance", error)))
    }

    async fn adopt(&self) -> Result<Adoption, RuntimeError> {
        self.inner.adopt().await
    }

    /// Formats the disk image that disks of this size are copied from; nothing else is worth making ahead.
    async fn prepare(
        &self,
        _build: BuildId,
        resources: Resources,
        _count: usize,
    ) -> Result<(), RuntimeError> {
        let disks = self.inner.disks.clone();
        blocking("prepare a disk", move || {
            disks.ensure_template(resources.disk_mib).map_err(disk_error("prepare a disk"))?;
            Ok(())
        })
        .await
    }
}

/// Runs what blocks on a thread where it may.
pub(crate) async fn blocking<T: Send + 'static>(
    attempted: &str,
    work: impl FnOnce() -> Result<T, RuntimeError> + Send + 'static,
) -> Result<T, RuntimeError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(RuntimeError::failed(attempted, error)),
    }
}

/// Says what was attempted, and keeps what callers act on.
pub(crate) fn disk_error(attempted: &str) -> impl Fn(DiskError) -> RuntimeError {
    move |error| match error {
        DiskError::NoImage(build) => RuntimeError::NoImage(build),
        DiskError::Exhausted { what } => RuntimeError::Exhausted { what },
        other => RuntimeError::failed(attempted, other),
    }
}

/// Makes a directory that only root can look into, and its parents.
pub(crate) fn make_dir(dir: &Path) -> Result<(), RuntimeError> {
    let make = || -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
        fs::set_permissions(dir, fs::Permissions::from_mode(0o700))
    };
    make().map_err(|e| RuntimeError::failed(format!("make {}", dir.display()), e))
}

/// Removes a directory and what is in it. That it is not there is no error.
pub(crate) fn remove_dir(dir: &Path) -> io::Result<()> {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
