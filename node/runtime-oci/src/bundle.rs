//! The container's configuration: a pure function from an instance's parts to an OCI `config.json`.

mod filesystem;
mod process;
mod seccomp;

use std::path::Path;

use hutch_disk::{ImageConfig, UidShift};
use hutch_runtime::InstanceSpec;
use serde_json::{Value, json};

use crate::host::HostLimits;

/// The host name until [`hutch_runtime::Instance::set_hostname`] is called.
const HOST_NAME: &str = "sandbox";

/// CPU time is given out in slices of this length.
const CPU_PERIOD_US: u64 = 100_000;

/// Namespaces of an instance's own. The network namespace has no path: runc makes it inside the user namespace, so that
/// the guest owns it, and the host moves the link in afterwards.
const NAMESPACES: [&str; 7] = ["user", "pid", "ipc", "uts", "mount", "network", "cgroup"];

/// What a configuration is made from.
#[derive(Debug, Clone)]
pub(crate) struct Bundle<'a> {
    pub spec: &'a InstanceSpec,
    pub image: &'a ImageConfig,
    /// The mounted root filesystem.
    pub root: &'a Path,
    /// The directory with `init` and `envd`.
    pub guest: &'a Path,
    pub shift: UidShift,
    /// CRIU's settings, for when the instance is saved.
    pub criu_settings: &'a Path,
    /// Below the root of every hierarchy, with a leading slash.
    pub cgroup: &'a str,
    pub host: HostLimits,
    /// The CPUs to run on, as the kernel writes lists of them; `None` for all.
    pub cpus: Option<String>,
    /// Whether the host accounts swap, so that it can be forbidden.
    pub limits_swap: bool,
    /// Whether cgroups are mounted inside, read-only.
    pub shows_cgroups: bool,
}

impl Bundle<'_> {
    /// The whole `config.json`.
    pub fn config(&self) -> Value {
        json!({
            "ociVersion": "1.0.2",
            "hostname": HOST_NAME,
            "annotations": { "org.criu.config": self.criu_settings },
            "root": { "path": self.root, "readonly": false },
            "process": process::process(self),
            "mounts": filesystem::mounts(self),
            "linux": {
                "namespaces": NAMESPACES.map(|kind| json!({ "type": kind })),
                "uidMappings": [self.id_mapping()],
                "gidMappings": [self.id_mapping()],
                "cgroupsPath": self.cgroup,
                "resources": self.resources(),
                "sysctl": {
                    // ping without a raw socket, for every group that is mapped.
                    "net.ipv4.ping_group_range": format!("0 {}", self.shift.len.saturating_sub(2)),
                    "net.ipv4.ip_unprivileged_port_start": "0",
                },
                "seccomp": seccomp::filter(),
                "maskedPaths": filesystem::MASKED,
                "readonlyPaths": filesystem::READ_ONLY,
            },
        })
    }

    fn id_mapping(&self) -> Value {
        json!({ "containerID": 0, "hostID": self.shift.base, "size": self.shift.len })
    }

    fn resources(&self) -> Value {
        let limits = self.spec.resources;
        let memory_bytes = self.memory_bytes();
        let mut memory = json!({ "limit": memory_bytes });
        if self.limits_swap {
            // Memory and swap together: none of it is swap.
            memory["swap"] = json!(memory_bytes);
        }
        let quota = u64::from(limits.vcpus) * CPU_PERIOD_US;
        let mut cpu = json!({ "quota": quota, "period": CPU_PERIOD_US });
        if let Some(cpus) = &self.cpus {
            cpu["cpus"] = json!(cpus);
        }
        json!({
            "devices": [{ "allow": false, "access": "rwm" }],
            "memory": memory,
            "cpu": cpu,
            "pids": { "limit": limits.max_processes },
        })
    }

    fn memory_bytes(&self) -> u64 {
        u64::from(self.spec.resources.memory_mib) << 20
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::BTreeMap;

    use hutch_types::{BuildId, Resources, Secret};

    use super::*;

    pub(crate) fn spec() -> InstanceSpec {
        InstanceSpec {
            id: "n00000000000test".parse().unwrap(),
            build_id: BuildId(uuid::Uuid::nil()),
            resources: Resources { vcpus: 2, memory_mib: 1024, disk_mib: 2048, max_processes: 512 },
            secret: Secret::new("s3cret"),
        }
    }

    pub(crate) fn config_with(env: &[(&str, &str)], change: impl FnOnce(&mut Bundle<'_>)) -> Value {
        let image = ImageConfig {
            env: env.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<BTreeMap<_, _>>(),
            ..ImageConfig::default()
        };
        let spec = spec();
        let mut bundle = Bundle {
            spec: &spec,
            image: &image,
            root: Path::new("/run/hutch/x/root"),
            guest: Path::new("/data/guest/abc"),
            criu_settings: Path::new("/data/criu.conf"),
            shift: UidShift::default(),
            cgroup: "/hutch-test/n00000000000test",
            host: HostLimits { oom_score_adj: -250, nofile_soft: 65_536, nofile_hard: 1_048_576 },
            cpus: None,
            limits_swap: true,
            shows_cgroups: true,
        };
        change(&mut bundle);
        bundle.config()
    }

    #[test]
    fn the_whole_configuration() {
        let mut config = config_with(&[("LANG", "C.UTF-8")], |_| {});
        // It has its own snapshot.
        config["linux"]["seccomp"] = Value::Null;
        insta::assert_json_snapshot!(config);
    }

    #[test]
    fn swap_is_only_limited_where_the_host_can() {
        let config = config_with(&[], |b| b.limits_swap = false);
        assert_eq!(config["linux"]["resources"]["memory"], json!({ "limit": 1_u64 << 30 }));
    }

    #[test]
    fn cpus_are_named_where_not_all_are_meant() {
        let cpu = |cpus: Option<&str>| {
            let config = config_with(&[], |b| b.cpus = cpus.map(str::to_owned));
            config["linux"]["resources"]["cpu"].clone()
        };
        assert_eq!(cpu(None).get("cpus"), None);
        assert_eq!(cpu(Some("0,3")), json!({ "quota": 200_000, "period": 100_000, "cpus": "0,3" }));
    }

    #[test]
    fn every_namespace_is_the_instances_own() {
        let config = config_with(&[], |_| {});
        let namespaces = config["linux"]["namespaces"].as_array().unwrap();
        assert_eq!(namespaces.len(), 7);
        assert!(namespaces.iter().all(|n| n.get("path").is_none()));
    }
}
