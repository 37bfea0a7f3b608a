"""A network of its own for a server and its clients: the real ports and a resolver of one's own, and the machine stays as it is."""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Lab:
    """A network namespace with nothing but loopback. Programs in it see `resolv_conf` as their resolver's configuration."""

    def __init__(self, resolv_conf: Path):
        self.resolv_conf = resolv_conf
        # Lives as long as the namespace is needed; the line says that it is there.
        self.holder = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo ready && exec sleep 3600"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.holder.stdout and self.holder.stdout.readline() == "ready\n"

    @property
    def server_prefix(self) -> list[str]:
        """For servers: the network alone, so that what they mount is seen from outside."""
        return ["nsenter", f"--net=/proc/{self.holder.pid}/ns/net", "--"]

    @property
    def client_prefix(self) -> list[str]:
        script = f'mount --bind "{self.resolv_conf}" /etc/resolv.conf && exec "$@"'
        return [*self.server_prefix, "unshare", "--mount", "sh", "-c", script, "sh"]

    def run(
        self, *command: str | Path, env: dict[str, str] | None = None, check: bool = True, within: float = 120
    ) -> subprocess.CompletedProcess:
        """Runs a client with exactly `env` and PATH."""
        done = subprocess.run(
            [*self.client_prefix, *map(str, command)],
            env={"PATH": os.environ["PATH"], "HOME": "/root", **(env or {})},
            capture_output=True,
            text=True,
            timeout=within,
        )
        assert not check or done.returncode == 0, f"{command}: {done.returncode}\n{done.stdout}{done.stderr}"
        return done

    def close(self) -> None:
        self.holder.kill()
        self.holder.wait()


@contextlib.contextmanager
def lab(nameserver: str) -> Iterator[Lab]:
    with tempfile.TemporaryDirectory() as folder:
        resolv_conf = Path(folder) / "resolv.conf"
        resolv_conf.write_text(f"nameserver {nameserver}\n")
        place = Lab(resolv_conf)
        try:
            yield place
        finally:
            place.close()
