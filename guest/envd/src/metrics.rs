//! What the sandbox uses. The limits of the sandbox are read from its control group where that can be seen from
//! inside; what the host has told in `/init` is better known and wins; the kernel-wide figures are the last resort.

use std::path::Path;
use std::time::Instant;

use parking_lot::Mutex;

use crate::state::Limits;

const V1_MEMORY: &str = "/sys/fs/cgroup/memory";
const V1_CPU: &str = "/sys/fs/cgroup/cpuacct";
const V2: &str = "/sys/fs/cgroup";
/// Two looks at the CPU that are closer than this give the same figure: the kernel's counters are coarse.
const MIN_INTERVAL_NS: f64 = 100e6;

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) total: u64,
    /// Without the page cache.
    pub(crate) used: u64,
    /// The page cache.
    pub(crate) cache: u64,
}

/// Reads the memory figures; `None` when not even `/proc/meminfo` can be read.
pub(crate) fn memory(limits: Limits) -> Option<Memory> {
    let system = meminfo(&read("/proc/meminfo")?)?;
    let group =
        group_memory(Path::new(V1_MEMORY), ["memory.usage_in_bytes", "memory.limit_in_bytes"], "total_")
            .or_else(|| group_memory(Path::new(V2), ["memory.current", "memory.max"], ""));
    let mut memory = group.unwrap_or(system);
    // A group without a limit says `max` or a number beyond all memory.
    memory.total = limits.memory_bytes.unwrap_or(memory.total).min(system.total);
    Some(memory)
}

fn group_memory(folder: &Path, [usage, limit]: [&str; 2], prefix: &str) -> Option<Memory> {
    let number = |name: &str| read(folder.join(name))?.trim().parse::<u64>().ok();
    let stat = read(folder.join("memory.stat"))?;
    let cache =
        field(&stat, &format!("{prefix}inactive_file"))? + field(&stat, &format!("{prefix}active_file"))?;
    let usage = number(usage)?;
    Some(Memory { total: number(limit).unwrap_or(u64::MAX), used: usage.saturating_sub(cache), cache })
}

fn meminfo(text: &str) -> Option<Memory> {
    let bytes = |name: &str| field(text, name).map(|kib| kib * 1024);
    let total = bytes("MemTotal:")?;
    let used = total.saturating_sub(bytes("MemAvailable:")?);
    Some(Memory { total, used, cache: bytes("Cached:")? })
}

/// The number after `name` on the line that starts with it.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        (words.next() == Some(name)).then(|| words.next()?.parse().ok()).flatten()
    })
}

/// How many CPUs the sandbox may keep busy.
pub(crate) fn cpu_count(limits: Limits) -> u32 {
    let available =
        || std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()).unwrap_or(1);
    limits.cpu_count.or_else(cpu_quota).unwrap_or_else(available).max(1)
}

fn cpu_quota() -> Option<u32> {
    let v1 = || {
        let quota = read(Path::new(V1_CPU).join("cpu.cfs_quota_us"))?;
        let period = read(Path::new(V1_CPU).join("cpu.cfs_period_us"))?;
        whole_cpus(&quota, &period)
    };
    let v2 = || {
        let max = read(Path::new(V2).join("cpu.max"))?;
        let (quota, period) = max.trim().split_once(' ')?;
        whole_cpus(quota, period)
    };
    v1().or_else(v2)
}

/// `None` when there is no quota (`-1` or `max`).
fn whole_cpus(quota: &str, period: &str) -> Option<u32> {
    let (quota, period): (u64, u64) = (quota.trim().parse().ok()?, period.trim().parse().ok()?);
    u32::try_from(quota.checked_add(period)?.checked_sub(1)?.checked_div(period)?).ok()
}

/// Remembers the last look at the CPU, so that the next one can tell what was used in between.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    last: Mutex<Option<Look>>,
}

#[derive(Debug, Clone, Copy)]
struct Look {
    at: Instant,
    used_ns: u64,
    percent: f64,
}

impl CpuMeter {
    /// Percent of `cpus` CPUs used since the last look, with two decimals; 0 at the first.
    pub(crate) fn percent(&self, cpus: u32) -> f64 {
        self.look(cpus, Instant::now(), cpu_used_ns().unwrap_or(0))
    }

    fn look(&self, cpus: u32, at: Instant, used_ns: u64) -> f64 {
        let mut last = self.last.lock();
        let percent = match *last {
            None => 0.0,
            Some(last) => {
                let elapsed = at.duration_since(last.at).as_secs_f64() * 1e9;
                if elapsed < MIN_INTERVAL_NS {
                    return last.percent;
                }
                let used = used_ns.saturating_sub(last.used_ns) as f64;
                ((used / elapsed / f64::from(cpus) * 1e4).round() / 1e2).clamp(0.0, 100.0)
            }
        };
        *last = Some(Look { at, used_ns, percent });
        percent
    }
}

/// CPU time of the sandbox's group, else of the whole kernel.
fn cpu_used_ns() -> Option<u64> {
    let v1 = || read(Path::new(V1_CPU).join("cpuacct.usage"))?.trim().parse().ok();
    let v2 = || Some(field(&read(Path::new(V2).join("cpu.stat"))?, "usage_usec")? * 1_000);
    v1().or_else(v2).or_else(|| kernel_cpu_ns(&read("/proc/stat")?))
}

/// Everything but idle and waiting for I/O, in the kernel's hundredths of a second.
fn kernel_cpu_ns(stat: &str) -> Option<u64> {
    let numbers: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).filter_map(|word| word.parse().ok()).collect();
    let busy = |index: &usize| !matches!(index, 3 | 4);
    // Guest time is counted in user time already.
    let ticks: u64 = numbers.iter().take(8).enumerate().filter(|(i, _)| busy(i)).map(|(_, n)| n).sum();
    Some(ticks * 10_000_000)
}

/// Bytes of the file system at `/`: total, and what is not available.
pub(crate) fn disk(limits: Limits) -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs("/").ok()?;
    let total = stat.f_blocks.saturating_mul(stat.f_frsize);
    let used = total.saturating_sub(stat.f_bavail.saturating_mul(stat.f_frsize));
    Some((limits.disk_bytes.unwrap_or(total), used))
}

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:  1000 kB\nMemFree: 1 kB\nMemAvailable:  400 kB\nBuffers: 3 kB\nCached:  200 kB\nSwapCached: 9 kB\n";
        assert_eq!(meminfo(text), Some(Memory { total: 1_024_000, used: 614_400, cache: 204_800 }));
        assert_eq!(meminfo("MemTotal: x kB\n"), None);
    }

    #[test]
    fn both_kinds_of_groups_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        write(
            "memory.stat",
            "cache 50\ntotal_inactive_file 20\ntotal_active_file 10\ninactive_file 2\nactive_file 1\n",
        );
        write("memory.usage_in_bytes", "100\n");
        write("memory.limit_in_bytes", "500\n");
        write("memory.current", "40\n");
        write("memory.max", "max\n");
        let v1 = group_memory(folder.path(), ["memory.usage_in_bytes", "memory.limit_in_bytes"], "total_");
        assert_eq!(v1, Some(Memory { total: 500, used: 70, cache: 30 }));
        let v2 = group_memory(folder.path(), ["memory.current", "memory.max"], "");
        assert_eq!(v2, Some(Memory { total: u64::MAX, used: 37, cache: 3 }));
    }

    #[test]
    fn a_quota_is_rounded_up_to_whole_cpus() {
        assert_eq!(whole_cpus("200000\n", "100000\n"), Some(2));
        assert_eq!(whole_cpus("150000", "100000"), Some(2));
        assert_eq!(whole_cpus("-1", "100000"), None);
        assert_eq!(whole_cpus("max", "100000"), None);
        assert_eq!(whole_cpus("1", "0"), None);
    }

    #[test]
    fn cpu_use_is_measured_between_looks() {
        let (meter, start) = (CpuMeter::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(meter.look(2, at(0), 5_000_000_000).to_string(), "0");
        assert_eq!(meter.look(2, at(1_000), 5_500_000_000).to_string(), "25");
        assert_eq!(meter.look(2, at(1_050), 9_999_999_999).to_string(), "25", "too soon for a new figure");
        assert_eq!(meter.look(2, at(4_000), 5_510_000_000).to_string(), "0.17");
    }

    #[test]
    fn the_kernels_idle_time_is_not_use() {
        assert_eq!(kernel_cpu_ns("cpu  10 1 5 1000 50 2 3 4 9 9\ncpu0 1 2\n"), Some(250_000_000));
    }

    #[test]
    fn this_machine_has_figures() {
        let memory = memory(Limits { memory_bytes: Some(1 << 20), ..Limits::default() }).unwrap();
        assert_eq!(memory.total, 1 << 20);
        assert!(disk(Limits::default()).unwrap().0 > 0);
        assert!(cpu_count(Limits::default()) >= 1 && cpu_used_ns().unwrap() > 0);
    }
}
