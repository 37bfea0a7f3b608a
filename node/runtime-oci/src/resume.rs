//! Bringing a paused instance back.
//!
//! What was saved is given up when the instance runs, not before: a resume that fails, or a daemon that dies in the middle,
//! leaves it paused as it was.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_disk::InstanceDisk;
use hutch_net::Slot;
use hutch_runtime::RuntimeError;
use hutch_types::{InstanceId, PauseMode};
use rustix::fs::{FileType, Mode, mknodat};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;

use crate::command::timed_out;
use crate::instance::OciInstance;
use crate::pause::{SAVED_CONFIG, forget_memory, images};
use crate::pid1::Pid1;
use crate::record::{Record, Saved};
use crate::runtime::{Inner, blocking, disk_error, remove_dir};
use crate::start::net_error;

/// The hook waits for the link this long.
const HOOK_SECONDS: u32 = 20;
const HOOK_LIMIT: Duration = Duration::from_secs(15);

/// What the hook is told on its standard input, at most.
const STATE_MAX: u64 = 1 << 20;

impl Inner {
    /// The trait's documentation applies. Not cancellation safe.
    pub async fn resume(
        self: &Arc<Self>,
        id: &InstanceId,
        mode: PauseMode,
    ) -> Result<Arc<OciInstance>, RuntimeError> {
        let dir = self.paths.instance(id.as_str());
        let saved = Saved::read(&dir)
            .map_err(|e| RuntimeError::failed("read what is saved", e))?
            .filter(|saved| mode == PauseMode::Filesystem || saved.mode == PauseMode::Full)
            .ok_or_else(|| RuntimeError::NotPaused(id.clone()))?;
        let slot = self.net.acquire().map_err(net_error("reserve a slot"))?;
        match self.bring_back(id, &saved, &slot, mode).await {
            Ok(instance) => Ok(instance),
            Err(error) => {
                if let Err(cleanup) = self.finish_pause(id, None, Some(&slot)).await {
                    tracing::error!(instance = %id, error = cleanup.chain(), "something is left of a resume that failed");
                }
                Err(error)
            }
        }
    }

    async fn bring_back(
        self: &Arc<Self>,
        id: &InstanceId,
        saved: &Saved,
        slot: &Slot,
        mode: PauseMode,
    ) -> Result<Arc<OciInstance>, RuntimeError> {
        let clock = Instant::now();
        let disk = self.reopen_disk(id).await?;
        let (pid1, generation) = match mode {
            // No lxcfs has the number 0.
            PauseMode::Full => (self.restore(id, slot, &saved.former).await?, 0),
            PauseMode::Filesystem => self.boot(&saved.spec, &disk, slot).await?,
        };
        let dir = self.paths.instance(id.as_str());
        let mut record = Record::new(saved.spec.clone(), slot.index, pid1.pid(), pid1.start_ticks());
        if mode == PauseMode::Full {
            record.former.clone_from(&saved.former);
        }
        let former = record.former.clone();
        let labels = saved.labels.clone();
        blocking("record the instance", move || {
            record.write(&dir).map_err(|e| RuntimeError::failed("record the instance", e))?;
            // Now it runs; before, the next daemon would have found it paused.
            Saved::remove(&dir).map_err(|e| RuntimeError::failed("record that it runs", e))?;
            forget_memory(&dir);
            Ok(())
        })
        .await?;
        self.refresh_views(id.as_str(), &pid1, generation).await;
        let ms = clock.elapsed().as_secs_f64() * 1e3;
        tracing::debug!(instance = %id, %mode, ms, "resumed an instance");
        Ok(OciInstance::new(self.clone(), saved.spec.clone(), slot.clone(), former, disk, pid1, labels))
    }

    async fn reopen_disk(&self, id: &InstanceId) -> Result<InstanceDisk, RuntimeError> {
        let (disks, id) = (self.disks.clone(), id.clone());
        blocking("open the disk", move || disks.reopen_disk(&id).map_err(disk_error("open the disk"))).await
    }

    /// Restores memory and processes. They go on once the link is attached: runc calls a hook then, which asks us for it.
    async fn restore(
        self: &Arc<Self>,
        id: &InstanceId,
        slot: &Slot,
        former: &[Ipv4Addr],
    ) -> Result<Pid1, RuntimeError> {
        let former: Vec<Ipv4Addr> = former.iter().copied().filter(|a| *a != slot.address).collect();
        let Some(criu) = &self.criu else {
            return Err(RuntimeError::failed(
                "restore the memory",
                io::Error::from(io::ErrorKind::Unsupported),
            ));
        };
        let dir = self.paths.instance(id.as_str());
        let (bundle, images) = (dir.join("restore"), images(&dir));
        let mut hook = Hook::make(&dir, &bundle).map_err(|e| RuntimeError::failed("make the bundle", e))?;
        let (pid_file, log) = (dir.join("pid"), dir.join("restore.log"));
        let restored = self.flavor.restore(criu, id.as_str(), &bundle, &images, &pid_file, &log);
        tokio::pin!(restored);
        let attached = async {
            let pid = hook.called().await.map_err(|e| RuntimeError::failed("wait for the hook", e))?;
            let attached = tokio::time::timeout(HOOK_LIMIT, self.net.attach(slot, pid)).await;
            attached
                .map_err(|_| timed_out("attach the slot", HOOK_LIMIT))?
                .map_err(net_error("attach the slot"))?;
            // Ends of connections that were cut are still held, bound to the address of then.
            let bound = self.net.set_former_addresses(pid, &former, true).await;
            bound.map_err(net_error("give former addresses"))?;
            hook.go().await.map_err(|e| RuntimeError::failed("answer the hook", e))
        };
        tokio::select! {
            // Without having called the hook it cannot have succeeded.
            early = &mut restored => early.and_then(|()| {
                Err(RuntimeError::failed("restore the container", io::Error::other("its hook was not called")))
            })?,
            result = attached => {
                result?;
                restored.await?;
            }
        }
        let pid1 = self.first_process(id.as_str(), &pid_file)?;
        let settled = self.net.set_former_addresses(pid1.pid(), &former, false).await;
        settled.map_err(net_error("take former addresses away"))?;
        Ok(pid1)
    }
}

/// The two pipes between the hook and us. Both stay open as long as this lives: what is written to a pipe that nobody else has opened
/// yet is lost when it is closed.
struct Hook {
    state: pipe::Receiver,
    go: pipe::Sender,
}

impl Hook {
    /// Makes the bundle in which the instance is restored: the one that it was started with, and a hook.
    fn make(dir: &Path, bundle: &Path) -> io::Result<Self> {
        remove_dir(bundle)?;
        fs::DirBuilder::new().mode(0o700).create(bundle)?;
        let (state, go) = (bundle.join("state"), bundle.join("go"));
        for path in [&state, &go] {
            mknodat(rustix::fs::CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0)?;
        }
        let mut config: Value = serde_json::from_slice(&fs::read(dir.join(SAVED_CONFIG))?)?;
        config["hooks"] = json!({ "prestart": [{
            "path": "/bin/sh",
            "args": ["sh", "-c", "cat >\"$1\" && read -r _ <\"$2\"", "sh", state, go],
            "timeout": HOOK_SECONDS,
        }] });
        fs::write(bundle.join("config.json"), serde_json::to_vec(&config)?)?;
        // Open for writing too, so that it can be opened before the hook is there.
        let state = pipe::OpenOptions::new().read_write(true).open_receiver(&state)?;
        let go = pipe::OpenOptions::new().read_write(true).open_sender(&go)?;
        Ok(Self { state, go })
    }

    /// Waits until the hook is called. Returns the pid of the container's first process.
    async fn called(&self) -> io::Result<i32> {
        #[derive(serde::Deserialize)]
        struct State {
            pid: i32,
        }
        let mut text = Vec::new();
        loop {
            self.state.readable().await?;
            let mut piece = [0; 4096];
            match self.state.try_read(&mut piece) {
                Ok(read) => text.extend_from_slice(piece.get(..read).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            // The pipe has no end, since we hold it open ourselves; the text has.
            if let Ok(state) = serde_json::from_slice::<State>(&text) {
                return Ok(state.pid);
            }
            if text.len() as u64 > STATE_MAX {
                return Err(io::Error::other("the state that the hook was told has no end"));
            }
        }
    }

    /// Lets the hook end well.
    async fn go(&mut self) -> io::Result<()> {
        self.go.write_all(b"go\n").await
    }
}
