"""What a test sees of this machine: processes of sandboxes, addresses, services to try to reach."""

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path


def processes_with(marker: str) -> list[int]:
    """Processes of this machine, sandboxes included, whose command line contains `marker`."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if marker.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def sleeper(marker: str) -> str:
    """The end of a script that sleeps under a name by which this machine finds it."""
    return f"exec -a {marker} sleep 600"


def status_of(pid: int) -> dict[str, str]:
    """The lines of /proc/PID/status."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def addresses(version: int = 4) -> list[tuple[str, str]]:
    """This machine's addresses, loopback included, with their interfaces."""
    text = subprocess.run(["ip", "-json", f"-{version}", "address"], check=True, capture_output=True, text=True).stdout
    return [
        (info["local"], link["ifname"])
        for link in json.loads(text or "[]")
        for info in link.get("addr_info", [])
        if "local" in info
    ]


@dataclass
class Visits:
    """Who came to a service."""

    port: int
    tcp: list[str] = field(default_factory=list)
    udp: list[bytes] = field(default_factory=list)


@contextlib.contextmanager
def service(address: str = "0.0.0.0") -> Iterator[Visits]:
    """A service on one port of this machine, TCP and UDP, that greets and notes its visitors."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tcp, socket.socket(family, socket.SOCK_DGRAM) as udp:
        tcp.bind((address, 0))
        visits = Visits(tcp.getsockname()[1])
        udp.bind((address, visits.port))
        tcp.listen(64)

        def serve_tcp() -> None:
            with contextlib.suppress(OSError):
                while True:
                    stream, peer = tcp.accept()
                    visits.tcp.append(peer[0])
                    with stream, contextlib.suppress(OSError):
                        stream.sendall(b"HTTP/1.0 200 OK\r\n\r\nhost-service")

        def serve_udp() -> None:
            with contextlib.suppress(OSError):
                while True:
                    visits.udp.append(udp.recvfrom(2048)[0])

        for target in (serve_tcp, serve_udp):
            threading.Thread(target=target, daemon=True).start()
        try:
            yield visits
        finally:
            # Wakes the threads.
            for open_socket in (tcp, udp):
                with contextlib.suppress(OSError):
                    open_socket.shutdown(socket.SHUT_RDWR)
