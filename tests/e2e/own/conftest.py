"""Servers that the tests start, kill and start again. They run one after another, in the order of the files' names."""

import pytest


@pytest.fixture(scope="module")
def server(own):
    """The own server in place of the shared one."""
    own.stop()
    own.start()
    yield own.server
    own.stop()
