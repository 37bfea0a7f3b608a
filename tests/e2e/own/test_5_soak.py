"""The soak in short: streams on several sandboxes at once, every byte compared, nothing left behind. `make soak` runs it in full."""

import os
import subprocess

import pytest

PROGRAM = os.environ.get("HUTCH_TEST_SOAK", "")


@pytest.mark.skipif(not os.access(PROGRAM, os.X_OK), reason="HUTCH_TEST_SOAK names no program")
def test_forty_streams_on_four_sandboxes_lose_nothing(server):
    options = {
        "--url": server.url,
        "--api-key": server.key,
        "--pid": str(server.pid),
        "--sandboxes": "4",
        "--streams": "40",
        "--seconds": "20",
    }
    command = [PROGRAM, *(word for option in options.items() for word in option)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=220)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "soak: passed" in done.stdout
