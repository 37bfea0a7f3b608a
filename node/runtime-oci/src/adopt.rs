//! After a restart: taking over the instances that run, removing completely what is left of others.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs;
use std::path::Path;
use std::sync::Arc;

use futures::StreamExt;
use hutch_runtime::{Adoption, Instance, LostInstance, PausedInstance, RuntimeError};
use hutch_types::InstanceId;

use crate::instance::OciInstance;
use crate::pause::forget_memory;
use crate::pid1::Pid1;
use crate::record::{self, Record, Saved};
use crate::runtime::{Inner, blocking, disk_error};
use crate::start::net_error;

/// Instances that are looked at or removed at the same time.
const AT_ONCE: usize = 8;

/// What there is of an instance.
enum Found {
    Running(Arc<OciInstance>),
    Paused(PausedInstance),
}

impl Inner {
    /// The trait's documentation applies.
    pub async fn adopt(self: &Arc<Self>) -> Result<Adoption, RuntimeError> {
        let mut adoption = Adoption::default();
        let mut adopted: Vec<Arc<OciInstance>> = Vec::new();
        let ids: Vec<InstanceId> =
            names(&self.paths.instances)?.iter().filter_map(|name| name.parse().ok()).collect();
        let mut looked_at = futures::stream::iter(ids)
            .map(|id| async move {
                let found = self.take_over(&id).await;
                (id, found)
            })
            .buffer_unordered(AT_ONCE);
        while let Some((id, found)) = looked_at.next().await {
            match found {
                Ok(Found::Running(instance)) => adopted.push(instance),
                Ok(Found::Paused(instance)) => adoption.paused.push(instance),
                Err(reason) => {
                    let labels = record::read_labels(&self.paths.instance(id.as_str())).unwrap_or_default();
                    adoption.lost.push(LostInstance { id, labels, reason });
                }
            }
        }
        let running = adopted.iter().map(|instance| &instance.spec().id);
        let paused = adoption.paused.iter().map(|instance| &instance.spec.id);
        let kept: HashSet<InstanceId> = running.chain(paused).cloned().collect();
        let slots: HashSet<u32> = adopted.iter().map(|instance| instance.slot().index).collect();
        self.remove_all_but(&kept).await?;
        self.sweep(kept, &slots).await;
        adoption.adopted = adopted.into_iter().map(|instance| instance as Arc<dyn Instance>).collect();
        Ok(adoption)
    }

    /// What there is of an instance, or why it cannot be kept, in one sentence.
    async fn take_over(self: &Arc<Self>, id: &InstanceId) -> Result<Found, String> {
        let dir = self.paths.instance(id.as_str());
        match Saved::read(&dir).map_err(|e| format!("what is saved of it cannot be read: {e}"))? {
            Some(saved) => {
                // A daemon may have died right after saving it, or while it resumed it.
                if let Err(error) = self.finish_pause(id, None, None).await {
                    let error = error.chain();
                    tracing::error!(instance = %id, error, "something is left of a paused instance");
                }
                let (spec, labels, mode) = (saved.spec, saved.labels, saved.mode);
                Ok(Found::Paused(PausedInstance { spec, labels, mode }))
            }
            None => self.take_over_running(id, &dir).await.map(Found::Running),
        }
    }

    async fn take_over_running(
        self: &Arc<Self>,
        id: &InstanceId,
        dir: &Path,
    ) -> Result<Arc<OciInstance>, String> {
        let record = Record::read(dir).map_err(|e| format!("its record cannot be read: {e}"))?;
        let labels: BTreeMap<_, _> =
            record::read_labels(dir).map_err(|e| format!("its labels cannot be read: {e}"))?;
        if record.spec.id != *id {
            return Err("its record is another instance's".to_owned());
        }
        let gone = || "its first process ended while no daemon watched".to_owned();
        let pid1 = Pid1::open(record.pid).map_err(|_| gone())?;
        let is_ours = pid1.start_ticks() == record.start_ticks
            && !pid1.is_gone()
            && pid1.cgroups().is_ok_and(|text| self.cgroups.holds(id.as_str(), &text));
        if !is_ours {
            return Err(gone());
        }
        // A daemon that died while it saved the instance left it frozen.
        self.cgroups.thaw(id.as_str()).map_err(|e| format!("its processes cannot go on: {e}"))?;
        forget_memory(dir);
        let (disks, disk_id) = (self.disks.clone(), id.clone());
        let disk =
            blocking("open the disk", move || disks.open_disk(&disk_id).map_err(disk_error("open the disk")))
                .await
                .map_err(|e| e.chain())?;
        let slot = self.net.adopt(record.slot).await.map_err(|e| net_error("adopt the slot")(e).chain())?;
        Ok(OciInstance::new(self.clone(), record.spec, slot, record.former, disk, pid1, labels))
    }

    /// Removes everything that has the name of an instance, or could have, and is not kept: directories, containers and
    /// cgroups, whichever of them there are.
    async fn remove_all_but(self: &Arc<Self>, kept: &HashSet<InstanceId>) -> Result<(), RuntimeError> {
        let mut found: BTreeSet<String> = self.cgroups.names();
        found.extend(names(&self.paths.instances)?);
        found.extend(names(&self.paths.state)?);
        let is_kept = |name: &String| name.parse().is_ok_and(|id: InstanceId| kept.contains(&id));
        futures::stream::iter(found.into_iter().filter(|name| !is_kept(name)))
            .for_each_concurrent(AT_ONCE, |name| async move {
                if let Err(error) = self.remove(&name, None, None).await {
                    // A process that hangs in the kernel must not keep the daemon from starting.
                    let error = error.chain();
                    tracing::error!(instance = name, error, "a leftover stays until the next adoption");
                }
            })
            .await;
        Ok(())
    }

    /// What other crates keep: disks and links.
    async fn sweep(&self, kept: HashSet<InstanceId>, slots: &HashSet<u32>) {
        let disks = self.disks.clone();
        let swept =
            blocking("sweep disks", move || disks.sweep(&kept).map_err(disk_error("sweep disks"))).await;
        match swept {
            Ok(swept) => tracing::debug!(?swept, "swept disks"),
            Err(error) => tracing::error!(error = error.chain(), "some disks stay until the next adoption"),
        }
        match self.net.sweep(slots).await.map_err(net_error("sweep slots")) {
            Ok(links) => tracing::debug!(links, "swept slots"),
            Err(error) => tracing::error!(error = error.chain(), "some links stay until the next adoption"),
        }
    }
}

/// The names in a directory.
fn names(dir: &Path) -> Result<Vec<String>, RuntimeError> {
    let read = || -> std::io::Result<Vec<String>> {
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned())).collect()
    };
    read().map_err(|e| RuntimeError::failed(format!("list {}", dir.display()), e))
}
