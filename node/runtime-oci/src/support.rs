//! What this host can do for containers: for `hutch doctor` and for the choice of an isolation.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use hutch_types::Check;

use crate::cgroup::{Layout, Version};

/// The oldest runc whose user namespaces, cgroups and seccomp do what the configuration asks for.
const LEAST_RUNC: (u32, u32) = (1, 1);

/// The oldest CRIU that can save containers on recent kernels.
const LEAST_CRIU: (u32, u32) = (4, 2);

/// Controllers without which limits would not hold.
const CONTROLLERS: [&str; 3] = ["cpu", "memory", "pids"];

/// A version is answered in milliseconds.
const LIMIT: Duration = Duration::from_secs(5);

/// What containers need from the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OciSupport {
    /// This process may do what it has to.
    pub root: Check,
    /// runc is there and recent enough; with its version.
    pub runc: Check,
    /// User namespaces can be made, with all of /proc and /sys inside.
    pub user_namespaces: Check,
    /// Limits can be enforced; with the version and the controllers.
    pub cgroups: Check,
    /// The kernel filters system calls.
    pub seccomp: Check,
    /// CRIU is there and recent enough; with its version. Needed only for saving running sandboxes.
    pub criu: Check,
}

impl OciSupport {
    /// Looks at the host. `runc` and `criu` are paths, or names to find in `PATH`. Changes nothing. Blocks for some
    /// milliseconds.
    pub fn detect(runc: &Path, criu: Option<&Path>) -> Self {
        Self {
            root: root(),
            runc: program(runc, LEAST_RUNC, "apt-get install runc"),
            user_namespaces: user_namespaces(),
            cgroups: cgroups(),
            seccomp: seccomp(&read("/proc/sys/kernel/seccomp/actions_avail")),
            criu: program(
                criu.unwrap_or(Path::new("criu")),
                LEAST_CRIU,
                "run `make run`, or install CRIU 4.2 or later, to pause sandboxes with their memory",
            ),
        }
    }

    /// Whether sandboxes can be shown their own limits in /proc. `lxcfs` is a path, a name to find in `PATH`, or empty when
    /// that is turned off.
    pub fn lxcfs(lxcfs: &Path) -> Check {
        let instead = "sandboxes show the host's memory and CPUs in /proc";
        if lxcfs.as_os_str().is_empty() {
            return Check::Fails(format!("turned off (node.lxcfs): {instead}"));
        }
        if !Path::new("/dev/fuse").exists() {
            return Check::Fails(format!("there is no /dev/fuse (modprobe fuse): {instead}"));
        }
        match crate::lxcfs::find(lxcfs) {
            Some(path) => {
                Check::Works(format!("{}: sandboxes see their own limits in /proc", path.display()))
            }
            None => Check::Fails(format!(
                "{} is not installed (apt-get install lxcfs): {instead}",
                lxcfs.display()
            )),
        }
    }

    /// Whether containers can be run here. CRIU is not needed for that.
    pub fn works(&self) -> bool {
        let needed = [&self.root, &self.runc, &self.user_namespaces, &self.cgroups, &self.seccomp];
        needed.iter().all(|check| check.works())
    }
}

fn root() -> Check {
    if rustix::process::geteuid().is_root() {
        Check::Works("root".to_owned())
    } else {
        Check::Fails("not root: start hutch with sudo".to_owned())
    }
}

fn program(path: &Path, least: (u32, u32), remedy: &str) -> Check {
    let name = path.display();
    let text = match version_text(path) {
        Ok(text) => text,
        Err(error) => return Check::Fails(format!("{name} cannot be run ({error}): {remedy}")),
    };
    match parse_version(&text) {
        Some((version, found)) if found >= least => Check::Works(format!("{name} {version}")),
        Some((version, _)) => {
            Check::Fails(format!("{name} {version} is older than {}.{}: {remedy}", least.0, least.1))
        }
        None => Check::Fails(format!("{name} does not tell its version: {remedy}")),
    }
}

/// What the program prints for `--version`.
fn version_text(program: &Path) -> io::Result<String> {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn()?;
    let started = Instant::now();
    while child.try_wait()?.is_none() {
        if started.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(String::from_utf8_lossy(&child.wait_with_output()?.stdout).into_owned())
}

/// The first word that looks like a version, as it is and as numbers.
fn parse_version(text: &str) -> Option<(&str, (u32, u32))> {
    text.split_whitespace().find_map(|word| {
        let mut numbers = word.split(|c: char| !c.is_ascii_digit());
        Some((word, (numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?)))
    })
}

fn user_namespaces() -> Check {
    if !Path::new("/proc/self/ns/user").exists() {
        return Check::Fails(
            "the kernel has no user namespaces: use one built with CONFIG_USER_NS".to_owned(),
        );
    }
    let most: u64 = read("/proc/sys/user/max_user_namespaces").trim().parse().unwrap_or(0);
    if most == 0 {
        return Check::Fails(
            "user namespaces are switched off: sysctl -w user.max_user_namespaces=10000".to_owned(),
        );
    }
    // The kernel refuses a fresh /proc or /sys in a user namespace when the host's own is partly covered.
    match covered(&read("/proc/self/mountinfo")) {
        Some(path) => Check::Fails(format!(
            "something is mounted on {path}, as in a Docker container: run hutch on the host or with an unmasked /proc and /sys"
        )),
        None => Check::Works(format!("at most {most}")),
    }
}

/// A mount that hides a part of /proc or of /sys. Filesystems that the kernel itself provides places for do not count.
fn covered(mountinfo: &str) -> Option<&str> {
    const HARMLESS: [&str; 5] =
        ["/proc/sys/fs/binfmt_misc", "/sys/kernel/", "/sys/fs/", "/sys/firmware/efi/", "/proc/fs/nfsd"];
    let targets = mountinfo.lines().filter_map(|line| line.split(' ').nth(4));
    targets
        .filter(|target| target.starts_with("/proc/") || target.starts_with("/sys/"))
        .find(|target| !HARMLESS.iter().any(|harmless| target.starts_with(harmless)))
}

fn cgroups() -> Check {
    let layout = match Layout::detect() {
        Ok(layout) => layout,
        Err(error) => return Check::Fails(format!("{error}: mount cgroup2 on /sys/fs/cgroup")),
    };
    let version = match layout.version() {
        Version::V1 => "v1",
        Version::V2 => "v2",
    };
    let found = layout.controllers();
    let missing: Vec<&str> =
        CONTROLLERS.into_iter().filter(|name| !found.iter().any(|have| have == name)).collect();
    if missing.is_empty() {
        let swap = if layout.limits_swap() { "" } else { " (swap is not accounted)" };
        Check::Works(format!("{version}: {}{swap}", found.join(" ")))
    } else {
        let missing = missing.join(", ");
        Check::Fails(format!("cgroups {version} lack {missing}: boot with cgroup_enable={missing}"))
    }
}

fn seccomp(actions: &str) -> Check {
    if actions.split_whitespace().any(|action| action == "errno") {
        Check::Works("filters".to_owned())
    } else {
        Check::Fails(
            "the kernel cannot filter system calls: use one built with CONFIG_SECCOMP_FILTER".to_owned(),
        )
    }
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_what_programs_print() {
        assert_eq!(parse_version("runc version 1.1.5+ds1\ncommit: 1"), Some(("1.1.5+ds1", (1, 1))));
        assert_eq!(parse_version("Version: 4.2.1\nGitID: v4"), Some(("4.2.1", (4, 2))));
        assert_eq!(parse_version("no idea"), None);
    }

    #[test]
    fn a_missing_program_and_an_old_one_come_with_a_remedy() {
        let missing = program(Path::new("/nonexistent/runc"), LEAST_RUNC, "install it");
        assert!(matches!(&missing, Check::Fails(text) if text.ends_with(": install it")), "{missing:?}");
        let dir = tempfile::tempdir().unwrap();
        let old = dir.path().join("criu");
        fs::write(&old, "#!/bin/sh\necho Version: 3.17\n").unwrap();
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(&old, fs::Permissions::from_mode(0o755)).unwrap();
        let old = program(&old, LEAST_CRIU, "install it");
        assert!(matches!(&old, Check::Fails(text) if text.contains("3.17 is older than 4.2")), "{old:?}");
    }

    #[test]
    fn a_masked_proc_is_noticed() {
        let docker = "1 2 0:1 / /proc rw - proc proc rw\n3 1 0:2 / /proc/kcore rw - tmpfs tmpfs rw\n";
        assert_eq!(covered(docker), Some("/proc/kcore"));
        let plain = "1 2 0:1 / /proc rw - proc proc rw\n3 1 0:2 / /proc/sys/fs/binfmt_misc rw - autofs a rw\n4 1 0:3 / /sys/fs/cgroup rw - cgroup2 c rw\n";
        assert_eq!(covered(plain), None);
    }

    #[test]
    fn seccomp_needs_the_action_that_the_filter_uses() {
        assert!(seccomp("kill_process kill_thread trap errno trace log allow").works());
        assert!(!seccomp("").works());
    }
}
