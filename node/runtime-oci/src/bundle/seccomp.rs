//! The system calls that guests may make: a list of what is allowed, everything else fails with `EPERM`.
//!
//! The list is what ordinary programs use: package managers, compilers, language runtimes, databases, debuggers, sshd.
//! Left out is what sets up kernels, mounts, namespaces, clocks or tracing of the whole system, and what has had more
//! holes than users: `bpf`, `perf_event_open`, `userfaultfd`, `io_uring`, keyrings, handles, kernel AIO, Landlock.
//!
//! Where programs probe for a call and fall back, it answers `ENOSYS` as an older kernel would, since some take `EPERM` for
//! a failure. Names that an older libseccomp does not know are skipped by runc, which answers `ENOSYS` for numbers beyond
//! those in the filter.

use serde_json::{Value, json};

const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const EPROTONOSUPPORT: u32 = 93;
const EAFNOSUPPORT: u32 = 97;

/// Allowed whatever the arguments are, by what they are about. A name that the architecture lacks is skipped.
#[rustfmt::skip]
const ALLOWED: [&[&str]; 14] = [
    FILES, OWNERS, LINKS, XATTRS, IO, WAITING, MEMORY, PROCESSES, IDENTITY, SIGNALS, TIME, SCHEDULING, SOCKETS, IPC,
];

#[rustfmt::skip]
const FILES: &[&str] = &[
    "access", "chdir", "chroot", "close", "close_range", "copy_file_range", "creat", "dup", "dup2", "dup3", "faccessat",
    "faccessat2", "fadvise64", "fallocate", "fchdir", "fcntl", "fdatasync", "flock", "fstat", "fstatfs", "fsync", "ftruncate", "futimesat",
    "getcwd", "getdents", "getdents64", "inotify_add_watch", "inotify_init", "inotify_init1", "inotify_rm_watch", "lseek",
    "lstat", "memfd_create", "mkdir", "mkdirat", "mknod", "mknodat", "name_to_handle_at", "newfstatat", "open", "openat", "openat2",
    "readahead", "rename", "renameat", "renameat2", "rmdir", "stat", "statfs", "statx", "sync", "sync_file_range", "syncfs",
    "truncate", "umask", "utime", "utimensat", "utimes", "cachestat",
];
#[rustfmt::skip]
const OWNERS: &[&str] =
    &["chmod", "chown", "fchmod", "fchmodat", "fchmodat2", "fchown", "fchownat", "lchown"];
#[rustfmt::skip]
const LINKS: &[&str] =
    &["link", "linkat", "readlink", "readlinkat", "symlink", "symlinkat", "unlink", "unlinkat"];
#[rustfmt::skip]
const XATTRS: &[&str] = &[
    "fgetxattr", "flistxattr", "fremovexattr", "fsetxattr", "getxattr", "lgetxattr", "listxattr", "llistxattr", "lremovexattr",
    "lsetxattr", "removexattr", "setxattr",
];
#[rustfmt::skip]
const IO: &[&str] = &[
    "ioctl", "pipe", "pipe2", "pread64", "preadv", "preadv2", "pwrite64", "pwritev", "pwritev2", "read", "readv", "sendfile",
    "splice", "tee", "vmsplice", "write", "writev",
];
#[rustfmt::skip]
const WAITING: &[&str] = &[
    "epoll_create", "epoll_create1", "epoll_ctl", "epoll_pwait", "epoll_pwait2", "epoll_wait", "eventfd", "eventfd2", "poll", "ppoll",
    "pselect6", "select", "signalfd", "signalfd4",
];
#[rustfmt::skip]
const MEMORY: &[&str] = &[
    "brk", "madvise", "membarrier", "mincore", "mlock", "mlock2", "mlockall", "mmap", "mprotect", "mremap", "mseal", "msync", "munlock",
    "munlockall", "munmap", "pkey_alloc", "pkey_free", "pkey_mprotect", "process_madvise", "remap_file_pages",
];
// Tracing reaches only processes of the same instance, and of the same user unless root does it.
#[rustfmt::skip]
const PROCESSES: &[&str] = &[
    "arch_prctl", "execve", "execveat", "exit", "exit_group", "fork", "get_robust_list", "getpgid", "getpgrp", "getpid", "getppid",
    "getrlimit", "getrusage", "getsid", "gettid", "kcmp", "pidfd_getfd", "pidfd_open", "prctl", "prlimit64", "process_vm_readv",
    "process_vm_writev", "ptrace", "rseq", "seccomp", "set_robust_list", "set_tid_address", "setpgid", "setrlimit", "setsid", "sysinfo",
    "times", "uname", "vfork", "wait4", "waitid",
];
#[rustfmt::skip]
const IDENTITY: &[&str] = &[
    "capget", "capset", "getegid", "geteuid", "getgid", "getgroups", "getresgid", "getresuid", "getuid", "setfsgid", "setfsuid",
    "setgid", "setgroups", "setregid", "setresgid", "setresuid", "setreuid", "setuid",
];
#[rustfmt::skip]
const SIGNALS: &[&str] = &[
    "kill", "pause", "pidfd_send_signal", "restart_syscall", "rt_sigaction", "rt_sigpending", "rt_sigprocmask", "rt_sigqueueinfo",
    "rt_sigreturn", "rt_sigsuspend", "rt_sigtimedwait", "rt_tgsigqueueinfo", "sigaltstack", "tgkill", "tkill",
];
#[rustfmt::skip]
const TIME: &[&str] = &[
    "alarm", "clock_getres", "clock_gettime", "clock_nanosleep", "getitimer", "getrandom", "gettimeofday", "nanosleep", "setitimer", "time",
    "timer_create", "timer_delete", "timer_getoverrun", "timer_gettime", "timer_settime", "timerfd_create", "timerfd_gettime",
    "timerfd_settime",
];
#[rustfmt::skip]
const SCHEDULING: &[&str] = &[
    "getcpu", "getpriority", "ioprio_get", "ioprio_set", "sched_get_priority_max", "sched_get_priority_min", "sched_getaffinity",
    "sched_getattr", "sched_getparam", "sched_getscheduler", "sched_rr_get_interval", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler", "sched_yield", "setpriority",
];
#[rustfmt::skip]
const SOCKETS: &[&str] = &[
    "accept", "accept4", "bind", "connect", "getpeername", "getsockname", "getsockopt", "listen", "recvfrom", "recvmmsg", "recvmsg",
    "sendmmsg", "sendmsg", "sendto", "setsockopt", "shutdown",
];
#[rustfmt::skip]
const IPC: &[&str] = &[
    "futex", "futex_requeue", "futex_wait", "futex_waitv", "futex_wake", "mq_getsetattr", "mq_notify", "mq_open", "mq_timedreceive",
    "mq_timedsend", "mq_unlink", "msgctl", "msgget", "msgrcv", "msgsnd", "semctl", "semget", "semop", "semtimedop", "shmat", "shmctl",
    "shmdt", "shmget",
];

/// Answered as if the kernel did not have them. `clone3` hides its flags in memory where no filter sees them; without it
/// libc uses `clone`. The NUMA calls make libnuma and its users go on without NUMA.
#[rustfmt::skip]
const UNKNOWN: &[&str] = &[
    "clone3", "get_mempolicy", "io_cancel", "io_destroy", "io_getevents", "io_pgetevents", "io_setup", "io_submit", "io_uring_enter",
    "io_uring_register", "io_uring_setup", "landlock_add_rule", "landlock_create_ruleset", "landlock_restrict_self", "mbind",
    "memfd_secret", "migrate_pages", "move_pages", "set_mempolicy", "set_mempolicy_home_node",
];

/// `CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET`
const NEW_NAMESPACES: u64 = 0x7E02_0000;

const AF_UNIX: u64 = 1;
const AF_INET: u64 = 2;
const AF_INET6: u64 = 10;
const AF_NETLINK: u64 = 16;
const NETLINK_ROUTE: u64 = 0;

/// `0`, `IPPROTO_ICMP`, `IPPROTO_TCP`, `IPPROTO_UDP`, `IPPROTO_ICMPV6`. Asking for another one would load kernel modules.
const IP_PROTOCOLS: [u64; 5] = [0, 1, 6, 17, 58];

/// `PER_LINUX`, `PER_LINUX32`, each also with `UNAME26`; `ADDR_NO_RANDOMIZE` for debuggers; reading the present one.
const PERSONALITIES: [u64; 6] = [0, 0x8, 0x2_0000, 0x2_0008, 0x4_0000, 0xffff_ffff];

/// The filter as the OCI configuration wants it.
pub(super) fn filter() -> Value {
    let allowed: Vec<&str> = ALLOWED.concat();
    let mut rules = vec![
        json!({ "names": allowed, "action": "SCMP_ACT_ALLOW" }),
        allow("clone", vec![masked(0, NEW_NAMESPACES, 0)]),
        refuse(UNKNOWN, ENOSYS, vec![]),
    ];
    rules.extend(PERSONALITIES.map(|persona| allow("personality", vec![equal(0, persona)])));
    rules.extend(socket_rules());
    json!({
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": EPERM,
        "architectures": [architecture()],
        "syscalls": rules,
    })
}

/// Sockets reach the instance's own network namespace only; the families are those that have users. An equal comparison
/// is about all 64 bits of the argument, so that nothing gets through with bits set that the kernel ignores.
fn socket_rules() -> Vec<Value> {
    let mut rules = vec![
        allow("socket", vec![equal(0, AF_UNIX)]),
        allow("socketpair", vec![equal(0, AF_UNIX)]),
        // What `ip` and getifaddrs need. Libraries that try the audit log go on without it when it is not supported.
        allow("socket", vec![equal(0, AF_NETLINK), equal(2, NETLINK_ROUTE)]),
        refuse(&["socket"], EPROTONOSUPPORT, vec![equal(0, AF_NETLINK), compare(2, "NE", NETLINK_ROUTE)]),
        refuse(&["socket"], EAFNOSUPPORT, vec![compare(0, "GT", AF_NETLINK)]),
    ];
    for family in [AF_INET, AF_INET6] {
        rules
            .extend(IP_PROTOCOLS.map(|protocol| allow("socket", vec![equal(0, family), equal(2, protocol)])));
        // Programs that would like multipath TCP or SCTP use TCP then.
        let beyond = compare(2, "GT", IP_PROTOCOLS.into_iter().max().unwrap_or(0));
        rules.push(refuse(&["socket"], EPROTONOSUPPORT, vec![equal(0, family), beyond]));
    }
    rules
}

fn allow(name: &str, args: Vec<Value>) -> Value {
    json!({ "names": [name], "action": "SCMP_ACT_ALLOW", "args": args })
}

fn refuse(names: &[&str], errno: u32, args: Vec<Value>) -> Value {
    json!({ "names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": errno, "args": args })
}

fn equal(index: u32, value: u64) -> Value {
    compare(index, "EQ", value)
}

fn compare(index: u32, operator: &str, value: u64) -> Value {
    json!({ "index": index, "value": value, "op": format!("SCMP_CMP_{operator}") })
}

fn masked(index: u32, mask: u64, value: u64) -> Value {
    json!({ "index": index, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ" })
}

/// The native one alone: other instruction sets have other numbers and other holes.
fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "SCMP_ARCH_AARCH64" } else { "SCMP_ARCH_X86_64" }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_whole_filter() {
        // The architecture is that of the machine.
        insta::assert_json_snapshot!(filter()["syscalls"]);
    }

    #[test]
    fn no_call_is_in_two_lists() {
        let mut seen = BTreeSet::new();
        for name in ALLOWED.concat().into_iter().chain(UNKNOWN.iter().copied()) {
            assert!(seen.insert(name), "{name} is listed twice");
        }
        for with_arguments in ["clone", "socket", "socketpair", "personality"] {
            assert!(!seen.contains(with_arguments), "{with_arguments} is allowed only with some arguments");
        }
    }

    #[rustfmt::skip]
    #[test]
    fn dangerous_calls_are_not_allowed() {
        let allowed = ALLOWED.concat();
        for name in [
            "acct", "add_key", "adjtimex", "bpf", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init", "finit_module",
            "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_setup", "ioperm", "iopl", "kexec_file_load",
            "kexec_load", "keyctl", "lookup_dcookie", "modify_ldt", "mount", "mount_setattr", "move_mount", "open_by_handle_at",
            "open_tree", "perf_event_open", "pivot_root", "quotactl", "reboot", "request_key", "setdomainname", "sethostname", "setns",
            "settimeofday", "swapoff", "swapon", "syslog", "umount2", "unshare", "userfaultfd", "uselib", "vhangup",
        ] {
            assert!(!allowed.contains(&name), "{name}");
        }
    }

    #[test]
    fn the_ranges_of_refused_sockets_start_above_the_allowed_ones() {
        let rules = socket_rules();
        let errno_of = |rule: &&Value| rule["action"] == "SCMP_ACT_ERRNO";
        for rule in rules.iter().filter(errno_of) {
            for arg in rule["args"].as_array().unwrap().iter().filter(|a| a["op"] == "SCMP_CMP_GT") {
                let least = arg["value"].as_u64().unwrap();
                assert!(least == AF_NETLINK || IP_PROTOCOLS.iter().all(|p| *p <= least), "{rule}");
            }
        }
    }
}
