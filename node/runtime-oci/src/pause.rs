//! Saving a running instance.
//!
//! ```text
//! freeze -> cut outside connections -> save memory -> write out the disk -> saved.json | kill -> remove container -> close disk
//!           until here a failure, or the end of the daemon, leaves it running          | from here on it is paused
//! ```

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_disk::InstanceDisk;
use hutch_net::Slot;
use hutch_runtime::{InstanceSpec, RuntimeError};
use hutch_types::{InstanceId, PauseMode};

use crate::flavor::Images;
use crate::inside;
use crate::lxcfs::Lxcfs;
use crate::pid1::Pid1;
use crate::record::Saved;
use crate::runtime::{Inner, blocking, disk_error, remove_dir};

/// A process in the middle of a write to a slow disk only freezes when that is done.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);

/// Addresses of earlier lives that are remembered. Who still holds the end of a connection from longer ago cannot be restored.
const MOST_FORMER: usize = 64;

/// Its folder in the instance's directory.
const MEMORY: &str = "memory";

/// The configuration of the container whose memory is saved, kept as it was.
pub(crate) const SAVED_CONFIG: &str = "config.saved.json";

/// What a pause needs to know of an instance.
#[derive(Debug, Clone)]
pub(crate) struct Pausing {
    pub spec: InstanceSpec,
    pub labels: BTreeMap<String, String>,
    pub slot: Slot,
    /// Addresses that it had in earlier lives.
    pub former: Vec<Ipv4Addr>,
    pub disk: InstanceDisk,
    pub pid1: Arc<Pid1>,
}

impl Inner {
    /// The trait's documentation applies. Not cancellation safe.
    pub async fn pause(self: &Arc<Self>, what: Pausing, mode: PauseMode) -> Result<(), RuntimeError> {
        let id = what.spec.id.clone();
        let clock = Instant::now();
        if let Err(error) = self.save(&what, mode).await {
            self.go_on(&id, &what.pid1).await;
            return Err(error);
        }
        let saved_ms = clock.elapsed().as_secs_f64() * 1e3;
        if let Err(error) = self.finish_pause(&id, Some(&what.pid1), Some(&what.slot)).await {
            // It is paused all the same. Resuming, discarding or the next adoption finish this.
            tracing::error!(instance = %id, error = error.chain(), "something is left of a paused instance");
        }
        let all_ms = clock.elapsed().as_secs_f64() * 1e3;
        tracing::debug!(instance = %id, %mode, saved_ms, all_ms, "paused an instance");
        Ok(())
    }

    async fn save(self: &Arc<Self>, what: &Pausing, mode: PauseMode) -> Result<(), RuntimeError> {
        let name = what.spec.id.as_str().to_owned();
        let criu = match (mode, &self.criu) {
            (PauseMode::Filesystem, _) => None,
            (PauseMode::Full, Some(criu)) => Some(criu),
            (PauseMode::Full, None) => {
                return Err(RuntimeError::failed(
                    "save the memory",
                    io::Error::from(io::ErrorKind::Unsupported),
                ));
            }
        };
        let dir = self.paths.instance(&name);
        let (cgroups, frozen) = (self.cgroups.clone(), name.clone());
        blocking("freeze the processes", move || {
            cgroups.freeze(&frozen, FREEZE_LIMIT).map_err(|e| RuntimeError::failed("freeze the processes", e))
        })
        .await?;
        if let Some(criu) = criu {
            // What is not cut could only be restored on the same slot, and nobody waits at the other end by then.
            if let Err(error) = self.net.cut_connections(what.pid1.pid()).await {
                tracing::warn!(instance = name, %error, "connections to the outside stay");
            }
            inside::unmount_views(&what.pid1, Lxcfs::targets())
                .await
                .map_err(|e| RuntimeError::failed("unmount lxcfs inside", e))?;
            let images = images(&dir);
            make_images(&images)
                .and_then(|()| fs::copy(dir.join("config.json"), dir.join(SAVED_CONFIG)).map(drop))
                .map_err(|e| RuntimeError::failed("make the folder for the memory", e))?;
            self.flavor.checkpoint(criu, &name, &images, &dir.join("checkpoint.log")).await?;
        }
        let mut former = what.former.clone();
        former.retain(|address| *address != what.slot.address);
        former.push(what.slot.address);
        former.drain(..former.len().saturating_sub(MOST_FORMER));
        let saved = Saved::new(mode, what.spec.clone(), what.labels.clone(), former);
        let disk = what.disk.clone();
        blocking("write out what is saved", move || {
            disk.sync().map_err(disk_error("write out the disk"))?;
            sync_all_in(&dir).map_err(|e| RuntimeError::failed("write out the memory", e))?;
            saved.write(&dir).map_err(|e| RuntimeError::failed("record that it is saved", e))
        })
        .await
    }

    /// After a pause that failed: it runs on.
    async fn go_on(&self, id: &InstanceId, pid1: &Pid1) {
        if let Err(error) = inside::mount_views(pid1, self.lxcfs.views().1).await {
            tracing::warn!(instance = %id, %error, "lxcfs could not be mounted again");
        }
        let (cgroups, name, dir) =
            (self.cgroups.clone(), id.as_str().to_owned(), self.paths.instance(id.as_str()));
        let thawed = blocking("let the processes go on", move || {
            forget_memory(&dir);
            cgroups.thaw(&name).map_err(|e| RuntimeError::failed("let the processes go on", e))
        });
        if let Err(error) = thawed.await {
            tracing::error!(instance = %id, error = error.chain(), "an instance that could not be paused stays frozen");
        }
    }

    /// Removes everything of a saved instance but what is saved. May be called again, from whatever state.
    pub async fn finish_pause(
        self: &Arc<Self>,
        id: &InstanceId,
        pid1: Option<&Arc<Pid1>>,
        slot: Option<&Slot>,
    ) -> Result<(), RuntimeError> {
        self.end_processes(id.as_str(), pid1).await?;
        let (container, disk, slot) =
            tokio::join!(self.remove_container(id.as_str()), self.close_disk(id), self.release(slot));
        container.and(disk).and(slot)
    }

    async fn close_disk(&self, id: &InstanceId) -> Result<(), RuntimeError> {
        let (disks, id) = (self.disks.clone(), id.clone());
        blocking("close the disk", move || disks.close_disk(&id).map_err(disk_error("close the disk"))).await
    }
}

/// Where the memory of the instance with this directory is saved.
pub(crate) fn images(dir: &Path) -> Images {
    Images { dir: dir.join(MEMORY), work: dir.join("criu") }
}

/// Deletes the memory that was saved. What cannot be deleted now goes with the instance.
pub(crate) fn forget_memory(dir: &Path) {
    let images = images(dir);
    for folder in [&images.dir, &images.work] {
        if let Err(error) = remove_dir(folder) {
            tracing::warn!(%error, folder = %folder.display(), "saved memory could not be deleted");
        }
    }
}

fn make_images(images: &Images) -> io::Result<()> {
    remove_dir(&images.dir)?;
    remove_dir(&images.work)?;
    // Restored processes read them with their own ids, from a descriptor: that they do not get through the directories
    // above is no hindrance.
    DirBuilder::new().mode(0o755).create(&images.dir)?;
    DirBuilder::new().mode(0o700).create(&images.work)
}

/// Makes the files of an instance's directory survive a crash of the host, one level deep.
fn sync_all_in(dir: &Path) -> io::Result<()> {
    let memory = images(dir).dir;
    for folder in [dir, &memory] {
        let entries = match fs::read_dir(folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            other => other?,
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                File::open(entry.path())?.sync_all()?;
            }
        }
        File::open(folder)?.sync_all()?;
    }
    Ok(())
}
