//! What is mounted inside, and what of the kernel's own filesystems is hidden.
//!
//! What a guest does learn about its host: the kernel's version, CPU model, memory, load and uptime (`/proc`), and the paths
//! of the layers that its root consists of (`/proc/self/mountinfo`).

use serde_json::{Value, json};

use super::Bundle;

/// Where init and envd are found inside.
pub(super) const GUEST_DIR: &str = "/.hutch";

/// Hidden: they tell about the host or its other guests, or have had holes. What a kernel does not have is skipped.
pub(super) const MASKED: [&str; 32] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/config.gz",
    "/proc/driver",
    "/proc/interrupts",
    "/proc/iomem",
    "/proc/kallsyms",
    "/proc/kcore",
    "/proc/key-users",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/modules",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/slabinfo",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/vmallocinfo",
    // The files behind every sandbox's disk, by path.
    "/sys/block",
    "/sys/bus",
    "/sys/class/block",
    "/sys/dev/block",
    "/sys/devices/virtual/block",
    "/sys/devices/virtual/dmi",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
    "/sys/hypervisor",
    // debugfs, tracing, security modules, crash notes.
    "/sys/kernel",
    "/sys/module",
    "/sys/power",
    "/sys/fs/bpf",
    "/sys/fs/pstore",
];

/// Readable, never writable, whatever their modes say.
///
/// The tmpfs that holds the v1 hierarchies is among them: runc leaves it writable inside a user namespace, although the
/// hierarchies themselves are read-only.
pub(super) const READ_ONLY: [&str; 6] =
    ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger", "/sys/fs/cgroup"];

/// Files below /run and the like are small; what they hold counts as the instance's memory.
const RUN_MIB: u32 = 64;

/// The nodes in /dev are bound by runc; the tmpfs only has to hold their names.
const DEV_SIZE: &str = "size=1m";

pub(super) fn mounts(bundle: &Bundle<'_>) -> Vec<Value> {
    let memory_mib = bundle.spec.resources.memory_mib;
    let shm_size = format!("size={}m", (memory_mib / 2).max(1));
    let run_size = format!("size={}m", (memory_mib / 4).clamp(1, RUN_MIB));
    let mut mounts = vec![
        mount("/proc", "proc", &["nosuid", "noexec", "nodev"]),
        mount("/dev", "tmpfs", &["nosuid", "strictatime", "mode=755", DEV_SIZE]),
        mount(
            "/dev/pts",
            "devpts",
            &["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
        ),
        mount("/dev/shm", "tmpfs", &["nosuid", "nodev", "mode=1777", &shm_size]),
        mount("/dev/mqueue", "mqueue", &["nosuid", "noexec", "nodev"]),
        // A mount of its own, not the host's: it shows the network namespace's devices.
        mount("/sys", "sysfs", &["nosuid", "noexec", "nodev", "ro"]),
        mount("/run", "tmpfs", &["nosuid", "nodev", "mode=755", &run_size]),
        json!({
            "destination": GUEST_DIR,
            "type": "bind",
            "source": bundle.guest,
            "options": ["bind", "ro", "nosuid", "nodev"],
        }),
    ];
    if bundle.shows_cgroups {
        // Read-only and seen from the instance's own cgroup: language runtimes size themselves by it.
        mounts.push(mount("/sys/fs/cgroup", "cgroup", &["nosuid", "noexec", "nodev", "ro"]));
    }
    mounts
}

fn mount(destination: &str, kind: &str, options: &[&str]) -> Value {
    json!({ "destination": destination, "type": kind, "source": kind, "options": options })
}

#[cfg(test)]
mod tests {
    use super::super::tests::config_with;

    #[test]
    fn only_the_guest_build_comes_from_the_host_and_it_is_read_only() {
        let config = config_with(&[], |_| {});
        let mounts = config["mounts"].as_array().unwrap();
        let binds: Vec<_> = mounts.iter().filter(|m| m["type"] == "bind").collect();
        assert_eq!(binds.len(), 1);
        assert_eq!(binds[0]["source"], "/data/guest/abc");
        assert!(binds[0]["options"].as_array().unwrap().iter().any(|o| o == "ro"));
    }

    #[test]
    fn the_kernels_own_trees_are_not_writable() {
        let config = config_with(&[], |_| {});
        for mount in config["mounts"].as_array().unwrap() {
            if ["sysfs", "cgroup"].contains(&mount["type"].as_str().unwrap()) {
                assert!(mount["options"].as_array().unwrap().iter().any(|o| o == "ro"), "{mount}");
            }
        }
    }

    #[test]
    fn memory_filesystems_are_no_larger_than_memory() {
        let config = config_with(&[], |_| {});
        let size = |at: &str| {
            let mounts = config["mounts"].as_array().unwrap();
            let mount = mounts.iter().find(|m| m["destination"] == at).unwrap();
            let options = mount["options"].as_array().unwrap();
            options.iter().find_map(|o| o.as_str().unwrap().strip_prefix("size=")).unwrap().to_owned()
        };
        assert_eq!(
            (size("/dev/shm"), size("/run"), size("/dev")),
            ("512m".into(), "64m".into(), "1m".into())
        );
    }

    #[test]
    fn cgroups_are_shown_on_demand() {
        let config = config_with(&[], |b| b.shows_cgroups = false);
        assert!(!config["mounts"].to_string().contains("/sys/fs/cgroup"));
    }
}
