//! Removing an instance from whatever state it is in, known by its name alone. Every step finds out for itself whether
//! there is anything to do, so that removing twice, or half an instance, works. Once nothing runs any more, a step that fails
//! does not keep the others from being done.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hutch_net::Slot;
use hutch_runtime::RuntimeError;
use hutch_types::InstanceId;

use crate::pid1::Pid1;
use crate::runtime::{Inner, blocking, disk_error, remove_dir};
use crate::start::net_error;

/// A killed process that does not end within this time hangs in the kernel; then killing fails and can be tried again.
const KILL_LIMIT: Duration = Duration::from_secs(10);

const RELEASE_LIMIT: Duration = Duration::from_secs(10);

impl Inner {
    /// Ends everything of the instance `name` and removes what belongs to it. `name` may be that of a directory which no
    /// instance of ours has. Not cancellation safe.
    ///
    /// # Errors
    /// The first step that failed.
    pub async fn remove(
        self: &Arc<Self>,
        name: &str,
        pid1: Option<&Arc<Pid1>>,
        slot: Option<&Slot>,
    ) -> Result<(), RuntimeError> {
        self.end_processes(name, pid1).await?;
        let (container, disk, slot) =
            tokio::join!(self.remove_container(name), self.remove_disk(name), self.release(slot));
        container.and(disk).and(slot)?;
        // Last: as long as it is there, the next adoption tries again.
        let dir = self.paths.instance(name);
        match tokio::fs::remove_dir_all(&dir).await {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(RuntimeError::failed("remove the instance's directory", error))
            }
            _ => Ok(()),
        }
    }

    /// Killing the first process takes everything in its pid namespace along. What is left in the cgroup then is a runc
    /// that was interrupted.
    pub async fn end_processes(&self, name: &str, pid1: Option<&Arc<Pid1>>) -> Result<(), RuntimeError> {
        let (cgroups, name, pid1) = (self.cgroups.clone(), name.to_owned(), pid1.cloned());
        blocking("end the processes", move || {
            let end = || -> io::Result<()> {
                if let Some(pid1) = &pid1 {
                    pid1.kill()?;
                }
                cgroups.kill_all(&name, KILL_LIMIT)?;
                match pid1 {
                    Some(pid1) if !pid1.wait_blocking(KILL_LIMIT) => Err(io::ErrorKind::TimedOut.into()),
                    _ => Ok(()),
                }
            };
            end().map_err(|e| RuntimeError::failed("end the processes", e))
        })
        .await
    }

    /// Its state and its cgroups. runc may not know the container any more, or not understand its own half-written state;
    /// both are removed regardless of it.
    pub async fn remove_container(&self, name: &str) -> Result<(), RuntimeError> {
        let dir = self.paths.instance(name);
        let log = if dir.is_dir() { dir.join("delete.log") } else { "/dev/null".into() };
        if let Err(error) = self.flavor.delete(name, &log).await {
            tracing::warn!(
                instance = name,
                error = error.chain(),
                "the runtime could not delete a container"
            );
        }
        let (cgroups, state, name) = (self.cgroups.clone(), self.paths.state.join(name), name.to_owned());
        blocking("remove the container", move || {
            remove_dir(&state).map_err(|e| RuntimeError::failed("remove the container's state", e))?;
            cgroups.remove(&name).map_err(|e| RuntimeError::failed("remove the cgroups", e))
        })
        .await
    }

    async fn remove_disk(&self, name: &str) -> Result<(), RuntimeError> {
        // Disks have the names of instances; what else there is, the store sweeps itself.
        let Ok(id) = name.parse::<InstanceId>() else { return Ok(()) };
        let disks = self.disks.clone();
        blocking("destroy the disk", move || disks.destroy_disk(&id).map_err(disk_error("destroy the disk")))
            .await
    }

    pub async fn release(&self, slot: Option<&Slot>) -> Result<(), RuntimeError> {
        let Some(slot) = slot else { return Ok(()) };
        match tokio::time::timeout(RELEASE_LIMIT, self.net.release(slot)).await {
            Ok(result) => result.map_err(net_error("release the slot")),
            Err(_) => Err(crate::command::timed_out("release the slot", RELEASE_LIMIT)),
        }
    }
}
