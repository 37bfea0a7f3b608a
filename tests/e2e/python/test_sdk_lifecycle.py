"""Sandboxes come, are found again, and go."""

import time
import uuid
from datetime import datetime, timedelta, timezone

import httpx
import pytest
from e2b import AuthenticationException, NotFoundException, Sandbox, SandboxQuery, SandboxState

from support.wait import wait_for


def seconds_left(sandbox: Sandbox) -> float:
    return (sandbox.get_info().end_at - datetime.now(timezone.utc)).total_seconds()


def drain(paginator) -> list:
    found = []
    while paginator.has_next:
        found += paginator.next_items()
    return found


def test_a_created_sandbox_answers_and_says_what_it_is(create):
    sandbox = create(metadata={"purpose": "info"}, timeout=90)
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert info.sandbox_id == sandbox.sandbox_id
    assert info.state == SandboxState.RUNNING
    assert info.name == "base"
    assert info.metadata["purpose"] == "info"
    assert info.cpu_count == 2 and info.memory_mb == 512
    assert info.envd_version
    assert abs((info.end_at - info.started_at).total_seconds() - 90) < 2
    assert sandbox.commands.run("nproc").stdout.strip() == str(info.cpu_count)


def test_sandboxes_differ_in_what_identifies_a_machine(create):
    ids = "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id"
    script = f"{ids}; head -c 16 /dev/urandom | sha256sum | cut -c 1-32"
    outputs = [create().commands.run(script).stdout.split() for _ in range(2)]
    assert all(len(output) == 4 for output in outputs), outputs
    for mine, others in zip(*outputs, strict=True):
        assert mine != others, outputs


def test_the_sandbox_knows_its_name(create):
    sandbox = create(envs={"GREETING": "hello there"})
    env = sandbox.commands.run("echo $E2B_SANDBOX:$E2B_SANDBOX_ID:$GREETING").stdout.strip()
    assert env == f"true:{sandbox.sandbox_id}:hello there"


def test_a_killed_sandbox_is_gone(create, server):
    sandbox = create()
    assert sandbox.kill()
    assert not sandbox.is_running()
    assert not Sandbox.kill(sandbox.sandbox_id, **server.sdk())
    with pytest.raises(NotFoundException):
        sandbox.get_info()
    with pytest.raises(NotFoundException):
        Sandbox.connect(sandbox.sandbox_id, **server.sdk())


def test_connect_finds_the_same_sandbox(create, server):
    sandbox = create()
    sandbox.files.write("/home/user/note.txt", "kept")
    again = Sandbox.connect(sandbox.sandbox_id, **server.sdk())
    assert again.sandbox_id == sandbox.sandbox_id
    assert again.files.read("/home/user/note.txt") == "kept"


def test_connect_makes_the_lease_longer_and_never_shorter(create, server):
    sandbox = create(timeout=60)
    Sandbox.connect(sandbox.sandbox_id, timeout=300, **server.sdk())
    assert 290 < seconds_left(sandbox) <= 300
    Sandbox.connect(sandbox.sandbox_id, timeout=30, **server.sdk())
    assert seconds_left(sandbox) > 280


def test_set_timeout_sets_the_lease(create):
    sandbox = create(timeout=60)
    sandbox.set_timeout(200)
    assert 195 < seconds_left(sandbox) <= 200
    sandbox.set_timeout(20)
    assert seconds_left(sandbox) <= 20


def test_a_lease_that_is_over_ends_the_sandbox_on_time(create):
    sandbox = create(timeout=3)
    end = sandbox.get_info().end_at.timestamp()
    wait_for("the end", lambda: not sandbox.is_running(), within=10)
    gone = time.time()
    assert end - 0.1 <= gone <= end + 1.5, f"{gone - end:.2f} s after the deadline"


def test_list_filters_by_metadata_and_pages(create, server):
    mark = f"a&b= {uuid.uuid4().hex}"
    ids = [create(metadata={"list mark": mark, "n": str(n)}).sandbox_id for n in range(3)]
    query = SandboxQuery(metadata={"list mark": mark})
    listed = drain(Sandbox.list(query=query, **server.sdk()))
    assert [info.sandbox_id for info in listed] == ids[::-1], "the newest first"

    paginator = Sandbox.list(query=query, limit=2, **server.sdk())
    first = paginator.next_items()
    assert len(first) == 2 and paginator.has_next
    second = paginator.next_items()
    assert len(second) == 1 and not paginator.has_next
    assert [info.sandbox_id for info in first + second] == ids[::-1]

    both = SandboxQuery(metadata={"list mark": mark, "n": "1"})
    assert [info.sandbox_id for info in drain(Sandbox.list(query=both, **server.sdk()))] == [ids[1]]


def test_list_filters_by_state_and_order(create, server):
    mark = uuid.uuid4().hex
    ids = [create(metadata={"mark": mark}).sandbox_id for _ in range(2)]
    running = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.RUNNING])
    found = drain(Sandbox.list(query=running, order="asc", **server.sdk()))
    assert [info.sandbox_id for info in found] == ids
    paused = SandboxQuery(metadata={"mark": mark}, state=[SandboxState.PAUSED])
    assert drain(Sandbox.list(query=paused, **server.sdk())) == []


def test_metrics_come_soon_and_make_sense(create):
    sandbox = create()
    sandbox.commands.run("head -c 20M /dev/urandom > /tmp/data; sync")
    metrics = wait_for("metrics", sandbox.get_metrics, within=30, every=0.5)
    sample = metrics[-1]
    assert sample.cpu_count == 2
    assert 0 <= sample.cpu_used_pct <= 100 * 1.5
    assert sample.mem_total == 512 << 20
    assert 0 < sample.mem_used < sample.mem_total
    assert 8 << 30 < sample.disk_total <= 10 << 30
    assert 0 < sample.disk_used < sample.disk_total
    before = datetime.now(timezone.utc) - timedelta(hours=2)
    assert sandbox.get_metrics(start=before, end=before + timedelta(minutes=5)) == []


def test_a_secured_sandbox_wants_its_token(create, server, api):
    sandbox = create(secure=True)
    again = Sandbox.connect(sandbox.sandbox_id, **server.sdk())
    assert again.commands.run("echo still works").stdout == "still works\n"
    routed = {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": "49983"}
    token = api.get(f"/sandboxes/{sandbox.sandbox_id}").json()["envdAccessToken"]
    for headers, status in [
        (routed, 401),
        ({**routed, "X-Access-Token": "wrong"}, 401),
        ({**routed, "X-Access-Token": token[:-1]}, 401),
        ({**routed, "X-Access-Token": token}, 200),
    ]:
        listing = httpx.post(f"{server.url}/process.Process/List", headers=headers, json={}, trust_env=False)
        assert listing.status_code == status, listing.text
        envs = httpx.get(f"{server.url}/envs", headers=headers, trust_env=False)
        assert envs.status_code == status, envs.text


def test_a_wrong_api_key_is_an_authentication_error(server):
    wrong = "e2b_" + "0" * 40
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key=wrong, api_url=server.url, sandbox_url=server.url)


def test_an_unknown_template_is_not_found(server):
    with pytest.raises(Exception, match="404.*no-such-template"):
        Sandbox.create("no-such-template", **server.sdk())
