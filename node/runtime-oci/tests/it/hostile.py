# Root inside tries to get out. Prints FAIL and a name for what works and must not.
import ctypes, errno, os, socket, subprocess

libc = ctypes.CDLL(None, use_errno=True)


def refused(name, attempt):
    try:
        result = attempt()
    except OSError as error:
        print("ok", name, errno.errorcode.get(error.errno))
    except ValueError as error:
        print("ok", name, error)
    else:
        print("FAIL", name, result)


def shell(name, command):
    result = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30)
    print("FAIL" if result.returncode == 0 else "ok", name, result.stdout[:200], result.stderr[:100].strip())


def empty(name, path):
    try:
        seen = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(4096)
    except OSError as error:
        seen = b"" if error.errno else error
    print("FAIL" if seen else "ok", name, seen)


def call(name, number, *arguments):
    ctypes.set_errno(0)
    arguments = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(ctypes.c_long(number), *arguments)
    code = errno.errorcode.get(ctypes.get_errno())
    print("ok" if result == -1 and code in ("EPERM", "ENOSYS") else "FAIL", name, result, code)


# System calls, by their numbers here.
if os.uname().machine == "x86_64":
    for name, number, *arguments in [
        ("mount", 165, b"none", b"/mnt", b"tmpfs", 0, 0), ("umount", 166, b"/proc", 2), ("pivot_root", 155, b"/", b"/"),
        ("open_tree", 428, -100, b"/", 1), ("move_mount", 429, -100, b"/", -100, b"/", 0), ("fsopen", 430, b"tmpfs", 0),
        ("fspick", 433, -100, b"/", 0), ("mount_setattr", 442, -100, b"/", 0, 0, 0), ("unshare user", 272, 0x10000000),
        ("unshare mount", 272, 0x20000), ("setns", 308, 0, 0), ("clone new user", 56, 0x10000011, 0, 0, 0, 0),
        ("clone new net, high bits", 56, 0x1_40000011, 0, 0, 0, 0), ("clone3", 435, 0, 0), ("bpf", 321, 0, 0, 0),
        ("perf_event_open", 298, 0, 0, -1, -1, 0), ("userfaultfd", 323, 0), ("io_uring_setup", 425, 1, 0),
        ("keyctl", 250, 0, -3, 0), ("add_key", 248, b"user", b"a", b"b", 1, -3), ("request_key", 249, b"user", b"a", 0, 0),
        ("open_by_handle_at", 304, -100, 0, 0), ("init_module", 175, 0, 0, b""), ("finit_module", 313, 0, b"", 0),
        ("delete_module", 176, b"x", 0), ("kexec_load", 246, 0, 0, 0, 0), ("reboot", 169, 0xFEE1DEAD, 672274793, 0, 0),
        ("swapon", 167, b"/x", 0), ("syslog", 103, 10, 0, 0), ("settimeofday", 164, 0, 0), ("clock_settime", 227, 0, 0),
        ("adjtimex", 159, 0), ("acct", 163, b"/tmp/acct"), ("quotactl", 179, 0, 0, 0, 0), ("sethostname", 170, b"x", 1),
        ("iopl", 172, 3), ("ioperm", 173, 0, 1, 1), ("modify_ldt", 154, 0, 0, 0), ("personality", 135, 0x0800000),
        ("fanotify_init", 300, 0, 0), ("lookup_dcookie", 212, 0, 0, 0), ("a call of the future", 999),
    ]:
        call(name, number, *arguments)
    # Other instruction sets' calls end the process.
    child = os.fork()
    if child == 0:
        libc.syscall(ctypes.c_long(0x40000000 + 39))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print("ok" if os.WIFSIGNALED(status) else "FAIL", "x32 call", status)

# Sockets that reach the host or its kernel.
for name, family, kind, protocol in [
    ("vsock", 40, 1, 0), ("packet", 17, 3, 3), ("alg", 38, 5, 0), ("tipc", 30, 1, 0), ("can", 29, 3, 1), ("xdp", 44, 3, 0),
    ("rds", 21, 5, 0), ("smc", 43, 1, 0), ("bluetooth", 31, 3, 0), ("raw", 2, 3, 1), ("raw v6", 10, 3, 58),
    ("netlink audit", 16, 3, 9), ("netlink netfilter", 16, 3, 12), ("netlink uevent", 16, 3, 15), ("netlink diag", 16, 3, 4),
    ("sctp", 2, 1, 132), ("dccp", 2, 6, 33), ("udplite", 2, 2, 136), ("mptcp", 2, 1, 262),
]:
    refused("socket " + name, lambda: socket.socket(family, kind, protocol))


def abstract():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(2)
    s.connect("\0hutch-test-abstract")


refused("abstract socket of the host", abstract)

# Of the kernel's filesystems nothing is writable, and what tells about the host is empty.
for path in [
    "/proc/kcore", "/proc/keys", "/proc/key-users", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi", "/proc/kallsyms", "/proc/acpi",
    "/proc/modules", "/proc/config.gz", "/proc/interrupts", "/sys/firmware", "/sys/kernel", "/sys/block", "/sys/class/block", "/sys/dev/block",
    "/sys/devices/virtual/block", "/sys/module", "/sys/power", "/sys/bus", "/sys/devices/virtual/dmi",
]:
    empty("masked " + path, path)
for path in [
    "/proc/sys/kernel/core_pattern", "/proc/sys/kernel/modprobe", "/proc/sys/vm/drop_caches", "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/kernel/hostname", "/proc/sysrq-trigger", "/proc/irq/default_smp_affinity", "/proc/1/oom_score_adj_no",
    "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/pids/pids.max", "/sys/fs/cgroup/memory.max",
    "/sys/fs/cgroup/memory/cgroup.procs", "/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/memory/release_agent",
    "/sys/class/net/lo/mtu", "/.hutch/envd",
]:
    refused("write " + path, lambda: open(path, "r+b").write(b"1"))
for path in ["/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/x/y", "/.hutch/x", "/proc/x"]:
    refused("mkdir " + path, lambda: os.mkdir(path))

# Devices: none of the host's, none that can be made.
nodes = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "pts", "shm", "mqueue", "fd", "stdin", "stdout", "stderr", ".boot_id"}
extra = set(os.listdir("/dev")) - nodes
print("FAIL" if extra else "ok", "devices", extra)
for major, minor in [(1, 1), (7, 0), (254, 0), (10, 232), (1, 3)]:
    refused("mknod %d:%d" % (major, minor), lambda: os.mknod("/tmp/node", 0o20600, os.makedev(major, minor)))
refused("chmod of a host's node", lambda: os.chmod("/dev/null", 0o777))

# Processes: only our own, with no descriptor of the host's among them.
init = open("/proc/1/comm").read().strip()
print("ok" if init == "init" else "FAIL", "first process", init)
host_files = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    for fd in os.listdir("/proc/%s/fd" % pid):
        try:
            target = os.readlink("/proc/%s/fd/%s" % (pid, fd))
        except OSError:
            continue
        if target.startswith("/") and not os.path.exists(target):
            host_files.append((pid, fd, target))
print("FAIL" if host_files else "ok", "descriptors of the host", host_files)
for pid in filter(str.isdigit, os.listdir("/proc")):
    environ = open("/proc/%s/environ" % pid, "rb").read() if pid != str(os.getpid()) else b""
    secrets = [v for v in environ.split(b"\0") if v.startswith(b"HUTCH_SECRET=") and v.strip(b"x") != b"HUTCH_SECRET="]
    print("FAIL" if secrets else "ok", "secret in the environment of", pid)
print("ok" if len(open("/proc/self/uid_map").read().split()) == 3 and " 100000 " in open("/proc/self/uid_map").read() else "FAIL", "uid map")

# Limits cannot be lifted, nor the killer averted.
import resource

hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
refused("raise processes", lambda: resource.setrlimit(resource.RLIMIT_NPROC, (hard + 1, hard + 1)) if hard != -1 else "unlimited")
refused("oom_score_adj -1000", lambda: os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"-1000"))
status = open("/proc/self/status").read()
capabilities = int(status.split("CapBnd:")[1].split()[0], 16)
print("ok" if capabilities == 0xA00405FB else "FAIL", "capabilities", hex(capabilities))
print("ok" if "Seccomp:\t2" in status else "FAIL", "seccomp")
shell("link settings", "ip link set eth0 down")
shell("new address", "ip addr add 10.1.2.3/24 dev eth0")
print("done")
