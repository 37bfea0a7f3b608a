"""Counts what a server's sandboxes hold on this machine."""

import contextlib
import hashlib
import subprocess
from pathlib import Path

from support.own import NETWORK_NUMBER, OwnServer

CGROUPS = Path("/sys/fs/cgroup")


def census(own: OwnServer) -> dict[str, int]:
    """How many of each kind of thing there are now."""
    node = own.data_dir / "node"
    digest = hashlib.sha256(str(node).encode()).hexdigest()
    # node/disk and node/runtime-oci name what lies outside of the data directory by its hash.
    mount_dir, group = f"/run/hutch/{digest[:12]}", f"hutch-{digest[:10]}"
    processes, networks = _inside(mount_dir)
    prefix, table = f"ht{NETWORK_NUMBER}-", f"hutch{NETWORK_NUMBER}"
    links = [line for line in _output("ip", "-oneline", "link").splitlines() if line.split(": ")[1].startswith(prefix)]
    rules = _output("nft", "--handle", "--stateless", "list", "table", "inet", table)
    return {
        "processes": len(processes),
        "network namespaces": len(networks),
        "links": len(links),
        "rules": rules.count("# handle "),
        "mounts": sum(mount_dir in line or f"{own.data_dir}/" in line for line in _mounts()),
        "loop devices": _output("losetup", "--list", "--noheadings", "--output", "BACK-FILE").count(f"{own.data_dir}/"),
        "control groups": sum(
            path.is_dir()
            for pattern in (group, f"*/{group}")
            for root in CGROUPS.glob(pattern)
            for path in root.rglob("*")
        ),
        "instances": _entries(node / "instances"),
        "runc containers": _entries(node / "runc"),
        "disks": _entries(node / "disks"),
    }


def init_of(pid: int) -> int:
    """PID 1 of the sandbox that a process of this machine belongs to."""
    namespace = Path(f"/proc/{pid}/ns/pid").readlink()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "ns/pid").readlink() == namespace:
                numbers = next(
                    line for line in (entry / "status").read_text().splitlines() if line.startswith("NSpid:")
                )
                if numbers.split()[-1] == "1":
                    return int(entry.name)
    raise AssertionError(f"process {pid} is in no sandbox")


def _inside(mount_dir: str) -> tuple[set[int], set[str]]:
    """Processes whose root is on one of our disks, and their network namespaces."""
    host = Path("/proc/self/ns/pid").readlink()
    processes, networks = set(), set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        # It may end while it is looked at.
        with contextlib.suppress(OSError):
            if (entry / "ns/pid").readlink() == host:
                continue
            if mount_dir in (entry / "mountinfo").read_text():
                processes.add(int(entry.name))
                networks.add(str((entry / "ns/net").readlink()))
    return processes, networks


def _mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


def _entries(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir()) if folder.is_dir() else 0


def _output(*command: str) -> str:
    """What a command prints; nothing when there is nothing to list."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout
