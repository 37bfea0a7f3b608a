"""Hundreds of sandboxes come and go; nothing of them stays."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.census import census
from support.wait import wait_for

CYCLES = int(os.environ.get("HUTCH_E2E_CYCLES", "300"))


def test_create_and_kill_leave_the_same_counts_as_before(own):
    own.start(pool_size=4)
    try:
        server = own.server
        with server.client() as client, ThreadPoolExecutor(4) as threads:

            def cycle(number: int) -> None:
                created = client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 60})
                assert created.status_code == 201, created.text
                sandbox = created.json()["sandboxID"]
                assert client.delete(f"/sandboxes/{sandbox}").status_code == 204

            # Caches and pools fill up with the first ones.
            list(threads.map(cycle, range(8)))
            before = settled(own)
            descriptors, memory = open_files(server.pid), server.memory_bytes()
            list(threads.map(cycle, range(CYCLES)))
            assert client.get("/v2/sandboxes").json() == []
        after = {}

        def same() -> bool:
            after.update(census(own))
            return after == before

        try:
            wait_for("the counts of before", same, within=60, every=1)
        except AssertionError:
            assert after == before
        assert open_files(server.pid) <= descriptors + 16
        assert server.memory_bytes() <= memory + (64 << 20)
    finally:
        own.stop()


def settled(own) -> dict[str, int]:
    """The census once the pool is full and nothing changes any more."""
    seen = [census(own)]

    def still() -> bool:
        seen.append(census(own))
        return len(seen) > 4 and seen[-1] == seen[-2] == seen[-3]

    wait_for("the pool to be full", still, within=60, every=0.7)
    return seen[-1]


def open_files(pid: int) -> int:
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())


def test_a_purge_leaves_nothing(own):
    own.start()
    with own.server.client() as client:
        for _ in range(2):
            assert client.post("/v2/sandboxes", json={"templateID": "base", "timeout": 600}).status_code == 201
    own.kill()
    assert census(own)["processes"] > 0
    own.purge()
    counts = census(own)
    assert not any(counts.values()), counts
    own.start()
    with own.server.client() as client:
        assert client.get("/v2/sandboxes").json() == []
    own.stop()
