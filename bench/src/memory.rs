//! What an idle sandbox costs: the proportional set size of all its processes.

use std::collections::HashSet;
use std::fs;
use std::time::Duration;

use crate::api::Api;
use crate::stats::Table;

const SANDBOXES: usize = 8;

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

struct Process {
    is_init: bool,
    pss_kib: u64,
}

/// Processes below `/.hutch` inside sandboxes of this host: PID 1 of each, and all that descends from it.
fn guest_processes() -> Vec<Process> {
    let pids: Vec<u32> = fs::read_dir("/proc")
        .map(|dir| dir.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect())
        .unwrap_or_default();
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

fn parent(pid: u32) -> Option<u32> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

fn pss_kib(pid: u32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    rollup.lines().find_map(|l| l.strip_prefix("Pss:"))?.split_whitespace().next()?.parse().ok()
}
