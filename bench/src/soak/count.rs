//! What the server and the sandboxes hold: descriptors, memory, processes.

use std::collections::HashSet;
use std::fs;

use hutch_bench::memory::{parent, pids, pss_kib};

/// Of one process, or of several together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Usage {
    pub descriptors: usize,
    /// Proportional set size.
    pub pss_kib: u64,
}

impl std::fmt::Display for Usage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} descriptors and {:.1} MiB", self.descriptors, self.pss_kib as f64 / 1024.0)
    }
}

impl Usage {
    fn of(pid: u32) -> Self {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).map(Iterator::count).unwrap_or(0);
        Self { descriptors, pss_kib: pss_kib(pid).unwrap_or(0) }
    }
}

/// A moment's counts.
#[derive(Debug, Default)]
pub struct Counts {
    pub server: Usage,
    /// All of them together.
    pub envd: Usage,
    /// What envd has started, dead ones included.
    pub processes: usize,
}

impl Counts {
    pub fn of(server: u32, guests: &[u32]) -> Self {
        let all: HashSet<u32> = guests.iter().copied().collect();
        let mut envd = Usage::default();
        for usage in guests.iter().map(|pid| Usage::of(*pid)) {
            envd.descriptors += usage.descriptors;
            envd.pss_kib += usage.pss_kib;
        }
        let processes = pids().filter(|pid| parent(*pid).is_some_and(|p| all.contains(&p))).count();
        Self { server: Usage::of(server), envd, processes }
    }
}
