"""kill -9 of the server. Sandboxes live on, and the next server takes them over."""

import base64
import hashlib
import http.client
import itertools
import json
import os
import signal
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest

from support import envd
from support.census import census, init_of
from support.host import processes_with, sleeper
from support.raw import exchange
from support.wait import wait_for

BUSY = 5


class Busy:
    """A sandbox with a command that counts, a processor that is busy, a file and a server."""

    def __init__(self, server, client):
        reply = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600, "metadata": {"n": "busy"}})
        assert reply.status_code == 201, reply.text
        self.id, self.token = reply.json()["sandboxID"], reply.json()["envdAccessToken"]
        self.headers = envd.headers(self.id, self.token)
        self.end_at = client.get(f"/sandboxes/{self.id}").json()["endAt"]
        self.data = os.urandom(3_000_000)
        upload = {**self.headers, "Content-Type": "application/octet-stream"}
        assert exchange(server, "POST", "/files?path=/home/user/data", "localhost", upload, self.data).status == 200
        self.run(server, "nohup python3 -m http.server 8000 --bind 127.0.0.1 >/dev/null 2>&1 &")
        self.run(server, "nohup sh -c 'while :; do :; done' >/dev/null 2>&1 &")
        self.stream = envd.start(server, self.id, self.token, "i=0; while :; do echo $i; i=$((i+1)); sleep 0.05; done")
        self.events = envd.events(self.stream)
        self.pid = next(self.events)["start"]["pid"]
        self.last = self.numbers(self.events, 3)[-1]

    def run(self, server, script: str) -> str:
        with envd.start(server, self.id, self.token, script) as stream:
            output = b""
            for event in envd.events(stream):
                output += decoded(event)
        return output.decode()

    @staticmethod
    def numbers(events, count: int) -> list[int]:
        """The next numbers that the command prints."""
        found = []
        for event in events:
            found += [int(line) for line in decoded(event).split()]
            if len(found) >= count:
                return found
        raise AssertionError(f"the stream ended after {found}")


def decoded(event: dict) -> bytes:
    return base64.b64decode(event.get("data", {}).get("stdout", ""))


@pytest.fixture
def crashing(own):
    own.start()
    yield own
    if not own.process:
        own.start()
    with own.server.client() as client:
        for row in client.get("/v2/sandboxes").json():
            client.delete(f"/sandboxes/{row['sandboxID']}")
    own.stop()


def idle(own) -> dict[str, int]:
    """The census once it stands still."""
    counts = [census(own)]

    def same():
        counts.append(census(own))
        return counts[-1] == counts[-2]

    wait_for("the machine to be still", same, within=60, every=1)
    return counts[-1]


def test_busy_sandboxes_run_on_and_their_streams_can_be_followed_again(crashing):
    before = idle(crashing)
    with crashing.server.client() as client:
        busy = [Busy(crashing.server, client) for _ in range(BUSY)]
    crashing.kill()
    # Nobody reads what they print now.
    with pytest.raises((AssertionError, OSError, http.client.HTTPException)):
        Busy.numbers(busy[0].events, 10**6)
    took = crashing.start()
    assert took < 10, f"the next server needed {took:.1f} s"

    server = crashing.server
    with server.client() as client:
        listed = {row["sandboxID"]: row for row in client.get("/v2/sandboxes").json()}
        assert set(listed) == {sandbox.id for sandbox in busy}
        assert all(row["state"] == "running" for row in listed.values())
        for sandbox in busy:
            assert client.get(f"/sandboxes/{sandbox.id}").json()["endAt"] == sandbox.end_at
            with envd.connect(server, sandbox.id, sandbox.token, sandbox.pid) as stream:
                events = envd.events(stream)
                assert next(events)["start"]["pid"] == sandbox.pid
                numbers = Busy.numbers(events, 5)
            assert numbers[0] > sandbox.last, "it went on meanwhile"
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            data = exchange(server, "GET", "/files?path=/home/user/data", "localhost", sandbox.headers).body
            assert hashlib.sha256(data).digest() == hashlib.sha256(sandbox.data).digest()
            assert sandbox.run(server, "echo new; id -un") == "new\nuser\n"
            port = {"E2b-Sandbox-Id": sandbox.id, "E2b-Sandbox-Port": "8000"}
            assert exchange(server, "GET", "/", "localhost", port).status == 200
            metrics = f"/sandboxes/{sandbox.id}/metrics"
            wait_for("metrics", lambda: client.get(metrics, params={"start": int(time.time()) - 2}).json(), within=20)
        for sandbox in busy:
            assert client.delete(f"/sandboxes/{sandbox.id}").status_code == 204
    for sandbox in busy:
        sandbox.stream.close()
    wait_for("all of it to go", lambda: census(crashing) == before, within=60, every=0.5)


def test_what_died_meanwhile_is_cleared_away_and_reported(crashing):
    before = idle(crashing)
    marker = uuid.uuid4().hex
    with crashing.server.client() as client:
        reply = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600}).json()
        lost, token = reply["sandboxID"], reply["envdAccessToken"]
        kept = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600}).json()["sandboxID"]
    with envd.start(crashing.server, lost, token, sleeper(marker)):
        process = wait_for("the process", lambda: processes_with(marker))[0]
        first = init_of(process)
        crashing.kill()
    os.kill(first, signal.SIGKILL)
    wait_for("its end", lambda: not processes_with(marker))
    crashing.start()
    with crashing.server.client() as client:
        assert [row["sandboxID"] for row in client.get("/v2/sandboxes").json()] == [kept]
        assert client.get(f"/sandboxes/{lost}").status_code == 404
        assert client.delete(f"/sandboxes/{kept}").status_code == 204
    told = [line for line in crashing.log.read_text().splitlines() if lost in line]
    assert told, "the server's log says nothing about it"
    wait_for("all of it to go", lambda: census(crashing) == before, within=60, every=0.5)


def test_leases_that_end_while_no_server_runs_are_enforced_at_its_start(crashing):
    marker = uuid.uuid4().hex
    with crashing.server.client() as client:
        reply = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 4}).json()
        short, token = reply["sandboxID"], reply["envdAccessToken"]
        long = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600}).json()["sandboxID"]
        end = datetime.fromisoformat(client.get(f"/sandboxes/{short}").json()["endAt"]).timestamp()
    with envd.start(crashing.server, short, token, sleeper(marker)):
        wait_for("the process", lambda: processes_with(marker))
    crashing.kill()
    wait_for("the end of the lease", lambda: time.time() > end, within=10)
    assert processes_with(marker), "nobody ends it meanwhile"
    crashing.start()
    answered = time.monotonic()
    wait_for("its end", lambda: not processes_with(marker), within=10)
    late = time.monotonic() - answered
    assert late < 1.2, f"{late:.2f} s after the start"
    with crashing.server.client() as client:
        assert [row["sandboxID"] for row in client.get("/v2/sandboxes").json()] == [long]


def test_a_crash_in_the_middle_of_creates_leaves_no_ghosts(crashing):
    before = idle(crashing)
    with crashing.server.client(timeout=20) as client, ThreadPoolExecutor(10) as threads:

        def create(_):
            try:
                return client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600}).json()
            except Exception:
                return None

        answers = threads.map(create, range(10))
        first = next(itertools.islice(answers, 1))
        crashing.kill()
        acknowledged = {answer["sandboxID"]: answer for answer in [first, *answers] if answer}
    crashing.start()
    server = crashing.server
    with server.client() as client:
        listed = {row["sandboxID"] for row in client.get("/v2/sandboxes").json()}
        assert set(acknowledged) <= listed, "a sandbox that was acknowledged is there"
        for sandbox in listed:
            token = client.get(f"/sandboxes/{sandbox}").json()["envdAccessToken"]
            envs = exchange(server, "GET", "/envs", "localhost", envd.headers(sandbox, token))
            assert json.loads(envs.body)["E2B_SANDBOX_ID"] == sandbox
            assert client.delete(f"/sandboxes/{sandbox}").status_code == 204
    wait_for("all of it to go", lambda: census(crashing) == before, within=60, every=0.5)


def test_a_quick_second_start(crashing):
    crashing.stop()
    took = crashing.start()
    assert took < 3, f"{took:.1f} s"


def test_sandboxes_of_a_running_server_are_not_purged(crashing):
    with crashing.server.client() as client:
        sandbox = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600}).json()
        refused = crashing.run("sandbox", "purge", "--data-dir", str(crashing.data_dir), check=False)
        assert refused.returncode != 0 and "in use" in refused.stderr, refused.stdout + refused.stderr
        headers = envd.headers(sandbox["sandboxID"], sandbox["envdAccessToken"])
        assert exchange(crashing.server, "GET", "/envs", "localhost", headers).status == 200
