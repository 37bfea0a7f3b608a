//! Files of `/proc` that show an instance's limits instead of the host's figures, by lxcfs.
//!
//! lxcfs is a filesystem in a process of its own: who reads `meminfo` in it gets what fits the cgroup of the reader. One
//! serves all instances of a daemon, mounted below the data directory; its files are mounted over those of the kernel in
//! every instance, from the host and after runc is done, so that runc's work stays as it is.
//!
//! It must be able to die. Instances and daemon outlive each other, so it is no child of the daemon: it is found again by
//! its pid file, as instances are by their records. When it ends, files that were mounted from it answer with an error (no
//! reader hangs), until a new one is started and mounted in every instance in place of the old one. One that no longer
//! answers is killed.
//!
//! Without lxcfs instances show the host's figures; limits hold all the same.

mod process;

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hutch_runtime::RuntimeError;
use hutch_types::supervise::Supervisor;
use parking_lot::RwLock;
use rustix::fs::{Mode, OFlags, open};
use rustix::mount::{MountFlags, OpenTreeFlags, mount_remount, open_tree};

use crate::inside;
use crate::pid1::Pid1;
use crate::record::Record;
use crate::runtime::{Inner, blocking};
use process::Process;

/// Files of lxcfs and where they are inside. What a version of lxcfs does not have is skipped.
const FILES: [(&str, &CStr); 8] = [
    ("proc/cpuinfo", c"/proc/cpuinfo"),
    ("proc/diskstats", c"/proc/diskstats"),
    ("proc/loadavg", c"/proc/loadavg"),
    ("proc/meminfo", c"/proc/meminfo"),
    ("proc/stat", c"/proc/stat"),
    ("proc/swaps", c"/proc/swaps"),
    ("proc/uptime", c"/proc/uptime"),
    ("sys/devices/system/cpu/online", c"/sys/devices/system/cpu/online"),
];

/// Time between two looks at whether it answers.
const LOOK_INTERVAL: Duration = Duration::from_secs(20);

/// Pause before it is started again; it doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// One that ran this long did not die of its start.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// A file that can be mounted in an instance.
#[derive(Debug)]
pub(crate) struct View {
    file: OwnedFd,
    /// Where.
    pub target: &'static CStr,
}

impl View {
    /// A mount of the file that is nowhere yet. To be called in the host's mount namespace.
    pub fn detached(&self) -> io::Result<OwnedFd> {
        let flags =
            OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH;
        Ok(open_tree(self.file.as_fd(), c"", flags)?)
    }
}

/// The lxcfs of one daemon, or none.
#[derive(Debug)]
pub(crate) struct Lxcfs {
    /// The command; `None` when it is not wanted or not there.
    program: Option<PathBuf>,
    /// Holds the pid file and the mount.
    dir: PathBuf,
    current: RwLock<Current>,
}

#[derive(Debug, Default, Clone)]
struct Current {
    /// Counts the processes, so that who mounted from an old one notices.
    generation: u64,
    views: Arc<Vec<View>>,
    /// Nothing is started any more.
    is_closed: bool,
}

impl Lxcfs {
    /// `program` is a path, or a name to find in `PATH`; an empty one turns it off. Nothing is started yet.
    pub fn new(program: &Path, dir: PathBuf) -> Self {
        let program = (!program.as_os_str().is_empty()).then(|| find(program)).flatten();
        Self { program, dir, current: RwLock::default() }
    }

    /// What to mount now, and which process it is from.
    pub fn views(&self) -> (u64, Arc<Vec<View>>) {
        let current = self.current.read();
        (current.generation, current.views.clone())
    }

    /// Where its files are mounted inside, whatever its version.
    pub fn targets() -> Vec<&'static CStr> {
        FILES.iter().map(|(_, target)| *target).collect()
    }

    /// Takes over the process of an earlier daemon, or starts one. Whether it is a new one.
    async fn take_over_or_start(&self) -> Result<Option<(Process, bool)>, RuntimeError> {
        let dir = self.dir.clone();
        let found = blocking("look for lxcfs", move || Ok(Process::find(&dir))).await?;
        let Some(program) = &self.program else {
            // It was turned off, or removed from the host; instances keep what they have as long as it lives.
            return Ok(found.map(|process| (process, false)));
        };
        let (process, is_new) = match found {
            Some(process) => (process, false),
            None => (Process::start(program, &self.dir).await?, true),
        };
        self.use_mount()?;
        Ok(Some((process, is_new)))
    }

    /// Opens the files of the process that serves now.
    fn use_mount(&self) -> Result<(), RuntimeError> {
        let mount = Process::mount_of(&self.dir);
        // Mounts that are made of this one inherit it: nothing of it is for guests to write, run or take for a device.
        let flags = MountFlags::BIND
            | MountFlags::RDONLY
            | MountFlags::NOSUID
            | MountFlags::NODEV
            | MountFlags::NOEXEC;
        mount_remount(&mount, flags, c"").map_err(|e| RuntimeError::failed("make lxcfs read-only", e))?;
        let mut views = Vec::with_capacity(FILES.len());
        for (path, target) in FILES {
            match open(mount.join(path), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()) {
                Ok(file) => views.push(View { file, target }),
                Err(rustix::io::Errno::NOENT) => {}
                Err(error) => return Err(RuntimeError::failed(format!("open {path} of lxcfs"), error)),
            }
        }
        let mut current = self.current.write();
        current.generation += 1;
        current.views = Arc::new(views);
        Ok(())
    }

    /// Ends it and removes its mount. Nothing is started after this.
    pub async fn close(&self) -> Result<(), RuntimeError> {
        {
            let mut current = self.current.write();
            current.is_closed = true;
            current.views = Arc::default();
        }
        let dir = self.dir.clone();
        blocking("end lxcfs", move || Process::remove(&dir).map_err(|e| RuntimeError::failed("end lxcfs", e)))
            .await
    }
}

/// Starts it, or takes it over, and keeps it running. That it cannot be had is no reason not to run sandboxes.
pub(crate) async fn begin(inner: &Arc<Inner>, supervisor: &Supervisor) {
    match inner.lxcfs.take_over_or_start().await {
        Ok(Some((process, is_new))) => {
            tracing::info!(pid = process.pid(), is_new, "lxcfs shows sandboxes their own limits");
            let inner = inner.clone();
            let stopping = supervisor.clone();
            supervisor.spawn("lxcfs", async move {
                tokio::select! {
                    () = stopping.stopping() => {}
                    () = follow(&inner, process, is_new) => {}
                }
            });
        }
        Ok(None) => tracing::info!("there is no lxcfs: sandboxes show the host's memory and CPUs in /proc"),
        Err(error) => {
            let error = error.chain();
            tracing::warn!(
                error,
                "lxcfs does not work here: sandboxes show the host's memory and CPUs in /proc"
            );
        }
    }
}

/// Replaces the process whenever it ends. Returns when the runtime is closed.
async fn follow(inner: &Arc<Inner>, mut process: Process, mut is_new: bool) {
    let lxcfs = &inner.lxcfs;
    let mut pause = FIRST_PAUSE;
    loop {
        if is_new {
            mount_everywhere(inner).await;
        }
        let since = Instant::now();
        until_ended(&process).await;
        if since.elapsed() > STABLE_AFTER {
            pause = FIRST_PAUSE;
        }
        loop {
            if lxcfs.current.read().is_closed {
                return;
            }
            let Some(program) = &lxcfs.program else { return };
            tracing::error!(
                "lxcfs ended: some files in /proc of sandboxes answer with an error until it is back"
            );
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            let started = Process::start(program, &lxcfs.dir).await;
            match started.and_then(|started| lxcfs.use_mount().map(|()| started)) {
                Ok(started) => {
                    tracing::info!(pid = started.pid(), "lxcfs is back");
                    (process, is_new) = (started, true);
                    break;
                }
                Err(error) => tracing::error!(error = error.chain(), "lxcfs could not be started again"),
            }
        }
    }
}

/// Completes when the process has ended; ends one that does not answer.
async fn until_ended(process: &Process) {
    loop {
        tokio::select! {
            gone = process.gone() => {
                if let Err(error) = gone {
                    tracing::error!(%error, "cannot watch lxcfs");
                    tokio::time::sleep(LOOK_INTERVAL).await;
                    continue;
                }
                return;
            }
            () = tokio::time::sleep(LOOK_INTERVAL) => {
                if !process.answers().await {
                    tracing::error!(pid = process.pid(), "lxcfs does not answer and is killed");
                    process.kill();
                }
            }
        }
    }
}

/// Mounts the files of the current process in all running instances.
async fn mount_everywhere(inner: &Arc<Inner>) {
    let names = match fs::read_dir(&inner.paths.instances) {
        Ok(entries) => entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()),
        Err(error) => {
            tracing::error!(%error, "the instances cannot be listed");
            return;
        }
    };
    for name in names {
        let Some(pid1) = running(inner, &name) else { continue };
        let (_, views) = inner.lxcfs.views();
        if let Err(error) = inside::mount_views(&pid1, views).await {
            tracing::warn!(instance = name, %error, "lxcfs could not be mounted in an instance");
        }
    }
}

/// The first process of an instance, if its record says the truth.
fn running(inner: &Inner, name: &str) -> Option<Pid1> {
    let record = Record::read(&inner.paths.instance(name)).ok()?;
    let pid1 = Pid1::open(record.pid).ok()?;
    let is_ours = pid1.start_ticks() == record.start_ticks
        && !pid1.is_gone()
        && pid1.cgroups().is_ok_and(|text| inner.cgroups.holds(name, &text));
    is_ours.then_some(pid1)
}

/// The path of a program.
pub(crate) fn find(program: &Path) -> Option<PathBuf> {
    if program.components().count() > 1 {
        return program.is_file().then(|| program.to_owned());
    }
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}
