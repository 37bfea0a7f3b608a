"""Guests that try to leave: mounts, tracing, devices, control groups, host files and processes, kernel interfaces."""

import errno
import json
import socket
import subprocess
import uuid
from pathlib import Path

import pytest
from e2b import CommandExitException

from support.host import processes_with, sleeper, status_of
from support.wait import wait_for

# First host id of the range that sandboxes' users are mapped to.
FIRST_ID = 100_000
# By their bits in /proc/PID/status.
FORBIDDEN_CAPABILITIES = {
    "DAC_READ_SEARCH": 2,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYS_MODULE": 16,
    "SYS_RAWIO": 17,
    "SYS_PTRACE": 19,
    "SYS_ADMIN": 21,
    "SYS_BOOT": 22,
    "SYS_TIME": 25,
    "MKNOD": 27,
    "SYSLOG": 34,
    "BPF": 39,
}


@pytest.fixture(scope="module")
def prison(create_for_module):
    return create_for_module(timeout=900)


def fails(sandbox, script: str, user: str = "root") -> str:
    """Runs a script that must not succeed; returns what it printed."""
    with pytest.raises(CommandExitException) as caught:
        sandbox.commands.run(script, user=user, timeout=20)
    return caught.value.stdout + caught.value.stderr


@pytest.mark.parametrize(
    "script",
    [
        "mount -t tmpfs none /mnt",
        "mount -t proc proc /mnt",
        "mount -t sysfs sysfs /mnt",
        "mount -t cgroup -o memory none /mnt",
        "mount -t overlay overlay -o lowerdir=/etc,upperdir=/tmp,workdir=/var/tmp /mnt",
        "mount --bind / /mnt",
        "mount --bind /etc/passwd /proc/self/status",
        "mount -o remount,rw /proc/sys",
        "mount -o remount,rw /sys",
        "mount -o remount,rw /sys/fs/cgroup",
        "mount --make-rshared /",
        "umount /proc/kcore",
        "umount -l /proc",
        "umount /.hutch",
        "unshare -m true",
        "unshare -Urm true",
        "unshare --user --map-root-user mount -t tmpfs none /mnt",
        "unshare -n true",
        "unshare -p --fork true",
        "nsenter -t 1 -m true",
        "nsenter -t 1 -a true",
        "truncate -s 10M /tmp/disk && mkfs.ext4 -q /tmp/disk && mount -o loop /tmp/disk /mnt",
        "pivot_root / /mnt",
        "swapon /tmp/disk",
    ],
)
def test_nothing_can_be_mounted_or_unshared(prison, script):
    before = prison.commands.run("cat /proc/self/mountinfo").stdout
    for user in ["root", "user"]:
        fails(prison, f"PATH=$PATH:/usr/sbin:/sbin; {script}", user)
    assert prison.commands.run("cat /proc/self/mountinfo").stdout == before


@pytest.mark.parametrize(
    "script",
    [
        "mknod /tmp/sda b 8 0 && head -c 1 /tmp/sda",
        "mknod /tmp/vda b 254 0 && head -c 1 /tmp/vda",
        "mknod /tmp/mem c 1 1 && head -c 1 /tmp/mem",
        "mknod /tmp/kmsg c 1 11 && head -c 1 /tmp/kmsg",
        "mknod /tmp/loop b 7 0 && head -c 1 /tmp/loop",
        "mknod /tmp/tun c 10 200 && head -c 1 /tmp/tun",
        "head -c 1 /dev/mem",
        "head -c 1 /dev/kmsg",
        "head -c 1 /dev/kvm",
        "head -c 1 /dev/vda",
        "head -c 1 /dev/sda",
        "head -c 1 /dev/loop0",
        "head -c 1 /dev/loop-control",
        "head -c 1 /dev/fuse",
        "head -c 1 /dev/net/tun",
        "head -c 1 /proc/kcore | grep -q .",
        "losetup -f /etc/passwd",
        "dmesg",
        "modprobe tun && ip tuntap add tap0 mode tap",
    ],
)
def test_there_are_no_devices_of_the_host(prison, script):
    fails(
        prison, f"PATH=$PATH:/usr/sbin:/sbin; rm -f /tmp/sda /tmp/vda /tmp/mem /tmp/kmsg /tmp/loop /tmp/tun; {script}"
    )


def test_only_harmless_devices_are_there(prison):
    harmless = "full null random tty urandom zero ptmx console fd stdin stdout stderr pts shm mqueue core"
    assert set(prison.commands.run("ls /dev").stdout.split()) <= set(harmless.split())


@pytest.mark.parametrize(
    "path",
    [
        "/proc/sysrq-trigger",
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/modprobe",
        "/proc/sys/kernel/hostname",
        "/proc/sys/kernel/randomize_va_space",
        "/proc/sys/vm/drop_caches",
        "/proc/sys/vm/overcommit_memory",
        "/proc/sys/fs/binfmt_misc/register",
        "/proc/sys/net/ipv4/ip_forward",
        "/proc/sys/net/ipv4/ip_unprivileged_port_start",
        "/proc/irq/default_smp_affinity",
        "/sys/kernel/uevent_helper",
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/pids/pids.max",
        "/sys/fs/cgroup/memory.max",
        "/sys/fs/cgroup/cgroup.procs",
        "/sys/fs/cgroup/memory/cgroup.procs",
        "/sys/fs/cgroup/memory/release_agent",
        "/.hutch/envd",
        "/.hutch/init",
    ],
)
def test_the_kernels_switches_cannot_be_turned(prison, path):
    # `test -w` would believe the modes.
    fails(prison, f"chmod 777 {path} 2>/dev/null; printf 1 > {path}")


def test_control_groups_cannot_be_made_or_left(prison):
    for script in [
        "mkdir /sys/fs/cgroup/escape",
        "mkdir /sys/fs/cgroup/memory/escape",
        "echo $$ > /sys/fs/cgroup/memory/tasks",
        "echo 0 > /sys/fs/cgroup/devices/devices.allow",
    ]:
        fails(prison, script)


# x86-64 numbers of calls that a guest has no business with.
CALLS = {
    "bpf": 321,
    "perf_event_open": 298,
    "userfaultfd": 323,
    "io_uring_setup": 425,
    "keyctl": 250,
    "add_key": 248,
    "request_key": 249,
    "kexec_load": 246,
    "init_module": 175,
    "finit_module": 313,
    "delete_module": 176,
    "open_by_handle_at": 304,
    "mount": 165,
    "umount2": 166,
    "pivot_root": 155,
    "setns": 308,
    "unshare": 272,
    "fsopen": 430,
    "fsmount": 432,
    "move_mount": 429,
    "open_tree": 428,
    "mount_setattr": 442,
    "swapon": 167,
    "reboot": 169,
    "sethostname": 170,
    "settimeofday": 164,
    "clock_settime": 227,
    "adjtimex": 159,
    "iopl": 172,
    "ioperm": 173,
    "syslog": 103,
    "acct": 163,
    "quotactl": 179,
    "fanotify_init": 300,
    "vhangup": 153,
}


def test_dangerous_system_calls_are_refused(prison):
    program = f"""
import ctypes, json
libc = ctypes.CDLL(None, use_errno=True)
result = {{}}
for name, number in {json.dumps(CALLS)}.items():
    ctypes.set_errno(0)
    value = libc.syscall(number, *[ctypes.c_long(0)] * 6)
    result[name] = ctypes.get_errno() if value == -1 else 0
# clone with new namespaces, and clone3 whose flags no filter sees
result['clone(NEWUSER)'] = ctypes.get_errno() if libc.syscall(56, 0x10000000 | 17, 0, 0, 0, 0) == -1 else 0
result['clone3'] = ctypes.get_errno() if libc.syscall(435, 0, 0) == -1 else 0
print(json.dumps(result))
"""
    prison.files.write("/tmp/calls.py", program)
    for user in ["root", "user"]:
        result = json.loads(prison.commands.run("python3 /tmp/calls.py", user=user).stdout)
        allowed = {name for name, code in result.items() if code not in (errno.EPERM, errno.ENOSYS)}
        assert not allowed, {name: result[name] for name in allowed}


def test_other_tables_of_system_calls_are_closed(prison):
    """mount by its x32 number: the kernel kills or refuses, whatever the filter for the usual numbers says."""
    program = "import ctypes; print(ctypes.CDLL(None).syscall(0x40000000 | 165, 0, 0, 0, 0, 0))"
    try:
        assert prison.commands.run(f'python3 -c "{program}"', user="root").stdout == "-1\n"
    except CommandExitException as ended:
        assert ended.exit_code in (-1, 159)


def test_sockets_that_reach_into_the_kernel_are_refused(prison):
    program = """
import socket
for name, args in {
    'packet': (17, socket.SOCK_RAW, 0x300),
    'raw': (socket.AF_INET, socket.SOCK_RAW, 255),
    'icmp': (socket.AF_INET, socket.SOCK_RAW, 1),
    'vsock': (40, socket.SOCK_STREAM, 0),
    'alg': (38, socket.SOCK_SEQPACKET, 0),
    'netfilter': (16, socket.SOCK_RAW, 12),
    'audit': (16, socket.SOCK_RAW, 9),
    'uevent': (16, socket.SOCK_RAW, 15),
    'bluetooth': (31, socket.SOCK_RAW, 1),
    'xdp': (44, socket.SOCK_RAW, 0),
}.items():
    try:
        socket.socket(*args)
        print('open', name)
    except OSError as error:
        pass
"""
    prison.files.write("/tmp/sockets.py", program)
    for user in ["root", "user"]:
        assert prison.commands.run("python3 /tmp/sockets.py", user=user).stdout == ""


def test_processes_are_unprivileged_on_the_host(prison):
    marker = uuid.uuid4().hex
    for user, uid in [("root", 0), ("user", 1000)]:
        handle = prison.commands.run(sleeper(marker + user), user=user, background=True, timeout=0)
        pid = wait_for("the process", lambda: processes_with(marker + user))[0]
        status = status_of(pid)
        assert status["Uid"].split() == [str(FIRST_ID + uid)] * 4
        assert status["Seccomp"] == "2"
        capabilities = int(status["CapBnd"], 16)
        held = [name for name, bit in FORBIDDEN_CAPABILITIES.items() if capabilities >> bit & 1]
        assert not held
        for name in ["pid", "ipc", "uts", "mnt", "net", "user", "cgroup"]:
            assert Path(f"/proc/{pid}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink(), name
        handle.kill()


def test_only_its_own_processes_are_seen(prison):
    marker = uuid.uuid4().hex
    with subprocess.Popen(["sleep", "600"], env={"MARK": marker}) as on_host:
        try:
            read = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '"
            assert marker not in prison.commands.run(read, user="root").stdout
            processes = prison.commands.run("ls /proc | grep -E '^[0-9]+$'", user="root").stdout.split()
            assert "1" in processes and len(processes) < 30
            if str(on_host.pid) not in processes:
                fails(prison, f"kill -9 {on_host.pid}")
            assert on_host.poll() is None
        finally:
            on_host.kill()


TRACED_CHILD = """
import ctypes, os
libc, TRACEME, CONT, STOP = ctypes.CDLL(None), 0, 7, 19
pid = os.fork()
if pid == 0:
    libc.ptrace(TRACEME, 0, 0, 0)
    os.kill(os.getpid(), STOP)
    os._exit(5)
os.waitpid(pid, 0)
libc.ptrace(CONT, pid, 0, 0)
print(os.WEXITSTATUS(os.waitpid(pid, 0)[1]))
"""


def test_tracing_stays_inside_and_below(prison):
    program = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
ATTACH, SEIZE, DETACH = 16, 0x4206, 17
def cmdline(pid):
    try:
        return open(f'/proc/{pid}/cmdline').read()
    except OSError:
        return ''
targets = [1] + [int(p) for p in os.listdir('/proc') if p.isdigit() and 'envd' in cmdline(p)]
assert len(targets) > 1, targets
for pid in targets:
    for request in (ATTACH, SEIZE):
        if libc.ptrace(request, pid, None, None) == 0:
            print('traced', pid, cmdline(pid))
            libc.ptrace(DETACH, pid, None, None)
    looks = {'mem': open, 'environ': open, 'maps': open, 'fd': os.listdir, 'root': os.readlink, 'exe': os.readlink}
    for name, look in looks.items():
        try:
            look(f'/proc/{pid}/{name}')
            print('read', pid, name)
        except OSError:
            pass
    try:
        os.kill(pid, 0)
        print('may signal', pid)
    except PermissionError:
        pass
"""
    prison.files.write("/tmp/trace.py", program)
    assert prison.commands.run("python3 /tmp/trace.py").stdout == ""
    # What debuggers need works: tracing one's own children.
    prison.files.write("/tmp/child.py", TRACED_CHILD)
    assert prison.commands.run("python3 /tmp/child.py").stdout == "5\n"


def test_commands_do_not_learn_the_instances_secret(prison):
    script = "env; cat /proc/self/environ /proc/[0-9]*/environ 2>/dev/null | tr '\\0' '\\n'"
    assert "HUTCH_SECRET" not in prison.commands.run(script).stdout


def test_nothing_of_the_host_is_mounted(prison, server):
    mounts = prison.commands.run("cat /proc/self/mountinfo", user="root").stdout.splitlines()
    own = {"overlay", "proc", "tmpfs", "devpts", "mqueue", "sysfs", "cgroup", "cgroup2"}
    of_host = [line.split()[4] for line in mounts if line.split(" - ")[1].split()[0] not in own]
    # What lxcfs shows instead of the kernel's own figures.
    files = {f"/proc/{name}" for name in "cpuinfo diskstats loadavg meminfo stat swaps uptime".split()}
    files.add("/sys/devices/system/cpu/online")
    shown = [line.split() for line in mounts if line.split(" - ")[1].startswith("fuse.lxcfs ")]
    assert all(fields[4] in files and fields[3] == fields[4] for fields in shown), shown
    assert all({"ro", "nosuid", "nodev"} <= set(fields[5].split(",")) for fields in shown), shown
    of_host = [point for point in of_host if point not in {fields[4] for fields in shown}]
    assert all(point.startswith(("/.hutch", "/dev/", "/proc/")) for point in of_host), of_host
    assert prison.commands.run("hostname").stdout.strip() != socket.gethostname()
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert prison.commands.run("cat /proc/sys/kernel/random/boot_id").stdout.strip() != boot_id
    assert prison.commands.run(f"ls -d {server.data_dir} 2>/dev/null || true", user="root").stdout == ""


def test_abstract_sockets_of_the_host_are_not_there(prison):
    name = f"hutch-{uuid.uuid4().hex}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
        listener.bind("\0" + name)
        listener.listen()
        datagrams.bind("\0" + name + "d")
        program = f"""
import socket
for kind, name in ((socket.SOCK_STREAM, '{name}'), (socket.SOCK_DGRAM, '{name}d')):
    try:
        socket.socket(socket.AF_UNIX, kind).connect(chr(0) + name)
        print('connected')
    except OSError as error:
        print(error.errno)
print(open('/proc/net/unix').read())
"""
        prison.files.write("/tmp/abstract.py", program)
        out = prison.commands.run("python3 /tmp/abstract.py", user="root").stdout
        assert out.split()[:2] == [str(errno.ECONNREFUSED)] * 2 and name not in out


def test_shared_memory_and_queues_are_its_own(prison, neighbour):
    prison.commands.run("ipcmk -M 1000 && touch /dev/shm/mine /dev/mqueue/mine", user="root")
    assert "0x" not in neighbour.commands.run("ipcs -m", user="root").stdout
    assert neighbour.commands.run("ls /dev/shm /dev/mqueue").stdout.split() == ["/dev/mqueue:", "/dev/shm:"]


def test_sudo_works_inside(prison):
    assert prison.commands.run("sudo id -u; sudo -u '#1000' id -u").stdout == "0\n1000\n"


def test_setuid_programs_give_no_more_than_roots_rights_inside(prison):
    script = "cp /bin/cat /tmp/suid && chown root /tmp/suid && chmod 4755 /tmp/suid"
    prison.commands.run(script, user="root")
    caps = prison.commands.run("/tmp/suid /proc/self/status | grep CapEff").stdout.split()[1]
    assert not int(caps, 16) & (1 << 21 | 1 << 12 | 1 << 19)


def test_file_capabilities_do_not_go_beyond_the_bounding_set(prison):
    script = "cp /bin/true /tmp/capable && setcap cap_sys_admin+ep /tmp/capable && /tmp/capable"
    with pytest.raises(CommandExitException):
        prison.commands.run(f"PATH=$PATH:/usr/sbin:/sbin; {script}", user="user", timeout=20)
    prison.commands.run(f"PATH=$PATH:/usr/sbin:/sbin; {script} || true", user="root")
    fails(prison, "/tmp/capable")


def test_core_dumps_do_not_reach_the_hosts_handler(prison):
    assert prison.commands.run("ulimit -Hc; ulimit -c").stdout == "0\n0\n"
