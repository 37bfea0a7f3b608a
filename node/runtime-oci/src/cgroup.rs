//! Cgroups of instances: where they are, what they count, ending what is in them, removing them.
//!
//! runc makes them from the configuration, in every hierarchy of version 1 or in the one of version 2. They are found again
//! by path alone, so that leftovers of any kind of accident can be removed.

mod layout;
mod stats;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

pub(crate) use layout::{Layout, Version};
pub(crate) use stats::CgroupStats;

/// How long a removed cgroup may stay busy after its last process ended.
const REMOVE_LIMIT: Duration = Duration::from_secs(5);

/// Pause between looks at something that the kernel is about to finish.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The cgroups of one daemon's instances. Functions block for a short time unless they say otherwise.
#[derive(Debug, Clone)]
pub(crate) struct Cgroups {
    layout: Layout,
    parent: String,
}

impl Cgroups {
    /// `parent` is one path component.
    pub fn new(layout: Layout, parent: String) -> Self {
        Self { layout, parent }
    }

    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The path of an instance's cgroup below the root of every hierarchy, with a leading slash.
    pub fn path(&self, name: &str) -> String {
        format!("/{}/{name}", self.parent)
    }

    /// Whether the process is in the instance's cgroup, from the text of its `/proc/PID/cgroup`.
    pub fn holds(&self, name: &str, proc_cgroup: &str) -> bool {
        let path = self.path(name);
        proc_cgroup.lines().any(|line| line.splitn(3, ':').nth(2) == Some(path.as_str()))
    }

    /// What the instance uses.
    pub fn stats(&self, name: &str) -> io::Result<CgroupStats> {
        stats::read(&self.layout, &self.path(name))
    }

    /// The names below the parent in any hierarchy.
    pub fn names(&self) -> BTreeSet<String> {
        let parents = self.layout.roots().into_iter().map(|root| root.join(&self.parent));
        parents.flat_map(|parent| subdirectories(&parent)).collect()
    }

    /// Stops everything in the instance's cgroup where it is, until [`Self::thaw`].
    ///
    /// # Errors
    /// `TimedOut` when a process could not be stopped within `limit`; those that could stay stopped.
    pub fn freeze(&self, name: &str, limit: Duration) -> io::Result<()> {
        let (file, value) = self.freezer(name)?;
        let (frozen_file, frozen) = match self.layout.version() {
            Version::V1 => (file.clone(), "FROZEN"),
            Version::V2 => (file.with_file_name("cgroup.events"), "frozen 1"),
        };
        let started = Instant::now();
        loop {
            // Again each time: in version 1 a process that was just forked is only caught by another write.
            fs::write(&file, value.0)?;
            if fs::read_to_string(&frozen_file)?.lines().any(|line| line == frozen) {
                return Ok(());
            }
            if started.elapsed() > limit {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("processes in cgroup {name} cannot be frozen"),
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Undoes [`Self::freeze`]. No cgroup, or one that is not frozen, is no error.
    pub fn thaw(&self, name: &str) -> io::Result<()> {
        let (file, value) = self.freezer(name)?;
        match write_existing(&file, value.1) {
            Err(error) if !is_gone(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// The file that freezes, and what is written to it to freeze and to thaw.
    fn freezer(&self, name: &str) -> io::Result<(PathBuf, (&'static str, &'static str))> {
        let dir = self.layout.dir("freezer", &self.path(name))?;
        Ok(match self.layout.version() {
            Version::V1 => (dir.join("freezer.state"), ("FROZEN", "THAWED")),
            Version::V2 => (dir.join("cgroup.freeze"), ("1", "0")),
        })
    }

    /// Kills everything in the instance's cgroups and waits until they are empty.
    ///
    /// # Errors
    /// `TimedOut` when a process did not end within `limit`.
    pub fn kill_all(&self, name: &str, limit: Duration) -> io::Result<()> {
        let started = Instant::now();
        loop {
            let mut is_empty = true;
            for dir in self.dirs(name) {
                is_empty &= kill_tree(&dir)?;
            }
            if is_empty {
                return Ok(());
            }
            if started.elapsed() > limit {
                return Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    format!("processes in cgroup {name} do not end"),
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Removes the instance's cgroups from every hierarchy, those that were made below them included. They must be empty.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        self.dirs(name).iter().try_for_each(|dir| remove_tree(dir))
    }

    /// Removes the parent from every hierarchy where it is empty.
    pub fn remove_parent(&self) -> io::Result<()> {
        for root in self.layout.roots() {
            match fs::remove_dir(root.join(&self.parent)) {
                Err(error) if !is_gone(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Where the instance's cgroups are or would be.
    pub fn dirs(&self, name: &str) -> Vec<PathBuf> {
        self.layout.roots().into_iter().map(|root| root.join(&self.parent).join(name)).collect()
    }
}

/// Kills what is in `dir` and below. Returns whether nothing was there.
fn kill_tree(dir: &Path) -> io::Result<bool> {
    let mut is_empty = true;
    for child in subdirectories(dir) {
        is_empty &= kill_tree(&dir.join(child))?;
    }
    let procs = match fs::read_to_string(dir.join("cgroup.procs")) {
        Ok(procs) => procs,
        Err(error) if is_gone(&error) => return Ok(is_empty),
        Err(error) => return Err(error),
    };
    if procs.trim().is_empty() {
        return Ok(is_empty);
    }
    // Version 2 kills all at once, frozen ones too. Elsewhere the file does not exist.
    if write_existing(&dir.join("cgroup.kill"), "1").is_err() {
        for pid in procs.lines().filter_map(|line| line.trim().parse().ok()).filter_map(Pid::from_raw) {
            kill_if_in(pid, dir);
        }
        // A frozen process of version 1 only dies when it is thawed. Only one of the hierarchies has the file.
        write_existing(&dir.join("freezer.state"), "THAWED").ok();
    }
    Ok(false)
}

/// Kills a process that was read from `dir`, unless its pid has gone to another one since.
fn kill_if_in(pid: Pid, dir: &Path) {
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let procs = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
    let text = pid.as_raw_nonzero().to_string();
    if procs.lines().any(|line| line.trim() == text)
        && let Err(error) = pidfd_send_signal(&pidfd, Signal::KILL)
        && error != rustix::io::Errno::SRCH
    {
        tracing::warn!(%error, pid = text, "could not kill a process of an instance");
    }
}

fn remove_tree(dir: &Path) -> io::Result<()> {
    for child in subdirectories(dir) {
        remove_tree(&dir.join(child))?;
    }
    let started = Instant::now();
    loop {
        match fs::remove_dir(dir) {
            Ok(()) => return Ok(()),
            Err(error) if is_gone(&error) => return Ok(()),
            // Its last process is still being taken apart.
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy && started.elapsed() < REMOVE_LIMIT => {
                std::thread::sleep(LOOK_AGAIN);
            }
            Err(error) => {
                return Err(io::Error::new(error.kind(), format!("remove {}: {error}", dir.display())));
            }
        }
    }
}

fn write_existing(path: &Path, text: &str) -> io::Result<()> {
    use std::io::Write;
    fs::OpenOptions::new().write(true).open(path)?.write_all(text.as_bytes())
}

fn subdirectories(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let dirs = entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    dirs.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// A cgroup that is removed while it is read answers `ENODEV`.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound
        || error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixture(dir: &Path) -> Cgroups {
        Cgroups::new(Layout::fixture_v1(dir, &["memory", "pids"]), "hutch-test".to_owned())
    }

    #[test]
    fn a_process_belongs_to_an_instance_by_its_whole_path() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = fixture(dir.path());
        assert!(cgroups.holds("n1", "9:name=systemd:/\n4:memory:/hutch-test/n1\n"));
        assert!(cgroups.holds("n1", "0::/hutch-test/n1\n"));
        assert!(!cgroups.holds("n1", "0::/hutch-test/n10\n"));
        assert!(!cgroups.holds("n1", "0::/elsewhere/hutch-test/n1\n"));
    }

    #[test]
    fn names_are_those_of_all_hierarchies() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["memory/hutch-test/a", "pids/hutch-test/b", "pids/other/c"] {
            fs::create_dir_all(dir.path().join(path)).unwrap();
        }
        assert_eq!(fixture(dir.path()).names(), BTreeSet::from(["a".to_owned(), "b".to_owned()]));
    }

    #[test]
    fn removing_takes_what_is_below_and_is_not_an_error_when_nothing_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = fixture(dir.path());
        fs::create_dir_all(dir.path().join("memory/hutch-test/a/inner/most")).unwrap();
        cgroups.remove("a").unwrap();
        assert!(cgroups.names().is_empty());
        cgroups.remove("a").unwrap();
        cgroups.remove_parent().unwrap();
        assert!(!dir.path().join("memory/hutch-test").exists());
    }

    #[test]
    fn an_empty_or_missing_cgroup_needs_no_killing() {
        let dir = tempfile::tempdir().unwrap();
        let cgroups = fixture(dir.path());
        cgroups.kill_all("a", Duration::from_secs(1)).unwrap();
        fs::create_dir_all(dir.path().join("pids/hutch-test/a")).unwrap();
        fs::write(dir.path().join("pids/hutch-test/a/cgroup.procs"), "").unwrap();
        cgroups.kill_all("a", Duration::from_secs(1)).unwrap();
    }
}
