"""The REST API of sandboxes, where no SDK shows it."""

import re
import time
import uuid
from datetime import datetime

import httpx
import pytest

from support import envd
from support.fixtures import RUN
from support.host import processes_with, sleeper
from support.wait import wait_for


@pytest.fixture
def make(api):
    """Creates over the API; what was created is killed afterwards."""
    made = []

    def create(path="/v2/sandboxes", headers=None, status=201, **fields):
        body = {"templateID": "base", "timeout": 120, "metadata": {"run": RUN}, **fields}
        body = {name: value for name, value in body.items() if value is not None}
        reply = api.post(path, json=body, headers=headers or {})
        assert reply.status_code == status, reply.text
        if status == 201:
            made.append(reply.json()["sandboxID"])
        return reply

    yield create
    for sandbox in made:
        api.delete(f"/sandboxes/{sandbox}")


def seconds_between(early: str, late: str) -> float:
    return (datetime.fromisoformat(late) - datetime.fromisoformat(early)).total_seconds()


def test_the_answer_to_a_create_has_what_clients_read(make, api):
    body = make(metadata={"run": RUN, "k": "v"}).json()
    assert re.fullmatch("[a-z0-9]+", body["sandboxID"])
    assert body["alias"] == "base" and body["clientID"]
    assert tuple(map(int, body["envdVersion"].split(".")[:2])) >= (0, 6)
    assert len(body["envdAccessToken"]) >= 32
    detail = api.get(f"/sandboxes/{body['sandboxID']}").json()
    assert detail["state"] == "running" and detail["metadata"]["k"] == "v"
    assert detail["lifecycle"] == {"onTimeout": "kill", "autoResume": False}
    for name in ["templateID", "startedAt", "endAt", "cpuCount", "memoryMB", "diskSizeMB", "envdVersion"]:
        assert detail[name], name


def test_both_generations_of_create_have_their_default_lease(make, api):
    for path, lease in [("/sandboxes", 15), ("/v2/sandboxes", 300)]:
        detail = api.get(f"/sandboxes/{make(path, timeout=None).json()['sandboxID']}").json()
        assert abs(seconds_between(detail["startedAt"], detail["endAt"]) - lease) <= 1


def test_connect_answers_200_and_keeps_the_longer_lease(make, api):
    created = make(timeout=100).json()
    for path in ["/sandboxes", "/v2/sandboxes"]:
        reply = api.post(f"{path}/{created['sandboxID']}/connect", json={"timeout": 30})
        assert reply.status_code == 200, reply.text
        assert reply.json()["envdAccessToken"] == created["envdAccessToken"]
    detail = api.get(f"/sandboxes/{created['sandboxID']}").json()
    assert seconds_between(detail["startedAt"], detail["endAt"]) >= 99


def test_ids_with_a_client_part_are_accepted(make, api):
    sandbox = make().json()["sandboxID"]
    assert api.get(f"/sandboxes/{sandbox}-c0").json()["sandboxID"] == sandbox
    assert api.get(f"/sandboxes/{sandbox}-c0-more").status_code == 400


def test_an_idempotency_key_gives_the_same_sandbox(make, api):
    key = {"Idempotency-Key": f"key-{uuid.uuid4()}"}
    first, second = make(headers=key).json(), make(headers=key).json()
    assert first == second
    conflict = make(headers=key, timeout=121, status=409).json()
    assert conflict["error_code"] == "idempotency_request_mismatch"
    assert make(headers={"Idempotency-Key": f"key-{uuid.uuid4()}"}).json()["sandboxID"] != first["sandboxID"]
    make(headers={"Idempotency-Key": "no spaces please"}, status=400)


def test_a_refresh_only_prolongs(make, api):
    sandbox = make(timeout=100).json()["sandboxID"]

    def end() -> str:
        return api.get(f"/sandboxes/{sandbox}").json()["endAt"]

    before = end()
    assert api.post(f"/sandboxes/{sandbox}/refreshes", json={"duration": 20}).status_code == 204
    assert end() == before
    assert api.post(f"/sandboxes/{sandbox}/refreshes", json={"duration": 600}).status_code == 204
    assert seconds_between(before, end()) > 400
    assert api.post(f"/sandboxes/{sandbox}/refreshes", json={"duration": 3601}).status_code == 400


def test_a_lease_of_three_seconds_ends_processes_within_a_second_of_its_end(make, api, server):
    marker = uuid.uuid4().hex
    created = make(timeout=3).json()
    sandbox, token = created["sandboxID"], created["envdAccessToken"]
    end = datetime.fromisoformat(api.get(f"/sandboxes/{sandbox}").json()["endAt"]).timestamp()
    with envd.start(server, sandbox, token, sleeper(marker)):
        wait_for("the process", lambda: processes_with(marker), every=0.02)
        wait_for("the end", lambda: not processes_with(marker), within=10, every=0.02)
    late = time.time() - end
    assert -0.1 <= late <= 1.2, f"{late:.2f} s after the deadline"
    assert api.get(f"/sandboxes/{sandbox}").status_code == 404
    health = httpx.get(f"{server.url}/health", headers=envd.headers(sandbox, token), trust_env=False)
    assert (health.status_code, health.json()["message"]) == (502, "The sandbox was not found")


def test_lists_page_and_count(make, api):
    mark = uuid.uuid4().hex
    ids = [make(metadata={"run": RUN, "mark": mark}).json()["sandboxID"] for _ in range(3)]
    query = {"metadata": f"mark={mark}", "limit": "2"}
    first = api.get("/v2/sandboxes", params=query)
    assert first.headers["x-total-running"] == "3"
    second = api.get("/v2/sandboxes", params={**query, "nextToken": first.headers["x-next-token"]})
    assert "x-next-token" not in second.headers
    assert [row["sandboxID"] for row in first.json() + second.json()] == ids[::-1]
    token = {**query, "order": "asc", "nextToken": first.headers["x-next-token"]}
    assert api.get("/v2/sandboxes", params=token).status_code == 400
    assert {row["sandboxID"] for row in api.get("/sandboxes", params={"metadata": f"mark={mark}"}).json()} == set(ids)
    for bad in [{"limit": "0"}, {"order": "up"}, {"metadata": "a=b=c"}, {"nextToken": "x"}, {"template": "base:tag"}]:
        assert api.get("/v2/sandboxes", params=bad).status_code == 400, bad


def test_logs_tell_what_ran(make, api, create):
    sandbox = create()
    sandbox.commands.run("echo hello")
    path = f"/sandboxes/{sandbox.sandbox_id}/logs"
    logs = wait_for("logs", lambda: api.get(path).json()["logs"], within=20, every=0.2)
    assert all(line["timestamp"] and line["line"].startswith("{") for line in logs)
    entries = api.get(f"/v2{path}").json()["logs"]
    assert {"timestamp", "level", "message", "fields"} <= set(entries[0])
    assert all(entry["level"] in ("debug", "info", "warn", "error") for entry in entries)
    assert len(api.get(f"/v2{path}", params={"limit": 1}).json()["logs"]) == 1
    assert api.get(f"/v2{path}", params={"search": uuid.uuid4().hex}).json()["logs"] == []
    assert api.get(f"/v2{path}", params={"level": "loud"}).status_code == 400
    oldest, newest = (
        api.get(f"/v2{path}", params={"direction": way}).json()["logs"] for way in ("forward", "backward")
    )
    assert oldest[0]["timestamp"] <= oldest[-1]["timestamp"] and newest[0]["timestamp"] >= newest[-1]["timestamp"]


def test_latest_metrics_of_several(make, api):
    ids = [make().json()["sandboxID"] for _ in range(2)]
    query = {"sandbox_ids": ",".join([*ids, "i" + "0" * 19])}

    def both() -> bool:
        return set(api.get("/sandboxes/metrics", params=query).json()["sandboxes"]) == set(ids)

    wait_for("metrics of both", both, within=30, every=0.3)
    assert api.get("/sandboxes/metrics", params={"sandbox_ids": ",".join(["i" + "0" * 19] * 101)}).status_code == 400
    assert api.get(f"/sandboxes/{ids[0]}/metrics", params={"start": "yesterday"}).status_code == 400


def test_options_that_come_later_are_refused_by_name(make):
    for field, value in [
        ("autoResume", {"enabled": True}),
        ("volumeMounts", [{"name": "data", "path": "/data"}]),
        ("network", {"allowOut": ["1.1.1.1"]}),
        ("network", {"dnsServers": ["9.9.9.9"]}),
    ]:
        message = make(status=400, **{field: value}).json()["message"]
        assert next(iter(value), field) in message if isinstance(value, dict) else field in message, message


def test_limits_of_a_request_are_named(make):
    assert "limits.max_timeout_seconds" in make(status=400, timeout=10**9 // 2).json()["message"]
    assert "limits.max_metadata_bytes" in make(status=400, metadata={"a": "b" * 100_000}).json()["message"]
    make(status=400, timeout=0)
