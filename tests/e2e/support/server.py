"""The server under test, as the environment names it."""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import httpx

# The base template's name.
BASE = "base"


@dataclass(frozen=True)
class Server:
    """Where a running server answers."""

    url: str
    key: str
    data_dir: Path
    pid: int

    @classmethod
    def from_environment(cls) -> "Server":
        return cls(
            url=os.environ["HUTCH_URL"],
            key=os.environ["HUTCH_API_KEY"],
            data_dir=Path(os.environ["HUTCH_DATA_DIR"]),
            pid=int(os.environ["HUTCH_PID"]),
        )

    @property
    def address(self) -> tuple[str, int]:
        parts = urlsplit(self.url)
        return parts.hostname, parts.port

    def client(self, key: str | None = "", timeout: float = 60) -> httpx.Client:
        """A client of the REST API. `key` None: without one; empty: with the right one."""
        headers = {} if key is None else {"X-API-Key": key or self.key}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout, trust_env=False)

    def sdk(self) -> dict:
        """The options that point an SDK here."""
        return {"api_key": self.key, "api_url": self.url, "sandbox_url": self.url}

    def health_seconds(self, timeout: float = 10) -> float:
        """How long the health endpoint takes on a new connection."""
        begun = time.monotonic()
        reply = httpx.get(f"{self.url}/health", timeout=timeout, trust_env=False)
        assert reply.status_code in (200, 204), reply.text
        return time.monotonic() - begun

    def memory_bytes(self) -> int:
        """What the server's process keeps in memory now."""
        return memory_bytes(self.pid)


def memory_bytes(pid: int) -> int:
    """The resident memory of a process of this machine."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise AssertionError(f"process {pid} has no memory")
