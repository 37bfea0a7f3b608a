//! The processes of one envd.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use hutch_proto::process as pb;
use hutch_proto::process::process_selector::Selector;
use parking_lot::Mutex;
use rustix::process::{Pid, Signal};
use tokio_util::sync::CancellationToken;

use super::error::ProcessError;
use super::exit::Exit;
use super::hub::Hub;
use super::input::Input;

/// How long a client that comes late still learns how a process ended.
const REMEMBER: Duration = Duration::from_secs(30);
/// Ended processes remembered; the oldest goes when one more ends.
const REMEMBER_MAX: usize = 4096;

/// One process that was started on behalf of a client.
#[derive(Debug)]
pub struct Process {
    pub(super) pid: u32,
    /// As asked for; shown by List.
    pub(super) config: pb::ProcessConfig,
    pub(super) tag: Option<String>,
    pub(super) hub: Hub,
    pub(super) input: Input,
    /// Signals go through it, so that they cannot hit a stranger with a reused pid. `None` where the kernel or its
    /// filter has no pidfds.
    pub(super) pidfd: Option<OwnedFd>,
    /// Set once, before `exited`.
    pub(super) exit: OnceLock<Arc<Exit>>,
    /// Cancelled when the process has been reaped.
    pub(super) exited: CancellationToken,
    /// Cancelled before the process is killed for having outlived its lifetime.
    pub(super) timed_out: CancellationToken,
}

impl Process {
    /// Sends a signal to this process alone.
    pub(super) fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        if self.exited.is_cancelled() {
            return Err(ProcessError::NoSuchPid(self.pid));
        }
        let sent = match (&self.pidfd, i32::try_from(self.pid).ok().and_then(Pid::from_raw)) {
            (Some(pidfd), _) => rustix::process::pidfd_send_signal(pidfd, signal),
            (None, Some(pid)) => rustix::process::kill_process(pid, signal),
            (None, None) => Err(rustix::io::Errno::SRCH),
        };
        match sent {
            Ok(()) => Ok(()),
            // It ended in this very moment.
            Err(rustix::io::Errno::SRCH) => Err(ProcessError::NoSuchPid(self.pid)),
            Err(error) => Err(ProcessError::Kill(io::Error::from(error))),
        }
    }
}

/// What is left of an ended process.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub(super) pid: u32,
    pub(super) tag: Option<String>,
    pub(super) exit: Arc<Exit>,
    at: Instant,
}

/// The live processes, and those that ended within the last 30 s.
#[derive(Debug, Default)]
pub struct Registry {
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    live: HashMap<u32, Arc<Process>>,
    ended: VecDeque<Ended>,
}

/// What a selector finds.
#[derive(Debug)]
pub(super) enum Found {
    Live(Arc<Process>),
    Ended(Ended),
}

impl Registry {
    /// How many processes are running.
    pub fn live_count(&self) -> usize {
        self.inner.lock().live.len()
    }

    /// Adds a process that has just started. What is remembered of earlier ones with its pid or tag is forgotten.
    pub(super) fn add(&self, process: &Arc<Process>) {
        let mut inner = self.inner.lock();
        let same_tag = |e: &Ended| e.tag.is_some() && e.tag == process.tag;
        inner.ended.retain(|e| e.pid != process.pid && !same_tag(e));
        inner.live.insert(process.pid, process.clone());
    }

    /// Moves a process from the living to the ended.
    pub(super) fn end(&self, process: &Process, exit: Arc<Exit>) {
        let mut inner = self.inner.lock();
        let now = Instant::now();
        inner.live.remove(&process.pid);
        inner.forget_old(now);
        if inner.ended.len() >= REMEMBER_MAX {
            inner.ended.pop_front();
        }
        inner.ended.push_back(Ended { pid: process.pid, tag: process.tag.clone(), exit, at: now });
    }

    /// All live processes by pid.
    pub(super) fn list(&self) -> Vec<Arc<Process>> {
        let mut all: Vec<_> = self.inner.lock().live.values().cloned().collect();
        all.sort_by_key(|p| p.pid);
        all
    }

    /// The live process that `selector` means.
    pub(super) fn live(&self, selector: Option<&Selector>) -> Result<Arc<Process>, ProcessError> {
        match self.find(selector)? {
            Found::Live(process) => Ok(process),
            Found::Ended(_) => Err(missing(selector)),
        }
    }

    /// The process that `selector` means, live ones first.
    pub(super) fn find(&self, selector: Option<&Selector>) -> Result<Found, ProcessError> {
        let mut inner = self.inner.lock();
        inner.forget_old(Instant::now());
        let (live, ended) = match selector {
            Some(Selector::Pid(pid)) => {
                (inner.live.get(pid), inner.ended.iter().rev().find(|e| e.pid == *pid))
            }
            Some(Selector::Tag(tag)) => {
                let tag = Some(tag);
                // Of several with the same tag the one with the lowest pid, so that the answer is always the same.
                let live = inner.live.values().filter(|p| p.tag.as_ref() == tag).min_by_key(|p| p.pid);
                (live, inner.ended.iter().rev().find(|e| e.tag.as_ref() == tag))
            }
            None => return Err(ProcessError::NoSelector),
        };
        match (live, ended) {
            (Some(process), _) => Ok(Found::Live(process.clone())),
            (None, Some(ended)) => Ok(Found::Ended(ended.clone())),
            (None, None) => Err(missing(selector)),
        }
    }
}

impl Inner {
    fn forget_old(&mut self, now: Instant) {
        while self.ended.front().is_some_and(|e| now.duration_since(e.at) > REMEMBER) {
            self.ended.pop_front();
        }
    }
}

fn missing(selector: Option<&Selector>) -> ProcessError {
    match selector {
        Some(Selector::Pid(pid)) => ProcessError::NoSuchPid(*pid),
        Some(Selector::Tag(tag)) => ProcessError::NoSuchTag(tag.clone()),
        None => ProcessError::NoSelector,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: u32, tag: &str) -> Arc<Process> {
        Arc::new(Process {
            pid,
            config: pb::ProcessConfig::default(),
            tag: Some(tag.to_owned()),
            hub: Hub::default(),
            input: Input::Stdin(tokio::sync::Mutex::default()),
            pidfd: None,
            exit: OnceLock::new(),
            exited: CancellationToken::new(),
            timed_out: CancellationToken::new(),
        })
    }

    fn exit() -> Arc<Exit> {
        Arc::new(Exit { code: 3, exited: true, status: "exit status 3".to_owned() })
    }

    #[test]
    fn an_ended_process_is_found_until_its_pid_or_tag_is_used_again() {
        let registry = Registry::default();
        let first = process(10, "a");
        registry.add(&first);
        registry.end(&first, exit());
        for selector in [Selector::Pid(10), Selector::Tag("a".to_owned())] {
            assert!(matches!(registry.find(Some(&selector)), Ok(Found::Ended(e)) if e.exit.code == 3));
            assert!(registry.live(Some(&selector)).is_err());
        }
        registry.add(&process(11, "a"));
        assert!(
            matches!(registry.find(Some(&Selector::Tag("a".to_owned()))), Ok(Found::Live(p)) if p.pid == 11)
        );
        let error = registry.find(Some(&Selector::Pid(10))).unwrap_err();
        assert_eq!(error.to_string(), "process with pid 10 not found");
    }

    #[test]
    fn ended_processes_are_forgotten_in_time_and_in_number() {
        let registry = Registry::default();
        for pid in 0..u32::try_from(REMEMBER_MAX).unwrap() + 3 {
            registry.end(&process(pid, "t"), exit());
        }
        assert_eq!(registry.inner.lock().ended.len(), REMEMBER_MAX);
        let later = Instant::now() + REMEMBER + Duration::from_secs(1);
        registry.inner.lock().forget_old(later);
        assert!(registry.inner.lock().ended.is_empty());
    }
}
