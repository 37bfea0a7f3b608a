"""A terminal that a test types into and reads from."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

# Colours, cursor movements and window titles: what a program sends to a terminal beside text.
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b\][^\x07]*\x07|\x1b[=>]")
# More output than this is not kept.
_MOST = 1 << 20


class Terminal:
    """A program on a pseudo-terminal of its own, as its session's controlling terminal."""

    def __init__(self, *command: str, env: dict[str, str], columns: int = 200, rows: int = 50):
        self._master, slave = pty.openpty()
        self._size(columns, rows)
        self._seen = ""
        self.process = subprocess.Popen(
            command,
            env={**env, "TERM": "xterm-256color"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(timeout=10)
        os.close(self._master)

    def type(self, text: str) -> None:
        """Types, a line end being the return key."""
        os.write(self._master, text.replace("\n", "\r").encode())

    def resize(self, columns: int, rows: int) -> None:
        """Changes the window's size, which the kernel tells the program."""
        self._size(columns, rows)

    def expect(self, pattern: str, within: float = 20) -> re.Match:
        """Waits for text that was not expected before, and takes all up to its end."""
        deadline = time.monotonic() + within
        while True:
            text = _CONTROL.sub("", self._seen).replace("\r", "")
            if found := re.search(pattern, text, re.MULTILINE):
                self._seen = text[found.end() :]
                return found
            assert self._read(deadline - time.monotonic()), f"no {pattern!r} in:\n{text}"

    def ended(self, within: float = 20) -> int:
        """Waits for the program's end; its exit code."""
        deadline = time.monotonic() + within
        while self._read(deadline - time.monotonic()):
            pass
        return self.process.wait(timeout=max(deadline - time.monotonic(), 0.1))

    def _size(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self, within: float) -> bool:
        """Takes what the program writes next; false after its end or when there is nothing in time."""
        if within <= 0 or not select.select([self._master], [], [], within)[0]:
            return False
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False
        self._seen = (self._seen + data.decode(errors="replace"))[-_MOST:]
        return bool(data)
