"""Guests and clients that fill the disk. The server here gives sandboxes a disk of 1 GiB."""

import json
import subprocess
import time

import httpx
import pytest
from e2b import CommandExitException, NotEnoughSpaceException

from support import envd
from support.raw import head, open_socket, read_reply

GIB = 1 << 30


@pytest.fixture(scope="session")
def server(own):
    """The own server, whose sandboxes have a small disk."""
    own.start()
    yield own.server
    own.stop()


@pytest.fixture
def sandbox(create):
    return create(timeout=300)


def used_on_host(own) -> int:
    """Bytes that the data directory takes, holes not counted."""
    done = subprocess.run(["du", "-s", "--block-size=1", own.data_dir], capture_output=True, text=True)
    return int(done.stdout.split()[0])


def is_well(sandbox) -> None:
    assert sandbox.commands.run("echo fine").stdout == "fine\n"
    assert sandbox.is_running()


@pytest.mark.parametrize("with_length", [True, False], ids=["length", "chunked"])
def test_an_upload_of_three_gibibytes_to_one_is_a_507(server, own, sandbox, api, with_length):
    before = used_on_host(own)
    token = api.get(f"/sandboxes/{sandbox.sandbox_id}").json()["envdAccessToken"]
    fields = {**envd.headers(sandbox.sandbox_id, token), "Content-Type": "application/octet-stream"}
    piece, count = b"\xa5" * (4 << 20), 3 * GIB // (4 << 20)
    if with_length:
        fields["Content-Length"] = str(3 * GIB)
    else:
        fields["Transfer-Encoding"] = "chunked"
    memory = server.memory_bytes()
    with open_socket(server, timeout=120) as stream:
        stream.sendall(head("POST", "/files?path=/home/user/huge", "localhost", fields))
        for _ in range(count):
            stream.sendall(piece if with_length else b"%x\r\n%s\r\n" % (len(piece), piece))
        if not with_length:
            stream.sendall(b"0\r\n\r\n")
        reply = read_reply(stream, "POST")
    assert reply.status == 507, reply.body[:300]
    assert json.loads(reply.body)["code"] == 507 and json.loads(reply.body)["message"]
    assert server.memory_bytes() - memory < 64 << 20
    is_well(sandbox)
    # What was written of it does not stay in the way.
    sandbox.files.remove("/home/user/huge")
    sandbox.files.write("/home/user/small", "fits")
    assert sandbox.files.read("/home/user/small") == "fits"
    assert used_on_host(own) - before < 1.3 * GIB


@pytest.mark.parametrize("where", ["/tmp", "/home/user", "/var/tmp"])
def test_a_full_disk_leaves_the_sandbox_alive(sandbox, where):
    with pytest.raises(CommandExitException) as full:
        sandbox.commands.run(f"head -c 3G /dev/zero > {where}/fill", timeout=120)
    assert "No space left on device" in full.value.stderr
    is_well(sandbox)
    with pytest.raises(NotEnoughSpaceException):
        sandbox.files.write("/home/user/more", b"x" * (4 << 20))
    assert sandbox.commands.run("df --output=pcent / | tail -1").stdout.strip() in ("100%", "99%")
    sandbox.commands.run(f"rm {where}/fill")
    sandbox.files.write("/home/user/more", b"x" * (4 << 20))


def test_the_disk_has_the_size_that_was_asked_for(sandbox):
    total = int(sandbox.commands.run("df --output=size -B1 / | tail -1").stdout)
    assert 0.85 * GIB < total <= GIB


def test_files_run_out_before_anything_else_does(sandbox, server):
    files = 'import itertools\nfor n in itertools.count(): open(str(n), "w").close()'
    script = f"mkdir /tmp/many && cd /tmp/many && python3 -c '{files}'"
    begun = time.monotonic()
    with pytest.raises(CommandExitException) as full:
        sandbox.commands.run(script, timeout=120)
    assert "No space left on device" in full.value.stderr
    assert time.monotonic() - begun < 100
    is_well(sandbox)
    assert server.health_seconds() < 2


def test_a_disk_that_fills_up_while_nobody_looks_does_not_grow_on_the_host(sandbox, own):
    before = used_on_host(own)
    for _ in range(2):
        sandbox.commands.run("head -c 3G /dev/urandom > /home/user/fill || true; rm /home/user/fill", timeout=180)
    assert used_on_host(own) - before < 1.3 * GIB
    assert httpx.get(f"{own.url}/health", trust_env=False).is_success
