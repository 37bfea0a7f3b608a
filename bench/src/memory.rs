//! Memory: what an idle sandbox costs, and what processes use while something runs.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::api::Api;
use crate::stats::Table;

const SANDBOXES: usize = 8;
const SAMPLE_EVERY: Duration = Duration::from_millis(100);

pub async fn measure(api: &Api, server: u32, table: &mut Table) -> anyhow::Result<()> {
    api.wait_until_warm().await?;
    let mut sandboxes = Vec::new();
    for _ in 0..SANDBOXES {
        sandboxes.push(api.create("base").await?);
    }
    // The pool refills meanwhile: what is counted is every process of every instance, divided by the instances.
    tokio::time::sleep(Duration::from_secs(5)).await;
    let processes = guest_processes();
    let instances = processes.iter().filter(|p| p.is_init).count();
    let total_kib: u64 = processes.iter().map(|p| p.pss_kib).sum();
    for sandbox in &sandboxes {
        api.kill(sandbox).await?;
    }
    anyhow::ensure!(instances >= SANDBOXES, "only {instances} instances were found in /proc");
    table.note(&format!(
        "idle sandbox: {:.1} MiB PSS ({instances} instances, {} processes)",
        total_kib as f64 / 1024.0 / instances as f64,
        processes.len()
    ));
    table.note(&format!("server: {:.1} MiB PSS", pss_kib(server).unwrap_or(0) as f64 / 1024.0));
    Ok(())
}

/// Samples the memory of processes on a thread of its own until it is asked for the result.
#[derive(Debug)]
pub struct Watch {
    over: Arc<AtomicBool>,
    thread: JoinHandle<Vec<Use>>,
}

/// What one process used, proportional set size in KiB.
#[derive(Debug, Clone, Copy, Default)]
pub struct Use {
    pub first: u64,
    pub most: u64,
    pub last: u64,
}

impl std::fmt::Display for Use {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |kib: u64| kib as f64 / 1024.0;
        write!(
            f,
            "{:.1} MiB before, {:.1} at most, {:.1} after",
            mib(self.first),
            mib(self.most),
            mib(self.last)
        )
    }
}

impl Watch {
    pub fn start(pids: &[u32]) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let (stop, pids) = (over.clone(), pids.to_vec());
        let sample = |pid: u32| pss_kib(pid).unwrap_or(0);
        let mut uses: Vec<Use> =
            pids.iter().map(|pid| Use { first: sample(*pid), ..Use::default() }).collect();
        let thread = thread::spawn(move || {
            loop {
                let ends = stop.load(Ordering::Relaxed);
                for (pid, found) in pids.iter().zip(&mut uses) {
                    found.last = sample(*pid);
                    found.most = found.most.max(found.last);
                }
                if ends {
                    return uses;
                }
                thread::sleep(SAMPLE_EVERY);
            }
        });
        Self { over, thread }
    }

    /// What each process used, in the order in which they were named.
    pub fn finish(self) -> Vec<Use> {
        self.over.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_default()
    }
}

struct Process {
    is_init: bool,
    pss_kib: u64,
}

/// The processes of this host.
pub fn pids() -> impl Iterator<Item = u32> {
    fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|e| e.file_name().to_str()?.parse().ok())
}

/// Processes below `/.hutch` inside sandboxes of this host: PID 1 of each, and all that descends from it.
fn guest_processes() -> Vec<Process> {
    let pids: Vec<u32> = pids().collect();
    let inits: HashSet<u32> = pids
        .iter()
        .copied()
        .filter(|pid| fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.starts_with(b"/.hutch/init")))
        .collect();
    pids.into_iter()
        .filter(|pid| inits.contains(pid) || parent(*pid).is_some_and(|p| inits.contains(&p)))
        .filter_map(|pid| Some(Process { is_init: inits.contains(&pid), pss_kib: pss_kib(pid)? }))
        .collect()
}

/// The process that a process belongs to.
pub fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

/// The proportional set size of a process in KiB.
pub fn pss_kib(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    rollup.lines().find_map(|l| l.strip_prefix("Pss:"))?.split_whitespace().next()?.parse().ok()
}
