"""Limits that an operator sets, and what clients hear when they are reached."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from e2b import RateLimitException, Sandbox


@pytest.fixture
def limited(own):
    """Starts the own server with limits; ends it and its sandboxes afterwards."""

    def start(**settings):
        own.start(**settings)
        return own.server

    yield start
    with own.server.client() as client:
        for row in client.get("/v2/sandboxes").json():
            client.delete(f"/sandboxes/{row['sandboxID']}")
    own.stop()


def create(client):
    return client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 60})


def assert_refused(reply, limit: str) -> None:
    assert reply.status_code == 429, reply.text
    assert limit in reply.json()["message"]
    assert int(reply.headers["retry-after"]) >= 1


def test_beyond_the_number_of_sandboxes(limited):
    server = limited(limits_max_sandboxes_per_team=2)
    with server.client() as client:
        first, second = create(client), create(client)
        assert first.status_code == second.status_code == 201
        assert_refused(create(client), "limits.max_sandboxes_per_team")
        with pytest.raises(RateLimitException):
            Sandbox.create(**server.sdk())
        assert client.delete(f"/sandboxes/{first.json()['sandboxID']}").status_code == 204
        assert create(client).status_code == 201


def test_beyond_the_line_of_starts(limited):
    server = limited(
        limits_max_concurrent_starts=1, limits_max_queued_starts=2, node_max_concurrent_boots=1, pool_size=0
    )
    with server.client() as client, ThreadPoolExecutor(24) as threads:
        replies = list(threads.map(lambda _: create(client), range(24)))
    made = [reply for reply in replies if reply.status_code == 201]
    refused = [reply for reply in replies if reply.status_code != 201]
    assert made and refused
    for reply in refused:
        assert_refused(reply, "limits.max_queued_starts")


def test_a_burst_is_served_whole(limited):
    server = limited(pool_size=8)
    with server.client() as client, ThreadPoolExecutor(30) as threads:
        replies = list(threads.map(lambda _: create(client), range(30)))
        assert [reply.status_code for reply in replies] == [201] * 30
        assert len({reply.json()["sandboxID"] for reply in replies}) == 30


def test_limits_of_a_create_follow_the_settings(limited):
    server = limited(limits_max_timeout_seconds=100, limits_max_env_bytes=10)
    with server.client() as client:
        for fields, limit in [
            ({"timeout": 101}, "limits.max_timeout_seconds"),
            ({"envVars": {"LONG": "12345678"}}, "limits.max_env_bytes"),
        ]:
            reply = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 60, **fields})
            assert reply.status_code == 400 and limit in reply.json()["message"], reply.text
