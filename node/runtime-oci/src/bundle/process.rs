//! The first process: what it runs, what it may do, how much of what it may use.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::Bundle;
use super::filesystem::GUEST_DIR;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Variables of ours start so; images cannot set them.
const OWN_PREFIX: &str = "HUTCH_";

/// What root inside may do, all of it only to what belongs to the instance, since its user namespace is its own. Package
/// managers, `sudo`, `su`, `useradd` and `sshd` need these; nothing that reaches network set-up, mounts, tracing of
/// others, limits or the clock is among them.
const CAPABILITIES: [&str; 12] = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
];

/// Of the processes that an instance may have, how many one user inside may have.
///
/// The cgroup's limit is for all of them together, envd included. When a fork bomb reaches it, envd cannot start anything
/// either, and nothing inside can set some aside. `RLIMIT_NPROC` counts per user: with a bit less for each, a bomb of
/// the default user stops short of the cgroup's limit, and envd, which is root, still has room. A bomb of root itself
/// does fill it; envd then still answers, since its threads exist, and can kill.
fn process_limit(max_processes: u32) -> u32 {
    let reserve = (max_processes / 8).clamp(8, 64);
    max_processes.saturating_sub(reserve).max(1)
}

pub(super) fn process(bundle: &Bundle<'_>) -> Value {
    let user_processes = process_limit(bundle.spec.resources.max_processes);
    json!({
        "terminal": false,
        "cwd": "/",
        "user": { "uid": 0, "gid": 0 },
        "args": [format!("{GUEST_DIR}/init")],
        "env": environment(bundle),
        "oomScoreAdj": bundle.host.oom_score_adj,
        // sudo and su are setuid programs. They gain nothing beyond the capabilities above.
        "noNewPrivileges": false,
        "capabilities": {
            "bounding": CAPABILITIES,
            "effective": CAPABILITIES,
            "permitted": CAPABILITIES,
        },
        "rlimits": [
            { "type": "RLIMIT_NOFILE", "soft": bundle.host.nofile_soft, "hard": bundle.host.nofile_hard },
            { "type": "RLIMIT_NPROC", "soft": user_processes, "hard": user_processes },
            // The host's core pattern may be a program of the host's.
            { "type": "RLIMIT_CORE", "soft": 0, "hard": 0 },
        ],
    })
}

fn environment(bundle: &Bundle<'_>) -> Vec<String> {
    let mut env: BTreeMap<&str, String> = BTreeMap::from([("PATH", PATH.to_owned())]);
    let is_usable = |name: &str, value: &str| {
        !name.is_empty()
            && !name.contains(['=', '\0'])
            && !value.contains('\0')
            && !name.starts_with(OWN_PREFIX)
    };
    let from_image = bundle.image.env.iter().filter(|(name, value)| is_usable(name, value));
    env.extend(from_image.map(|(name, value)| (name.as_str(), value.clone())));
    env.extend([
        ("HUTCH_DEFAULT_USER", bundle.image.user.clone()),
        ("HUTCH_DEFAULT_WORKDIR", bundle.image.workdir.clone()),
        ("HUTCH_SECRET", bundle.spec.secret.expose().to_owned()),
    ]);
    env.into_iter().map(|(name, value)| format!("{name}={value}")).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::config_with;
    use super::*;

    #[test]
    fn an_image_cannot_set_our_variables_nor_break_the_environment() {
        let hostile =
            [("HUTCH_SECRET", "mine"), ("A=B", "c"), ("", "x"), ("N", "a\0b"), ("PATH", "/opt/bin")];
        let config = config_with(&hostile, |_| {});
        let env: Vec<&str> =
            config["process"]["env"].as_array().unwrap().iter().map(|v| v.as_str().unwrap()).collect();
        assert!(env.contains(&"HUTCH_SECRET=s3cret") && env.contains(&"PATH=/opt/bin"), "{env:?}");
        assert_eq!(env.len(), 4, "{env:?}");
    }

    #[test]
    fn nothing_that_reaches_beyond_the_instance_is_among_the_capabilities() {
        for banned in
            ["SYS_ADMIN", "NET_ADMIN", "NET_RAW", "SYS_PTRACE", "SYS_MODULE", "MKNOD", "SYS_RESOURCE", "BPF"]
        {
            assert!(!CAPABILITIES.contains(&format!("CAP_{banned}").as_str()), "{banned}");
        }
    }

    #[test]
    fn a_user_can_have_fewer_processes_than_the_instance() {
        assert_eq!(process_limit(4096), 4032);
        assert_eq!(process_limit(512), 448);
        assert_eq!(process_limit(64), 56);
        assert_eq!(process_limit(4), 1);
    }
}
