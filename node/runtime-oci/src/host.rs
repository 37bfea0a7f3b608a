//! What this process may hand to guests.

use rustix::process::{Resource, getrlimit};

/// `CAP_SYS_RESOURCE`.
const SYS_RESOURCE_BIT: u32 = 24;

/// How much less than a process of the host's own an instance's init and envd are worth killing when memory runs out.
///
/// Inside the instance's memory cgroup only its own processes compete, so any distance to those that users start keeps
/// envd alive. In the host's global choice they compete with everybody, and there a guest must not be shielded. A
/// quarter of the scale does the first without doing much of the second. User processes can get there too (a process
/// may lower itself to where its parent was), which harms nobody but their own envd.
const OOM_SCORE_ADJ: i32 = -250;

/// Open files per process: what most distributions give, and the kernel's own upper bound.
const NOFILE_SOFT: u64 = 65_536;
const NOFILE_HARD: u64 = 1_048_576;

/// What this process may set for processes that it starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HostLimits {
    /// The `oom_score_adj` for init and envd.
    pub oom_score_adj: i32,
    /// Soft limit of open files.
    pub nofile_soft: u64,
    /// Hard limit of open files.
    pub nofile_hard: u64,
}

impl HostLimits {
    /// Reads them. Without `CAP_SYS_RESOURCE` nothing can be raised above what this process has: then envd is kept alive by
    /// the higher `oom_score_adj` that it gives to what it starts alone.
    pub fn detect() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let own_adj = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap_or_default();
        let hard = getrlimit(Resource::Nofile).maximum;
        Self::decide(has_sys_resource(&status), own_adj.trim().parse().unwrap_or(0), hard)
    }

    fn decide(can_raise: bool, own_adj: i32, own_nofile_hard: Option<u64>) -> Self {
        let nofile_hard = if can_raise {
            NOFILE_HARD
        } else {
            own_nofile_hard.map_or(NOFILE_HARD, |hard| hard.min(NOFILE_HARD))
        };
        Self {
            oom_score_adj: if can_raise { OOM_SCORE_ADJ } else { own_adj.max(OOM_SCORE_ADJ) },
            nofile_soft: NOFILE_SOFT.min(nofile_hard),
            nofile_hard,
        }
    }
}

/// What all sandboxes together need of the kernel's tables that are limited per user: in those, every sandbox counts as the
/// host's root, and the defaults (128 inotify instances) are those of one desktop.
const SHARED_TABLES: [(&str, u64); 4] = [
    ("/proc/sys/fs/inotify/max_user_instances", 65_536),
    ("/proc/sys/fs/inotify/max_user_watches", 4_194_304),
    ("/proc/sys/kernel/keys/maxkeys", 65_536),
    ("/proc/sys/kernel/keys/maxbytes", 16_777_216),
];

/// Raises those limits to what many sandboxes need; never lowers one.
pub(crate) fn raise_shared_tables() {
    for (path, wanted) in SHARED_TABLES {
        let now = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse::<u64>().ok());
        if now.is_some_and(|now| now < wanted)
            && let Err(error) = std::fs::write(path, wanted.to_string())
        {
            tracing::warn!(path, wanted, %error, "a limit that all sandboxes share could not be raised");
        }
    }
}

fn has_sys_resource(status: &str) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:")).map(str::trim);
    mask.and_then(|m| u64::from_str_radix(m, 16).ok()).is_some_and(|m| m & (1 << SYS_RESOURCE_BIT) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_the_capability_nothing_is_raised() {
        let limits = HostLimits::decide(false, 0, Some(20_000));
        assert_eq!(limits, HostLimits { oom_score_adj: 0, nofile_soft: 20_000, nofile_hard: 20_000 });
        let limits = HostLimits::decide(true, 0, Some(1024));
        assert_eq!(limits, HostLimits { oom_score_adj: -250, nofile_soft: 65_536, nofile_hard: 1_048_576 });
    }

    #[test]
    fn a_daemon_that_is_shielded_itself_does_not_pass_that_on() {
        assert_eq!(HostLimits::decide(true, -900, None).oom_score_adj, -250);
        assert_eq!(HostLimits::decide(false, -900, None).oom_score_adj, -250);
    }

    #[test]
    fn the_capability_is_read_from_the_effective_set() {
        assert!(has_sys_resource("CapPrm:\t0\nCapEff:\t000001ffffffffff\n"));
        assert!(!has_sys_resource("CapEff:\t000001fffeffffff\n"));
        assert!(!has_sys_resource(""));
    }
}
