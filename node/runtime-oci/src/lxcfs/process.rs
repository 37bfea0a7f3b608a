//! The lxcfs process: starting it, finding it again, ending it.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use hutch_runtime::RuntimeError;
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

use crate::command::timed_out;
use crate::pid1::Pid1;
use crate::runtime::make_dir;

/// Its filesystem is there in milliseconds.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Pause between looks at whether it is.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// How long a file of it may take to be read. One that takes longer hangs.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// A killed process that does not end within this time hangs in the kernel.
const KILL_LIMIT: Duration = Duration::from_secs(5);

/// Mounts of dead ones that lie above one another; there is one unless something went wrong.
const MOST_MOUNTS: usize = 8;

/// A running lxcfs.
#[derive(Debug)]
pub(super) struct Process {
    process: Pid1,
    mount: PathBuf,
}

impl Process {
    /// Where its filesystem is.
    pub fn mount_of(dir: &Path) -> PathBuf {
        dir.join("mount")
    }

    fn pid_file(dir: &Path) -> PathBuf {
        dir.join("pid")
    }

    /// Starts one after removing what is left of an earlier one.
    ///
    /// CPUs are counted by quota, swap is hidden since sandboxes have none, and load is their own.
    pub async fn start(program: &Path, dir: &Path) -> Result<Self, RuntimeError> {
        make_dir(dir)?;
        let mount = Self::mount_of(dir);
        Self::remove(dir).map_err(|e| RuntimeError::failed("remove a former lxcfs", e))?;
        make_dir(&mount)?;
        let mut args: Vec<OsString> =
            ["--enable-cfs", "--enable-loadavg", "--disable-swap", "--pidfile"].map(OsString::from).to_vec();
        args.extend([Self::pid_file(dir).into(), mount.clone().into()]);
        // It stays in the foreground; a group of its own keeps it from the daemon's terminal. It is not waited for but
        // watched by its pid, as it outlives the daemon.
        let mut command = Command::new(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        let child = command.spawn().map_err(|e| RuntimeError::failed("start lxcfs", e))?;
        let opened = i32::try_from(child.id()).map_err(io::Error::other).and_then(Pid1::open);
        let process = opened.map_err(|e| RuntimeError::failed("watch lxcfs", e))?;
        let started = Self { process, mount };
        let ready = async {
            while !(Self::named(dir).is_ok() && started.answers().await) {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        let outcome = tokio::select! {
            ready = tokio::time::timeout(START_LIMIT, ready) => ready.map_err(|_| timed_out("start lxcfs", START_LIMIT)),
            _ = started.gone() => Err(RuntimeError::failed("start lxcfs", io::Error::other("it ended at once"))),
        };
        if outcome.is_err() {
            started.kill();
        }
        outcome.map(|()| started)
    }

    /// One that an earlier daemon started, if it lives and answers. Blocks while it answers.
    pub fn find(dir: &Path) -> Option<Self> {
        let found = Self::named(dir).ok()?;
        let (tx, rx) = std::sync::mpsc::channel();
        let file = found.probe();
        std::thread::spawn(move || tx.send(fs::read(file).is_ok()));
        rx.recv_timeout(ANSWER_LIMIT).is_ok_and(|answers| answers).then_some(found)
    }

    /// The process of the pid file, if it is an lxcfs with this mount: the pid may have been reused.
    fn named(dir: &Path) -> io::Result<Self> {
        let mount = Self::mount_of(dir);
        let pid = fs::read_to_string(Self::pid_file(dir))?.trim().parse().map_err(io::Error::other)?;
        let process = Pid1::open(pid)?;
        let arguments = fs::read(format!("/proc/{pid}/cmdline"))?;
        let mut arguments = arguments.split(|b| *b == 0).map(|a| OsString::from_vec(a.to_vec()));
        if process.is_gone() || !arguments.any(|argument| argument == mount.as_os_str()) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { process, mount })
    }

    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    fn probe(&self) -> PathBuf {
        self.mount.join("proc/uptime")
    }

    /// Whether one of its files can be read in time. A thread is lost to one that hangs, until it is killed.
    pub async fn answers(&self) -> bool {
        tokio::time::timeout(ANSWER_LIMIT, tokio::fs::read(self.probe())).await.is_ok_and(|read| read.is_ok())
    }

    /// Completes when it has ended.
    pub async fn gone(&self) -> io::Result<()> {
        self.process.gone().await
    }

    /// Kills it; readers that wait for it get an error.
    pub fn kill(&self) {
        if let Err(error) = self.process.kill() {
            tracing::error!(%error, pid = self.pid(), "lxcfs could not be killed");
        }
    }

    /// Ends the one that is there, if any, and removes its mount. Blocks.
    pub fn remove(dir: &Path) -> io::Result<()> {
        if let Ok(found) = Self::named(dir) {
            found.process.kill()?;
            if !found.process.wait_blocking(KILL_LIMIT) {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        let mount = Self::mount_of(dir);
        for _ in 0..MOST_MOUNTS {
            match unmount(&mount, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
                Ok(()) => {}
                Err(Errno::INVAL | Errno::NOENT) => break,
                Err(error) => return Err(error.into()),
            }
        }
        match fs::remove_file(Self::pid_file(dir)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}
