//! What a cgroup used, from the files of either version.

use std::fs;
use std::io;
use std::path::Path;

use super::layout::{Layout, Version};

/// Figures of one cgroup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CgroupStats {
    /// CPU time since the cgroup was made, in microseconds.
    pub cpu_usage_us: u64,
    /// Memory without page cache that can be taken back, in bytes.
    pub memory_used_bytes: u64,
    /// That page cache, in bytes.
    pub memory_cache_bytes: u64,
    /// Processes and threads.
    pub processes: u64,
}

/// Reads the figures of cgroup `path`.
pub(super) fn read(layout: &Layout, path: &str) -> io::Result<CgroupStats> {
    let memory = layout.dir("memory", path)?;
    let pids = layout.dir("pids", path)?;
    let stat = fs::read_to_string(memory.join("memory.stat"))?;
    let (usage_file, prefix, cpu_usage_us) = match layout.version() {
        Version::V1 => {
            let cpu = layout.dir("cpuacct", path)?;
            ("memory.usage_in_bytes", "total_", number(&cpu.join("cpuacct.usage"))? / 1000)
        }
        Version::V2 => {
            let cpu = fs::read_to_string(layout.dir("cpu", path)?.join("cpu.stat"))?;
            ("memory.current", "", keyed(&cpu, "usage_usec")?)
        }
    };
    let usage = number(&memory.join(usage_file))?;
    // Files in memory (tmpfs) count as cache in some of the figures, but cannot be taken back: they are on the
    // anonymous lists.
    let cache = keyed(&stat, &format!("{prefix}inactive_file"))?
        .saturating_add(keyed(&stat, &format!("{prefix}active_file"))?);
    Ok(CgroupStats {
        cpu_usage_us,
        memory_used_bytes: usage.saturating_sub(cache),
        memory_cache_bytes: cache.min(usage),
        processes: number(&pids.join("pids.current"))?,
    })
}

fn number(path: &Path) -> io::Result<u64> {
    let text = fs::read_to_string(path)?;
    text.trim().parse().map_err(|_| malformed(&path.display().to_string()))
}

fn keyed(text: &str, key: &str) -> io::Result<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
    value.and_then(|v| v.trim().parse().ok()).ok_or_else(|| malformed(key))
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no number in {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, files: &[(&str, &str)]) {
        for (path, text) in files {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }

    #[test]
    fn figures_of_version_1() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("memory/h/a/memory.usage_in_bytes", "10000000\n"),
            (
                "memory/h/a/memory.stat",
                "cache 5000000\nactive_file 1\ntotal_rss 4000000\ntotal_inactive_file 3000000\ntotal_active_file 1000000\n",
            ),
            ("cpuacct/h/a/cpuacct.usage", "1234567890\n"),
            ("pids/h/a/pids.current", "7\n"),
        ];
        write(dir.path(), &files);
        let layout = Layout::fixture_v1(dir.path(), &["memory", "cpuacct", "pids"]);
        let expected = CgroupStats {
            cpu_usage_us: 1_234_567,
            memory_used_bytes: 6_000_000,
            memory_cache_bytes: 4_000_000,
            processes: 7,
        };
        assert_eq!(read(&layout, "/h/a").unwrap(), expected);
    }

    #[test]
    fn figures_of_version_2() {
        let dir = tempfile::tempdir().unwrap();
        let files = [
            ("h/a/memory.current", "8000000\n"),
            ("h/a/memory.stat", "anon 100\nfile 3\ninactive_file 2000000\nactive_file 500000\n"),
            ("h/a/cpu.stat", "usage_usec 4242\nuser_usec 4000\nsystem_usec 242\n"),
            ("h/a/pids.current", "3\n"),
        ];
        write(dir.path(), &files);
        let layout = Layout::fixture_v2(dir.path());
        let expected = CgroupStats {
            cpu_usage_us: 4242,
            memory_used_bytes: 5_500_000,
            memory_cache_bytes: 2_500_000,
            processes: 3,
        };
        assert_eq!(read(&layout, "/h/a").unwrap(), expected);
    }

    #[test]
    fn a_cgroup_that_is_gone_has_no_figures() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(
            read(&Layout::fixture_v2(dir.path()), "/h/a").unwrap_err().kind(),
            io::ErrorKind::NotFound
        );
    }
}
