//! Finds the processes of instances. No namespace ends them here, so they carry a mark in their environment.

use std::time::Duration;

use hutch_types::InstanceId;
use rustix::process::{Pid, Signal, kill_process};

/// The variable that every process of an instance has.
const VARIABLE: &str = "HUTCH_FAKE_INSTANCE";
/// Looks for processes before giving up; each may find what was forked during the one before.
const LOOKS: usize = 50;

/// What marks the processes of one kernel, or of one instance on it.
#[derive(Debug, Clone)]
pub(crate) struct Mark(String);

impl Mark {
    /// The mark of all instances of the kernel called `name`.
    pub fn kernel(name: &str) -> Self {
        Self(format!("{name}/"))
    }

    /// The mark of one instance on this kernel.
    pub fn instance(&self, id: &InstanceId) -> Self {
        Self(format!("{}{id}", self.0))
    }

    /// As a variable and its value.
    pub fn variable(&self) -> (String, String) {
        (VARIABLE.to_owned(), self.0.clone())
    }

    /// The processes that carry it. Blocks briefly.
    pub fn processes(&self) -> Vec<Pid> {
        let start = format!("{VARIABLE}={}", self.0);
        let carries =
            |environment: &[u8]| environment.split(|b| *b == 0).any(|v| v.starts_with(start.as_bytes()));
        let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let pid = entry.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
                std::fs::read(entry.path().join("environ")).is_ok_and(|e| carries(&e)).then_some(pid)
            })
            .collect()
    }

    /// Kills the processes that carry it, those that they fork meanwhile included. Returns whether none is left.
    /// Blocks briefly.
    pub fn kill(&self) -> bool {
        for _ in 0..LOOKS {
            let found = self.processes();
            if found.is_empty() {
                return true;
            }
            for pid in found {
                // One that has just ended by itself is as good as killed.
                kill_process(pid, Signal::KILL).unwrap_or_default();
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        false
    }
}
