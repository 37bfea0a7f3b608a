"""Every test here ends with a look at the server and at a neighbour: they answer, whatever was done to them."""

import time

import pytest

# Bounds on a machine of two cores that runs other tests at the same time.
HEALTH_SECONDS = 2
NEIGHBOUR_SECONDS = 8


@pytest.fixture(scope="module")
def neighbour(create_for_module):
    """A sandbox of somebody else."""
    return create_for_module(timeout=900)


@pytest.fixture(autouse=True)
def others_stay_responsive(request, server, neighbour):
    yield
    check_others(server, neighbour)


def check_others(server, neighbour) -> None:
    """Fails when the server or the neighbour keep their clients waiting."""
    waited = server.health_seconds()
    assert waited < HEALTH_SECONDS, f"the server took {waited:.1f} s to say that it is well"
    begun = time.monotonic()
    assert neighbour.commands.run("echo fine", timeout=30).stdout == "fine\n"
    waited = time.monotonic() - begun
    assert waited < NEIGHBOUR_SECONDS, f"a neighbour's command took {waited:.1f} s"
