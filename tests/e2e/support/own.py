"""A server that a test starts, kills and starts again."""

import contextlib
import os
import signal
import socket
import subprocess
import time
import uuid
from pathlib import Path

import httpx

from support.server import Server

# Settings of the caller that must not reach it.
FOREIGN = ("HUTCH_DATA_DIR", "HUTCH_LISTEN", "HUTCH_CONFIG")
# The scripts' server has number 1.
NETWORK_NUMBER = 2


class OwnServer:
    """One data directory with a `base` template whose disk is 1 GiB, and one port. The server on it comes and goes."""

    def __init__(self, binary: Path, data_dir: Path):
        self.binary, self.data_dir = binary, data_dir
        self.log = data_dir.with_name(data_dir.name + ".log")
        # For whoever has to clear up after a test run that was killed; empty while no server runs.
        self.pid_file = data_dir.with_name(data_dir.name + ".pid")
        self.process: subprocess.Popen | None = None
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.key = self.run(
            "key", "create", "--name", f"own-{uuid.uuid4()}", "--data-dir", str(data_dir)
        ).stdout.strip()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def server(self) -> Server:
        assert self.process, "the server does not run"
        return Server(self.url, self.key, self.data_dir, self.process.pid)

    def environment(self, **settings: object) -> dict[str, str]:
        inherited = {name: value for name, value in os.environ.items() if name not in FOREIGN}
        own = {f"HUTCH_{name.upper()}": str(value) for name, value in settings.items()}
        return {**inherited, "HUTCH_NODE_NETWORK_NUMBER": str(NETWORK_NUMBER), "HUTCH_POOL_SIZE": "2", **own}

    def run(self, *command: str, check: bool = True, **settings: object) -> subprocess.CompletedProcess:
        """Runs another command of the program."""
        done = subprocess.run(
            [self.binary, *command], env=self.environment(**settings), capture_output=True, text=True, timeout=120
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def start(self, within: float = 60, **settings: object) -> float:
        """Starts it with settings as in the environment, without `HUTCH_`. Returns after how long it answered."""
        assert not self.process
        begun = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [self.binary, "serve", "--listen", f"127.0.0.1:{self.port}", "--data-dir", self.data_dir],
                env=self.environment(**settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A terminal's signals are not for it.
                start_new_session=True,
            )
        self.pid_file.write_text(str(self.process.pid))
        while time.monotonic() - begun < within:
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{self.url}/health", timeout=2, trust_env=False).is_success:
                    return time.monotonic() - begun
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.tail()}"
            time.sleep(0.02)
        raise AssertionError(f"it did not answer within {within} s: {self.tail()}")

    def kill(self) -> None:
        """kill -9."""
        assert self.process
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ends it as an operator does; sandboxes go on."""
        if self.process:
            self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(timeout=30)
        self.process = None
        self.pid_file.write_text("")

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def purge(self) -> None:
        self.run("sandbox", "purge", "--data-dir", str(self.data_dir))
