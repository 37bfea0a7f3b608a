"""Paused sandboxes cost only disk, and come back as they were."""

import hashlib
import os
import time

import pytest
from e2b import Sandbox, SandboxQuery, SandboxState

from support.wait import wait_for

# Holds what is nowhere but in its memory, a deleted file, a connection to itself and a timer, and goes on counting.
PROGRAM = """
import hashlib, os, socket, time
data = os.urandom(20_000_000)
digest = hashlib.sha256(data).hexdigest()
deleted = open("/tmp/deleted", "w+b"); os.unlink("/tmp/deleted"); deleted.write(b"kept"); deleted.flush()
listener = socket.create_server(("127.0.0.1", 0))
near = socket.create_connection(listener.getsockname()); far, _ = listener.accept()
count = 0
while True:
    count += 1
    near.sendall(b"x"); assert far.recv(1) == b"x"
    deleted.seek(0); assert deleted.read() == b"kept"
    assert hashlib.sha256(data).hexdigest() == digest
    open("/home/user/tick.new", "w").write(f"{os.getpid()} {digest} {count}")
    os.rename("/home/user/tick.new", "/home/user/tick")
    time.sleep(0.1)
"""


# Without a CRIU that works on this machine only files can be saved.
needs_criu = pytest.mark.skipif(not os.environ.get("HUTCH_TEST_CRIU"), reason="no CRIU works here")


@pytest.fixture
def pause(api):
    def pause(sandbox: Sandbox, **options) -> None:
        reply = api.post(f"/sandboxes/{sandbox.sandbox_id}/pause", json=options, timeout=60)
        assert reply.status_code == 204, reply.text

    return pause


def tick(sandbox: Sandbox) -> list[str]:
    return sandbox.files.read("/home/user/tick").split()


def started(sandbox: Sandbox) -> list[str]:
    sandbox.files.write("/home/user/program.py", PROGRAM)
    sandbox.commands.run("python3 /home/user/program.py > /home/user/errors 2>&1", background=True, timeout=0)
    wait_for("the first tick", lambda: sandbox.files.exists("/home/user/tick"), 30)
    return tick(sandbox)


def goes_on(sandbox: Sandbox, before: list[str]) -> None:
    wait_for("further ticks", lambda: int(tick(sandbox)[2]) > int(before[2]) + 3, 30)
    assert tick(sandbox)[:2] == before[:2], sandbox.files.read("/home/user/errors")


@needs_criu
def test_processes_and_memory_come_back(create, pause, api, server):
    sandbox = create(metadata={"kind": "paused"}, envs={"KEPT": "in memory"})
    before = started(sandbox)
    host_name = sandbox.commands.run("hostname").stdout
    for _ in range(2):
        pause(sandbox)
        assert not sandbox.is_running()
        shown = api.get(f"/sandboxes/{sandbox.sandbox_id}").json()
        assert shown["state"] == "paused" and shown["metadata"]["kind"] == "paused"
        again = Sandbox.connect(sandbox.sandbox_id, timeout=120, **server.sdk())
        assert again.is_running()
        goes_on(again, before)
    assert again.commands.run("echo $KEPT").stdout == "in memory\n"
    assert again.commands.run("hostname").stdout == host_name
    assert int(again.commands.run("free -m | awk '/Mem:/ { print $2 }'").stdout) == 512


@needs_criu
def test_a_command_is_found_again_by_its_number(create, pause, server):
    sandbox = create()
    command = sandbox.commands.run("for i in $(seq 1000); do echo $i; sleep 0.1; done", background=True, timeout=0)
    pause(sandbox)
    again = Sandbox.connect(sandbox.sandbox_id, timeout=120, **server.sdk())
    found = []
    for stdout, _, _ in again.commands.connect(command.pid, timeout=0):
        found += (stdout or "").split()
        if len(found) > 5:
            break
    numbers = [int(line) for line in found]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert again.commands.kill(command.pid)


def test_files_alone_come_back(create, pause, server):
    sandbox = create()
    data = os.urandom(5_000_000)
    sandbox.files.write("/home/user/data", data)
    boot_id = sandbox.commands.run("cat /proc/sys/kernel/random/boot_id").stdout
    sandbox.commands.run("sleep 76543", background=True, timeout=0)
    pause(sandbox, memory=False)
    again = Sandbox.connect(sandbox.sandbox_id, timeout=120, **server.sdk())
    assert hashlib.sha256(again.files.read("/home/user/data", format="bytes")).digest() == hashlib.sha256(data).digest()
    assert again.commands.run("cat /proc/sys/kernel/random/boot_id").stdout != boot_id
    assert "76543" not in again.commands.run("ps ax").stdout


@needs_criu
def test_a_paused_sandbox_is_listed_so_and_not_paused_again(create, pause, api, server):
    sandbox = create()
    pause(sandbox)
    assert api.post(f"/sandboxes/{sandbox.sandbox_id}/pause", json={}).status_code == 409
    paginator = Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED]), **server.sdk())
    paused = []
    while paginator.has_next:
        paused += [found.sandbox_id for found in paginator.next_items()]
    assert sandbox.sandbox_id in paused
    assert sandbox.kill()
    assert api.get(f"/sandboxes/{sandbox.sandbox_id}").status_code == 404


@needs_criu
def test_the_end_of_the_lease_can_be_a_pause(api, server):
    body = {"templateID": "base", "timeout": 2, "autoPause": True}
    reply = api.post("/v2/sandboxes", json=body)
    assert reply.status_code == 201, reply.text
    sandbox_id = reply.json()["sandboxID"]
    try:
        wait_for("the pause", lambda: api.get(f"/sandboxes/{sandbox_id}").json()["state"] == "paused", 30)
        again = Sandbox.connect(sandbox_id, timeout=60, **server.sdk())
        assert again.commands.run("echo back").stdout == "back\n"
    finally:
        Sandbox.kill(sandbox_id, **server.sdk())


@needs_criu
def test_a_private_sandbox_stays_private(api, server):
    body = {"templateID": "base", "timeout": 60, "network": {"allowPublicTraffic": False}}
    made = api.post("/v2/sandboxes", json=body).json()
    try:
        assert api.post(f"/sandboxes/{made['sandboxID']}/pause", json={}, timeout=60).status_code == 204
        back = api.post(f"/v2/sandboxes/{made['sandboxID']}/connect", json={"timeout": 60}, timeout=60)
        assert back.status_code == 201 and back.json()["trafficAccessToken"] == made["trafficAccessToken"]
        routing = {"E2b-Sandbox-Id": made["sandboxID"], "E2b-Sandbox-Port": "8000"}
        assert api.get("/", headers=routing).status_code == 403
    finally:
        Sandbox.kill(made["sandboxID"], **server.sdk())


@needs_criu
def test_the_time_is_right_after_a_pause(create, pause, server):
    sandbox = create()
    pause(sandbox)
    again = Sandbox.connect(sandbox.sandbox_id, timeout=120, **server.sdk())
    before = time.time()
    inside = float(again.commands.run("date +%s.%N").stdout)
    assert before - 0.1 < inside < time.time() + 0.1
