//! What the host has: memory and CPUs.

use std::path::Path;

/// Memory of the host in MiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostMemory {
    /// All of it.
    pub total_mib: u64,
    /// What can be used without swapping.
    pub available_mib: u64,
}

/// Reads the host's memory; `None` when the file is not as the kernel writes it.
pub(crate) fn host_memory(meminfo: &Path) -> Option<HostMemory> {
    parse(&std::fs::read_to_string(meminfo).ok()?)
}

/// Whether `available_mib` is too little. Once it was, it takes a quarter more than the minimum to be enough again, so
/// that the answer does not change with every instance that comes and goes.
pub(crate) fn is_short(available_mib: u64, min_mib: u64, was_short: bool) -> bool {
    let enough = if was_short { min_mib.saturating_add(min_mib / 4) } else { min_mib };
    available_mib < enough
}

fn parse(meminfo: &str) -> Option<HostMemory> {
    let field = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kib / 1024)
    };
    Some(HostMemory { total_mib: field("MemTotal")?, available_mib: field("MemAvailable")? })
}

/// CPUs that this process may use.
pub(crate) fn host_cpus() -> u32 {
    std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo_is_read_in_mib() {
        let text = "MemTotal:       24683520 kB\nMemFree:  100 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(parse(text), Some(HostMemory { total_mib: 24105, available_mib: 2 }));
        assert_eq!(parse("MemTotal: many kB\nMemAvailable: 1 kB\n"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_little_more_than_the_minimum_does_not_end_a_shortage() {
        assert!(is_short(99, 100, false) && !is_short(100, 100, false));
        assert!(is_short(124, 100, true) && !is_short(125, 100, true));
        assert!(!is_short(0, 0, true));
    }
}
