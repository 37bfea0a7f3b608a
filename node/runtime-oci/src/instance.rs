//! One running container.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use async_trait::async_trait;
use hutch_disk::InstanceDisk;
use hutch_net::Slot;
use hutch_runtime::{ExitCause, Instance, InstanceSpec, InstanceStats, RuntimeError};
use hutch_types::{NetworkPolicy, PauseMode};
use parking_lot::RwLock;
use tokio::sync::{Mutex, oneshot, watch};

use crate::config::ENVD_PORT;
use crate::inside;
use crate::pause::Pausing;
use crate::pid1::Pid1;
use crate::record;
use crate::runtime::{Inner, blocking, disk_error};
use crate::start::net_error;

#[derive(Debug)]
pub(crate) struct OciInstance {
    runtime: Arc<Inner>,
    spec: InstanceSpec,
    slot: Slot,
    /// Addresses that it had in earlier lives.
    former: Vec<Ipv4Addr>,
    disk: InstanceDisk,
    pid1: Arc<Pid1>,
    labels: RwLock<BTreeMap<String, String>>,
    /// Serialises writers of the labels file.
    label_writer: Arc<Mutex<()>>,
    /// What the end of its first process means.
    on_exit: Arc<parking_lot::Mutex<ExitCause>>,
    /// How it ended, once it has.
    ended: watch::Receiver<Option<ExitCause>>,
    /// Whether nothing is left of it. Held while removing.
    is_removed: Arc<Mutex<bool>>,
}

impl OciInstance {
    /// A handle of a running instance. Starts watching for its end.
    pub fn new(
        runtime: Arc<Inner>,
        spec: InstanceSpec,
        slot: Slot,
        former: Vec<Ipv4Addr>,
        disk: InstanceDisk,
        pid1: Pid1,
        labels: BTreeMap<String, String>,
    ) -> Arc<Self> {
        let pid1 = Arc::new(pid1);
        let on_exit = Arc::new(parking_lot::Mutex::new(ExitCause::Exited));
        let ended = watch_for_end(&runtime, pid1.clone(), on_exit.clone());
        Arc::new(Self {
            runtime,
            spec,
            slot,
            former,
            disk,
            pid1,
            labels: RwLock::new(labels),
            label_writer: Arc::default(),
            on_exit,
            ended,
            is_removed: Arc::default(),
        })
    }

    pub fn slot(&self) -> &Slot {
        &self.slot
    }
}

fn killed() -> std::io::Error {
    std::io::Error::other("it was killed")
}

/// Its task holds nothing but the pidfd: an instance that nobody has a handle of goes on.
fn watch_for_end(
    runtime: &Inner,
    pid1: Arc<Pid1>,
    on_exit: Arc<parking_lot::Mutex<ExitCause>>,
) -> watch::Receiver<Option<ExitCause>> {
    let (tx, rx) = watch::channel(None);
    let supervisor = runtime.supervisor.clone();
    runtime.supervisor.spawn("watch instance", async move {
        tokio::select! {
            gone = pid1.gone() => {
                if let Err(error) = gone {
                    // Without a watch it counts as ended: its owner then kills it, which is right in every case.
                    tracing::error!(%error, pid = pid1.pid(), "cannot watch an instance");
                }
                tx.send_replace(Some(*on_exit.lock()));
            }
            () = supervisor.stopping() => {}
        }
    });
    rx
}

#[async_trait]
impl Instance for OciInstance {
    fn spec(&self) -> &InstanceSpec {
        &self.spec
    }

    fn address(&self) -> IpAddr {
        self.slot.address.into()
    }

    fn envd_port(&self) -> u16 {
        ENVD_PORT
    }

    async fn set_labels(&self, labels: BTreeMap<String, String>) -> Result<(), RuntimeError> {
        let writer = self.label_writer.clone().lock_owned().await;
        let dir = self.runtime.paths.instance(self.spec.id.as_str());
        let written = labels.clone();
        blocking("write the labels", move || {
            // Held by the write itself, which goes on when the caller goes away.
            let _writer = writer;
            record::write_labels(&dir, &written).map_err(|e| RuntimeError::failed("write the labels", e))
        })
        .await?;
        *self.labels.write() = labels;
        Ok(())
    }

    fn labels(&self) -> BTreeMap<String, String> {
        self.labels.read().clone()
    }

    async fn set_hostname(&self, name: &str) -> Result<(), RuntimeError> {
        inside::set_hostname(&self.pid1, name).await.map_err(|e| RuntimeError::failed("set the host name", e))
    }

    async fn set_network(&self, policy: &NetworkPolicy) -> Result<(), RuntimeError> {
        self.runtime.net.set_policy(&self.slot, policy).await.map_err(net_error("set the network policy"))
    }

    async fn stats(&self) -> Result<InstanceStats, RuntimeError> {
        let (cgroups, disk, id) = (self.runtime.cgroups.clone(), self.disk.clone(), self.spec.id.clone());
        blocking("read the figures", move || {
            let used = cgroups
                .stats(id.as_str())
                .map_err(|e| RuntimeError::failed("read the cgroups' figures", e))?;
            let space = disk.usage().map_err(disk_error("read the disk's figures"))?;
            Ok(InstanceStats {
                cpu_usage_us: used.cpu_usage_us,
                memory_used_bytes: used.memory_used_bytes,
                memory_cache_bytes: used.memory_cache_bytes,
                disk_used_bytes: space.used_bytes,
                disk_total_bytes: space.total_bytes,
                processes: used.processes,
            })
        })
        .await
    }

    async fn pause(&self, mode: PauseMode) -> Result<(), RuntimeError> {
        let (runtime, is_removed, on_exit) =
            (self.runtime.clone(), self.is_removed.clone(), self.on_exit.clone());
        let what = Pausing {
            spec: self.spec.clone(),
            labels: self.labels(),
            slot: self.slot.clone(),
            former: self.former.clone(),
            disk: self.disk.clone(),
            pid1: self.pid1.clone(),
        };
        let (tx, rx) = oneshot::channel();
        // In a task of its own: a caller that goes away must not leave it half paused. A kill waits for this and then
        // finds nothing to do, since what is paused is discarded and not killed; it ends the processes at once, though,
        // and then this fails.
        self.runtime.supervisor.spawn("pause instance", async move {
            let mut is_removed = is_removed.lock().await;
            if *is_removed || *on_exit.lock() == ExitCause::Killed {
                tx.send(Err(RuntimeError::failed("pause the instance", killed()))).unwrap_or_default();
                return;
            }
            *on_exit.lock() = ExitCause::Paused;
            let (id, pid1) = (what.spec.id.clone(), what.pid1.clone());
            let mut result = runtime.pause(what, mode).await;
            if result.is_ok() && *on_exit.lock() == ExitCause::Killed {
                // The kill came while it was saved, and wants nothing to be left.
                let removed = runtime.remove(id.as_str(), Some(&pid1), None).await;
                result = removed.and_then(|()| Err(RuntimeError::failed("pause the instance", killed())));
                *is_removed = true;
            }
            let mut cause = on_exit.lock();
            match &result {
                Ok(()) => *is_removed = true,
                Err(_) if *cause == ExitCause::Paused => *cause = ExitCause::Exited,
                Err(_) => {}
            }
            drop(cause);
            if let Err(Err(error)) = tx.send(result) {
                tracing::error!(error = error.chain(), "could not pause an instance");
            }
        });
        rx.await.unwrap_or_else(|error| Err(RuntimeError::failed("pause the instance", error)))
    }

    async fn kill(&self) -> Result<(), RuntimeError> {
        *self.on_exit.lock() = ExitCause::Killed;
        // At once, whatever else is going on: `exited` fires now, and the rest can take its time.
        self.pid1.kill().map_err(|e| RuntimeError::failed("kill the first process", e))?;
        let (runtime, is_removed) = (self.runtime.clone(), self.is_removed.clone());
        let (name, pid1, slot) = (self.spec.id.as_str().to_owned(), self.pid1.clone(), self.slot.clone());
        let (tx, rx) = oneshot::channel();
        // In a task of its own: a caller that goes away must not leave half an instance. A second caller waits for the
        // first one's work, and does it again if that failed.
        self.runtime.supervisor.spawn("remove instance", async move {
            let mut is_removed = is_removed.lock().await;
            let result =
                if *is_removed { Ok(()) } else { runtime.remove(&name, Some(&pid1), Some(&slot)).await };
            *is_removed = result.is_ok();
            if let Err(Err(error)) = tx.send(result) {
                tracing::error!(instance = name, error = error.chain(), "could not remove an instance");
            }
        });
        rx.await.unwrap_or_else(|error| Err(RuntimeError::failed("remove the instance", error)))
    }

    async fn exited(&self) -> ExitCause {
        let mut ended = self.ended.clone();
        match ended.wait_for(Option::is_some).await.map(|cause| *cause) {
            Ok(Some(cause)) => cause,
            // The daemon is stopping: nobody watches any more, and the instance goes on.
            _ => std::future::pending().await,
        }
    }
}
