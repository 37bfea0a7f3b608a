//! The first process of a container, held by a pidfd so that a reused pid is never mistaken for it.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A process that was alive when it was opened.
#[derive(Debug)]
pub(crate) struct Pid1 {
    pid: i32,
    start_ticks: u64,
    pidfd: OwnedFd,
}

impl Pid1 {
    /// Opens the process that has this pid now.
    pub fn open(pid: i32) -> io::Result<Self> {
        // A negative number is no pid but a group's, and makes `from_raw` panic.
        let raw = Pid::from_raw(pid.max(0)).ok_or(io::ErrorKind::InvalidInput)?;
        let pidfd = pidfd_open(raw, PidfdFlags::empty())?;
        // Only after the pidfd is there is what /proc says about this process and no other: if it ended, the pid may
        // have been reused before, but then the start time tells.
        let start_ticks = start_ticks(&fs::read_to_string(format!("/proc/{pid}/stat"))?)?;
        Ok(Self { pid, start_ticks, pidfd })
    }

    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// When it started, in clock ticks since the host booted. With the pid it names a process for good.
    pub fn start_ticks(&self) -> u64 {
        self.start_ticks
    }

    /// The text of its `/proc/PID/cgroup`.
    pub fn cgroups(&self) -> io::Result<String> {
        fs::read_to_string(format!("/proc/{}/cgroup", self.pid))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    /// Kills it and with it everything in its pid namespace. That it is gone already is no error.
    pub fn kill(&self) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, Signal::KILL) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether it has ended.
    pub fn is_gone(&self) -> bool {
        self.wait_blocking(Duration::ZERO)
    }

    /// Blocks until it has ended, at most `limit`. Returns whether it has.
    pub fn wait_blocking(&self, limit: Duration) -> bool {
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        let limit = Timespec::try_from(limit).unwrap_or(Timespec { tv_sec: 0, tv_nsec: 0 });
        let polled = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&limit)));
        let is_gone = polled.is_ok_and(|ready| ready > 0);
        if is_gone {
            self.reap();
        }
        is_gone
    }

    /// Completes when it has ended. Cancellation safe.
    pub async fn gone(&self) -> io::Result<()> {
        // A duplicate, so that any number can wait: one descriptor is registered only once.
        // SAFETY: the duplicate is ours alone, stays the same descriptor and open as long as the `AsyncFd` owns it.
        let fd = unsafe { AsyncFd::register_with_interest(self.pidfd.try_clone()?, Interest::READABLE) }?;
        fd.readable().await?.retain_ready();
        self.reap();
        Ok(())
    }

    /// Collects it in case it was handed to us: a daemon that is the host's first process, or a subreaper, becomes the
    /// parent when runc exits. Otherwise somebody else does it and this finds no child.
    fn reap(&self) {
        if let Err(error) =
            waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED | WaitIdOptions::NOHANG)
            && error != rustix::io::Errno::CHILD
        {
            tracing::debug!(%error, pid = self.pid, "could not reap");
        }
    }
}

/// The start time in the text of `/proc/PID/stat`.
fn start_ticks(stat: &str) -> io::Result<u64> {
    // The name may contain anything, so count from behind it: the start time is field 22, the state after the name 3.
    let after_name = stat.rsplit_once(") ").map(|(_, rest)| rest);
    after_name
        .and_then(|rest| rest.split(' ').nth(22 - 3)?.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "malformed /proc/PID/stat"))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn the_start_time_is_found_behind_any_name() {
        let stat = "7 (a) b (c) S 1 7 7 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987654 1000 2";
        assert_eq!(start_ticks(stat).unwrap(), 987_654);
        assert!(start_ticks("7 (x").is_err());
    }

    #[expect(clippy::zombie_processes, reason = "that it is reaped otherwise is what the test is about")]
    #[tokio::test]
    async fn the_end_of_a_process_is_noticed_by_all_who_wait_and_leaves_no_zombie() {
        let child = Command::new("sleep").arg("60").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let pid1 = Pid1::open(pid).unwrap();
        assert!(!pid1.is_gone());
        pid1.kill().unwrap();
        let (a, b) = tokio::join!(pid1.gone(), pid1.gone());
        a.unwrap();
        b.unwrap();
        assert!(pid1.is_gone());
        pid1.kill().unwrap();
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }

    #[test]
    fn a_pid_that_nobody_has_cannot_be_opened() {
        for pid in [0, -1, i32::MAX] {
            assert!(Pid1::open(pid).is_err(), "{pid}");
        }
    }
}
