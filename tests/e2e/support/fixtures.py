"""Fixtures and reports of all tests; a pytest plugin."""

import os
import uuid
from pathlib import Path

import pytest
from e2b import Sandbox

from support.own import OwnServer
from support.server import Server

# Marks every sandbox of this run, so that none outlives it.
RUN = os.environ.setdefault("HUTCH_E2E_RUN", uuid.uuid4().hex)


@pytest.fixture(scope="session")
def server() -> Server:
    return Server.from_environment()


@pytest.fixture(scope="session")
def api(server):
    """A client of the REST API with the right key."""
    with server.client() as client:
        yield client


@pytest.fixture(scope="module")
def create_for_module(server):
    """Creates sandboxes that are killed when the module is done."""
    yield from _creator(server)


@pytest.fixture
def create(server):
    """Creates sandboxes that are killed when the test is done."""
    yield from _creator(server)


def _creator(server):
    made = []

    def make(**options) -> Sandbox:
        options.setdefault("timeout", 120)
        metadata = {"run": RUN, **options.pop("metadata", {})}
        made.append(Sandbox.create(metadata=metadata, **server.sdk(), **options))
        return made[-1]

    yield make
    for sandbox in made:
        Sandbox.kill(sandbox.sandbox_id, **server.sdk())


@pytest.fixture(scope="module")
def shared(create_for_module) -> Sandbox:
    """A sandbox for the tests of a module, which leave it usable."""
    return create_for_module(timeout=600)


@pytest.fixture
def folder(shared) -> str:
    """A folder of the shared sandbox, fresh for each test."""
    path = f"/home/user/{uuid.uuid4().hex[:12]}"
    shared.files.make_dir(path)
    return path


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter):
    """Says what was skipped and why, in the form that the scripts collect."""
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        terminalreporter.write_line(f"SKIP: {report.nodeid}: {reason.removeprefix('Skipped: ')}")


@pytest.fixture(scope="session")
def own():
    """The tests' own server, not started yet. What its sandboxes hold is removed at the end."""
    server = OwnServer(Path(os.environ["HUTCH_BIN"]), Path(os.environ["HUTCH_E2E_OWN_DATA"]))
    yield server
    server.stop()
    server.purge()
