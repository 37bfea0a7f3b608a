//! Which cgroup hierarchies the host has, and where.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// Which interface limits and counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// A hierarchy per controller.
    V1,
    /// One hierarchy.
    V2,
}

/// The host's hierarchies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Version 1: controller (or `name=…`) to mount point. Several controllers can share one.
    v1: BTreeMap<String, PathBuf>,
    /// Version 2.
    unified: Option<PathBuf>,
}

impl Layout {
    /// Reads the mounts of this process.
    ///
    /// # Errors
    /// When they cannot be read, or there is no cgroup filesystem.
    pub fn detect() -> io::Result<Self> {
        let layout = Self::parse(&std::fs::read_to_string("/proc/self/mountinfo")?);
        if layout.v1.is_empty() && layout.unified.is_none() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "no cgroup filesystem is mounted"));
        }
        Ok(layout)
    }

    fn parse(mountinfo: &str) -> Self {
        let mut layout = Self { v1: BTreeMap::new(), unified: None };
        for line in mountinfo.lines() {
            let Some((mount, source)) = line.split_once(" - ") else { continue };
            let Some(target) = mount.split(' ').nth(4) else { continue };
            let mut source = source.split(' ');
            match (source.next(), source.nth(1)) {
                (Some("cgroup2"), _) => drop(layout.unified.get_or_insert_with(|| PathBuf::from(target))),
                (Some("cgroup"), Some(options)) => {
                    // The first mount counts; later ones are binds of it.
                    for controller in options.split(',').filter(|option| is_controller(option)) {
                        layout.v1.entry(controller.to_owned()).or_insert_with(|| PathBuf::from(target));
                    }
                }
                _ => {}
            }
        }
        layout
    }

    /// Version 1 counts when memory is there, as on hosts that have both.
    pub fn version(&self) -> Version {
        if self.v1.contains_key("memory") || self.unified.is_none() { Version::V1 } else { Version::V2 }
    }

    /// The mount point of every hierarchy.
    pub fn roots(&self) -> Vec<PathBuf> {
        let mut roots: Vec<PathBuf> = self.v1.values().chain(&self.unified).cloned().collect();
        roots.sort();
        roots.dedup();
        roots
    }

    /// The directory of cgroup `path` in the hierarchy that has `controller`.
    pub fn dir(&self, controller: &str, path: &str) -> io::Result<PathBuf> {
        let root = match self.version() {
            Version::V1 => self.v1.get(controller),
            Version::V2 => self.unified.as_ref(),
        };
        root.map(|root| root.join(path.trim_start_matches('/'))).ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, format!("no cgroup controller {controller}"))
        })
    }

    /// Controllers that can limit here.
    pub fn controllers(&self) -> Vec<String> {
        match (self.version(), &self.unified) {
            (Version::V2, Some(root)) => {
                let text = std::fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
                text.split_whitespace().map(str::to_owned).collect()
            }
            _ => self.v1.keys().filter(|name| !name.starts_with("name=")).cloned().collect(),
        }
    }

    /// Whether swap is accounted, so that it can be limited.
    pub fn limits_swap(&self) -> bool {
        match self.version() {
            Version::V1 => {
                self.v1.get("memory").is_some_and(|root| root.join("memory.memsw.limit_in_bytes").exists())
            }
            // The root cgroup itself has no limits; those below it show what there is.
            Version::V2 => {
                let children = self
                    .unified
                    .iter()
                    .flat_map(|root| super::subdirectories(root).into_iter().map(|n| root.join(n)));
                let limited: Vec<PathBuf> = children.filter(|dir| dir.join("memory.max").exists()).collect();
                limited.iter().any(|dir| dir.join("memory.swap.max").exists())
                    || (limited.is_empty() && Path::new("/proc/swaps").exists())
            }
        }
    }

    /// Whether runc can mount every hierarchy inside: of those without a controller it only knows systemd's.
    pub fn can_be_shown(&self) -> bool {
        self.v1.keys().all(|name| !name.starts_with("name=") || name == "name=systemd")
    }

    /// A layout of version 1 in a directory, for tests.
    #[cfg(test)]
    pub fn fixture_v1(dir: &Path, controllers: &[&str]) -> Self {
        let v1 = controllers.iter().map(|name| ((*name).to_owned(), dir.join(name))).collect();
        Self { v1, unified: None }
    }

    /// A layout of version 2 in a directory, for tests.
    #[cfg(test)]
    pub fn fixture_v2(dir: &Path) -> Self {
        Self { v1: BTreeMap::new(), unified: Some(dir.to_owned()) }
    }
}

/// Whether a mount option of a version 1 hierarchy names what it is for.
fn is_controller(option: &str) -> bool {
    const FLAGS: [&str; 8] =
        ["rw", "ro", "xattr", "clone_children", "noprefix", "favordynmods", "cpuset_v2_mode", "none"];
    !FLAGS.contains(&option) && !option.starts_with("release_agent=")
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "\
25 22 0:24 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
26 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid - cgroup cgroup rw,cpu,cpuacct
27 25 0:26 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
28 25 0:27 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
29 25 0:28 / /sys/fs/cgroup/systemd rw - cgroup systemd rw,xattr,release_agent=/bin/x,name=systemd
30 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
31 25 0:26 /x /mnt/bind rw - cgroup cgroup rw,memory
";
    const V2: &str = "30 25 0:29 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot\n";

    #[test]
    fn a_host_with_both_versions_counts_with_the_first() {
        let layout = Layout::parse(V1);
        assert_eq!(layout.version(), Version::V1);
        assert_eq!(layout.dir("cpuacct", "/a/b").unwrap(), Path::new("/sys/fs/cgroup/cpu,cpuacct/a/b"));
        assert_eq!(layout.dir("memory", "/a").unwrap(), Path::new("/sys/fs/cgroup/memory/a"));
        assert!(layout.dir("blkio", "/a").is_err());
        let roots = ["cpu,cpuacct", "memory", "pids", "systemd", "unified"];
        assert_eq!(layout.roots(), roots.map(|r| Path::new("/sys/fs/cgroup").join(r)));
        assert_eq!(layout.controllers(), ["cpu", "cpuacct", "memory", "pids"]);
        assert!(layout.can_be_shown());
    }

    #[test]
    fn one_hierarchy_has_every_controller() {
        let layout = Layout::parse(V2);
        assert_eq!(layout.version(), Version::V2);
        assert_eq!(layout.dir("memory", "/a/b").unwrap(), Path::new("/sys/fs/cgroup/a/b"));
        assert_eq!(layout.roots(), [Path::new("/sys/fs/cgroup")]);
    }

    #[test]
    fn hierarchies_that_runc_does_not_know_are_not_shown_inside() {
        let odd = format!("{V1}32 25 0:30 / /run/x rw - cgroup none rw,name=elogind\n");
        assert!(!Layout::parse(&odd).can_be_shown());
    }

    #[test]
    fn whether_swap_can_be_limited_is_seen_in_other_cgroups() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("init.scope")).unwrap();
        std::fs::write(dir.path().join("init.scope/memory.max"), "max\n").unwrap();
        let layout = Layout::fixture_v2(dir.path());
        assert!(!layout.limits_swap());
        std::fs::write(dir.path().join("init.scope/memory.swap.max"), "max\n").unwrap();
        assert!(layout.limits_swap());
    }

    #[test]
    fn controllers_of_the_second_version_are_read_from_its_root() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("cgroup.controllers"), "cpuset cpu memory pids\n").unwrap();
        assert_eq!(Layout::fixture_v2(dir.path()).controllers(), ["cpuset", "cpu", "memory", "pids"]);
    }
}
