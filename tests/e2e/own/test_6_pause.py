"""kill -9 of the server around pauses: what was paused stays, what was resumed runs."""

import os

import pytest
from e2b import Sandbox

from support.wait import wait_for

COUNT = "secret=$RANDOM$RANDOM; n=0; while :; do n=$((n+1)); echo $secret $n > tick.new; mv tick.new tick; sleep 0.1; done"

pytestmark = pytest.mark.skipif(not os.environ.get("HUTCH_TEST_CRIU"), reason="no CRIU works here")


@pytest.fixture
def crashing(own):
    own.start(node_criu=os.environ["HUTCH_TEST_CRIU"])
    yield own
    own.stop()


def crash(own) -> None:
    own.kill()
    own.start(node_criu=os.environ["HUTCH_TEST_CRIU"])


def test_a_pause_and_a_resume_survive_the_death_of_the_server(crashing):
    sandbox = Sandbox.create(timeout=300, **crashing.server.sdk())
    sandbox.commands.run(COUNT, background=True, timeout=0)
    wait_for("the first tick", lambda: sandbox.files.exists("tick"))
    secret = sandbox.files.read("tick").split()[0]
    with crashing.server.client() as client:
        assert client.post(f"/sandboxes/{sandbox.sandbox_id}/pause", json={}).status_code == 204
    crash(crashing)
    with crashing.server.client() as client:
        assert client.get(f"/sandboxes/{sandbox.sandbox_id}").json()["state"] == "paused"
    resumed = Sandbox.connect(sandbox.sandbox_id, timeout=300, **crashing.server.sdk())
    crash(crashing)
    adopted = Sandbox.connect(resumed.sandbox_id, timeout=300, **crashing.server.sdk())
    before = int(adopted.files.read("tick").split()[1])
    wait_for("further ticks", lambda: int(adopted.files.read("tick").split()[1]) > before + 2)
    assert adopted.files.read("tick").split()[0] == secret
    assert adopted.kill()
