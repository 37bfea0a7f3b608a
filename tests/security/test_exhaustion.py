"""Guests that use up what they can get. The full disk is in e2e/own, with a server whose sandboxes have a small one."""

import time
import uuid

import pytest
from e2b import CommandExitException

from support.host import processes_with, sleeper, status_of
from support.wait import seconds, wait_for

# The default of node.max_processes.
MAX_PROCESSES = 1024


def exit_code(sandbox, script: str, **options) -> int:
    try:
        return sandbox.commands.run(script, **options).exit_code
    except CommandExitException as ended:
        return ended.exit_code


@pytest.mark.parametrize("user", ["user", "root"])
def test_a_fork_bomb_is_contained_and_can_be_killed(create, server, neighbour, user):
    sandbox = create()
    marker = uuid.uuid4().hex
    bomb = f"""python3 -c '
import os, signal, time
marker = "{marker}"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
while True:
    try:
        os.fork()
    except OSError:
        time.sleep(0.05)
'"""
    handle = sandbox.commands.run(bomb, background=True, user=user, timeout=0)
    wait_for("the bomb to be stopped by its limit", lambda: len(processes_with(marker)) > MAX_PROCESSES // 2, within=30)
    settled = time.monotonic() + 3
    while time.monotonic() < settled:
        assert len(processes_with(marker)) <= MAX_PROCESSES
        assert server.health_seconds() < 3
    assert neighbour.commands.run("echo fine", timeout=30).stdout == "fine\n"
    assert sandbox.is_running(), "envd answers"
    if user == "user":
        # Others inside still have room.
        assert sandbox.commands.run("echo fine", user="root", timeout=30).stdout == "fine\n"
    handle.disconnect()
    assert seconds(sandbox.kill) < 15
    wait_for("all of it to go", lambda: not processes_with(marker), within=15)


def test_only_the_process_that_takes_all_memory_is_killed(create):
    sandbox = create()
    marker = uuid.uuid4().hex
    sandbox.commands.run(sleeper(marker), background=True, timeout=0)
    wait_for("the bystander", lambda: processes_with(marker))
    bystander = processes_with(marker)
    hog = "python3 -c 'a = []\nwhile True: a.append(bytearray(b\"x\") * (8 << 20))'"
    for user in ["user", "root"]:
        assert exit_code(sandbox, hog, user=user, timeout=60) in (137, -1)
        assert sandbox.is_running()
        assert sandbox.commands.run("echo fine").stdout == "fine\n"
    assert processes_with(marker) == bystander


def test_memory_in_files_counts_too(create):
    sandbox = create()
    code = exit_code(sandbox, "head -c 4G /dev/zero > /dev/shm/fill", timeout=60)
    assert code != 0
    assert sandbox.commands.run("rm -f /dev/shm/fill; echo fine").stdout == "fine\n"


def test_a_process_that_takes_all_cpu_leaves_some_for_others(create, neighbour, server):
    sandbox = create()
    sandbox.commands.run("for i in $(seq 16); do (while :; do :; done) & done; wait", background=True, timeout=0)
    assert sandbox.commands.run("echo fine", timeout=20).stdout == "fine\n"
    assert neighbour.commands.run("echo fine", timeout=20).stdout == "fine\n"
    assert server.health_seconds() < 2


def test_open_files_run_out_only_inside(create, server):
    sandbox = create()
    script = """
import os, time
files = []
try:
    while True:
        files.append(os.open('/dev/null', os.O_RDONLY))
except OSError as error:
    print('stopped', error.errno)
"""
    sandbox.files.write("open.py", script)
    out = sandbox.commands.run("for i in $(seq 20); do python3 open.py & done; wait", timeout=60).stdout
    assert out.count("stopped") == 20, out
    assert sandbox.commands.run("echo fine").stdout == "fine\n"


def test_envd_comes_back_when_the_guest_kills_everything(create):
    sandbox = create()
    for user in ["user", "root"]:
        sandbox.commands.run("nohup sh -c 'sleep 0.2; kill -9 -1' >/dev/null 2>&1 &", user=user)
        wait_for("envd", lambda: works(sandbox), within=20, every=0.3)
    assert sandbox.kill()


def works(sandbox) -> bool:
    try:
        return sandbox.commands.run("echo fine", timeout=5, request_timeout=5).stdout == "fine\n"
    except Exception:
        return False


def test_a_guest_that_is_stopped_inside_can_still_be_killed(create, server):
    sandbox = create()
    marker = uuid.uuid4().hex
    sandbox.commands.run(sleeper(marker), background=True, timeout=0)
    wait_for("the process", lambda: processes_with(marker))
    sandbox.commands.run("nohup sh -c 'sleep 0.2; kill -STOP -1' >/dev/null 2>&1 &", user="root")
    wait_for("everything to stop", lambda: all(status_of(p)["State"].startswith("T") for p in processes_with(marker)))
    assert seconds(sandbox.kill) < 15
    wait_for("all of it to go", lambda: not processes_with(marker), within=15)
