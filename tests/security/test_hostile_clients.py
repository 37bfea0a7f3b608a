"""Clients that mean no good. Wrong keys and malformed JSON and ids are in e2e/python/test_api_surface.py."""

import contextlib
import json
import socket
import time
import uuid
from pathlib import Path

import pytest

from support import envd
from support.raw import exchange, head, open_socket, read_reply
from support.wait import wait_for

MIB = 1 << 20


@pytest.fixture
def victim(create):
    return create()


def token_of(api, sandbox) -> str:
    return api.get(f"/sandboxes/{sandbox.sandbox_id}").json()["envdAccessToken"]


def send_all(stream: socket.socket, data: bytes) -> bool:
    """Sends until the other side has had enough. Returns whether it took everything."""
    try:
        stream.sendall(data)
        return True
    except OSError:
        return False


def answer_or_end(stream: socket.socket) -> int | None:
    """The status of an answer; None when the connection was closed without one."""
    with contextlib.suppress(OSError, ValueError):
        first = stream.makefile("rb").readline().split()
        return int(first[1]) if len(first) > 1 else None
    return None


@pytest.mark.parametrize("shape", ["one-header", "many-headers", "long-path", "no-end"])
def test_ten_megabytes_of_headers_are_turned_away(server, shape):
    before = server.memory_bytes()
    filler = {
        "one-header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Big: " + b"a" * (10 * MIB) + b"\r\n\r\n",
        "many-headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-A: b\r\n" * (10 * MIB // 8) + b"\r\n",
        "long-path": b"GET /" + b"a" * (10 * MIB) + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "no-end": b"A" * (10 * MIB),
    }[shape]
    for _ in range(5):
        with open_socket(server) as stream:
            send_all(stream, filler)
            assert answer_or_end(stream) in (None, 400, 414, 431)
    assert server.memory_bytes() - before < 32 * MIB


def test_headers_that_are_too_large_for_a_sandbox_are_turned_away(server, victim):
    headers = {"E2b-Sandbox-Id": victim.sandbox_id, "E2b-Sandbox-Port": "49983"}
    with open_socket(server) as stream:
        send_all(stream, head("GET", "/health", "localhost", {**headers, "X-Big": "a" * (10 * MIB)}))
        assert answer_or_end(stream) in (None, 400, 431)


def test_clients_that_drip_are_cut_and_disturb_nobody(server):
    dripping = []
    try:
        for _ in range(400):
            stream = open_socket(server)
            stream.sendall(b"GET /health HTTP/1.1\r\nHost: local")
            stream.setblocking(False)
            dripping.append(stream)
        begun, alive = time.monotonic(), len(dripping)
        while alive and time.monotonic() - begun < 40:
            for stream in list(dripping):
                try:
                    stream.send(b"h")
                    ended = stream.recv(4096) == b""
                except BlockingIOError:
                    ended = False
                except OSError:
                    ended = True
                if ended:
                    dripping.remove(stream)
                    stream.close()
            alive = len(dripping)
            assert server.health_seconds() < 2
            time.sleep(0.5)
        assert not alive, f"{alive} connections still open after {time.monotonic() - begun:.0f} s"
    finally:
        for stream in dripping:
            stream.close()


def test_a_body_that_never_comes_is_not_waited_for_for_ever(server):
    fields = {"X-API-Key": server.key, "Content-Type": "application/json", "Content-Length": "100"}
    with open_socket(server, timeout=45) as stream:
        stream.sendall(head("POST", "/v2/sandboxes", "localhost", fields) + b'{"templateID"')
        assert answer_or_end(stream) in (None, 400, 408)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello",
        b"POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v2/sandboxes HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFFF\r\nx",
        b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET  /health\x00 HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 64,
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\nb: c\r\n\x01: d\r\n\r\n",
    ],
    ids=["both-lengths", "two-lengths", "negative", "huge-chunk", "version", "nul", "tls", "h2-noise", "control"],
)
def test_malformed_http_is_refused_or_cut(server, request_bytes):
    with open_socket(server, timeout=30) as stream:
        send_all(stream, request_bytes)
        with contextlib.suppress(OSError):
            stream.shutdown(socket.SHUT_WR)
        reply = b""
        with contextlib.suppress(OSError):
            while piece := stream.recv(65536):
                reply += piece
        assert b'"openapi"' not in reply, "a request was smuggled"
        assert b" 200 " not in reply.split(b"\r\n")[0] and b" 201 " not in reply.split(b"\r\n")[0]


@pytest.mark.parametrize(
    "path",
    [
        "/../../../../etc/passwd",
        "/sandboxes/..%2f..%2f..%2f..%2fetc%2fpasswd",
        "/sandboxes/%2e%2e/%2e%2e/etc/passwd",
        "/templates/..%2f..%2fetc%2fpasswd",
        "/templates/aliases/..%2f..%2f..%2fetc%2fpasswd",
        "/openapi.json/../../../etc/passwd",
        "//etc/passwd",
        "/%00/etc/passwd",
        "/sandboxes/....//....//etc/passwd",
        "\\..\\..\\etc\\passwd",
    ],
)
def test_paths_do_not_leave_the_api(server, path):
    reply = exchange(server, "GET", path, "localhost", {"X-API-Key": server.key})
    assert reply.status in (400, 401, 404), reply.status
    assert "root:" not in reply.text


def test_file_paths_do_not_leave_the_sandbox(server, victim, api, tmp_path):
    secret = uuid.uuid4().hex
    on_host = tmp_path / "secret.txt"
    on_host.write_text(secret)
    tmp_path.chmod(0o755)
    on_host.chmod(0o644)
    name = f"hutch-{uuid.uuid4().hex}"
    places = [on_host, Path("/tmp") / name, server.data_dir / name]
    for place in places[1:]:
        place.write_text(secret)
    try:
        token = token_of(api, victim)
        for place in places:
            for prefix in [
                "",
                "/../../../../../../..",
                "../../../../../../../../..",
                "/proc/1/root",
                "/proc/self/root/..",
            ]:
                for user in ["user", "root"]:
                    reply = exchange(
                        server,
                        "GET",
                        f"/files?path={prefix}{place}&username={user}",
                        "localhost",
                        envd.headers(victim.sandbox_id, token),
                    )
                    assert reply.status in (400, 401, 404, 500), f"{prefix}{place}: {reply.status}"
                    assert secret not in reply.text
        # Through links that the guest makes.
        victim.commands.run(f"ln -sfn /proc/1/root /tmp/root; ln -sfn {places[1]} /tmp/link", user="root")
        for path in [f"/tmp/root{places[1]}", "/tmp/link"]:
            reply = exchange(
                server, "GET", f"/files?path={path}&username=root", "localhost", envd.headers(victim.sandbox_id, token)
            )
            assert reply.status in (400, 401, 403, 404, 500) and secret not in reply.text
        for path in ["/tmp/root/etc/evil", "../../../../../../../../../../etc/evil"]:
            victim.files.write(path, secret, user="root")
        assert not Path("/etc/evil").exists()
    finally:
        for place in places[1:]:
            place.unlink()


def test_names_in_uploads_do_not_leave_the_sandbox(server, victim, api):
    name = f"evil-{uuid.uuid4().hex}"
    boundary = "xXx"
    for filename in [f"../../../../../../../../tmp/{name}", f"/tmp/{name}", f"..\\..\\{name}", f"a/../../{name}\\x00"]:
        disposition = f'Content-Disposition: form-data; name="file"; filename="{filename}"'
        body = f"--{boundary}\r\n{disposition}\r\n\r\nx\r\n--{boundary}--\r\n".encode()
        fields = {
            **envd.headers(victim.sandbox_id, token_of(api, victim)),
            "Content-Type": f"multipart/form-data; boundary={boundary}",
        }
        reply = exchange(server, "POST", "/files", "localhost", fields, body)
        assert reply.status in (200, 400), reply.text
    for folder in [Path("/tmp"), Path("/"), Path("/home"), Path("/root")]:
        assert not list(folder.glob(f"*{name}*")), folder


def test_a_hundred_megabytes_of_output_cost_the_server_nothing(server, victim, api):
    before = server.memory_bytes()
    token = token_of(api, victim)
    with envd.start(server, victim.sandbox_id, token, "head -c 100M /dev/zero | tr '\\0' x") as stream:
        size, most = 0, before
        end = None
        for number, event in enumerate(envd.events(stream)):
            size += len(event.get("data", {}).get("stdout", "")) * 3 // 4
            end = event.get("end", end)
            if number % 500 == 0:
                most = max(most, server.memory_bytes())
                if number % 2000 == 0:
                    assert server.health_seconds() < 2
    assert 100 * MIB <= size <= 101 * MIB and end is not None
    assert most - before < 64 * MIB, f"the server grew by {(most - before) // MIB} MiB"


def test_a_client_that_does_not_read_stops_nobody(server, victim, api, neighbour):
    before = server.memory_bytes()
    token = token_of(api, victim)
    with envd.start(
        server, victim.sandbox_id, token, "head -c 100M /dev/zero | tr '\\0' x; touch /tmp/through"
    ) as stream:
        stream.recv(100)
        wait_for("envd", lambda: victim.commands.run("echo hi").stdout == "hi\n")
        assert neighbour.commands.run("echo hi").stdout == "hi\n"
        assert server.memory_bytes() - before < 64 * MIB
    wait_for("the command to go on without its client", lambda: victim.files.exists("/tmp/through"), within=30)


def test_many_connections_to_a_sandbox_leave_room_for_others(server, victim, neighbour, api):
    token, streams = token_of(api, victim), []
    try:
        for _ in range(300):
            streams.append(envd.start(server, victim.sandbox_id, token, "sleep 100"))
        assert neighbour.commands.run("echo hi").stdout == "hi\n"
        assert server.health_seconds() < 2
    finally:
        for stream in streams:
            stream.close()


def test_hostile_messages_to_envd_are_refused(server, victim, api):
    headers = {**envd.headers(victim.sandbox_id, token_of(api, victim))}
    connect = {**headers, "Content-Type": "application/connect+json"}
    unary = {**headers, "Content-Type": "application/json"}
    oversized = b"\x00" + (0xFFFFFFFF).to_bytes(4, "big") + b"{"
    for path, fields, body, allowed in [
        ("/process.Process/Start", connect, oversized, (200, 400, 413)),
        ("/process.Process/Start", connect, b"\x00\x00\x00\x00\x02{}", (200, 400)),
        ("/process.Process/Start", connect, b"\x01\x00\x00\x00\x05hello", (200, 400)),
        ("/process.Process/List", unary, b"{" * 10_000, (400,)),
        ("/process.Process/SendSignal", unary, b'{"process":{"pid":4294967295},"signal":"SIGNAL_SIGKILL"}', (404,)),
        ("/process.Process/SendSignal", unary, b'{"process":{"pid":1},"signal":"SIGNAL_SIGKILL"}', (404,)),
        ("/filesystem.Filesystem/Stat", unary, b'{"path":"' + b"a/" * 100_000 + b'"}', (400, 404, 500)),
        ("/filesystem.Filesystem/ListDir", unary, b'{"path":"/","depth":4294967295}', (200, 400, 403, 429, 500)),
        ("/no.Such/Thing", unary, b"{}", (404, 405, 415)),
    ]:
        reply = exchange(server, "POST", path, "localhost", fields, body)
        assert reply.status in allowed, f"{path} {body[:40]!r}: {reply.status} {reply.body[:200]!r}"
        if reply.status == 200 and "connect" in fields["Content-Type"]:
            last = reply.body[reply.body.rfind(b'{"error"') :]
            assert json.loads(last)["error"]["code"], reply.body[:200]
    assert victim.commands.run("echo fine").stdout == "fine\n"


def test_requests_that_are_cut_leave_nothing_behind(server, victim, api):
    token = token_of(api, victim)
    fields = {
        **envd.headers(victim.sandbox_id, token),
        "Content-Type": "application/octet-stream",
        "Content-Length": "100000000",
    }
    for _ in range(20):
        with open_socket(server) as stream:
            stream.sendall(head("POST", "/files?path=/tmp/cut", "localhost", fields) + b"x" * 100_000)
    assert victim.commands.run("ls /tmp | wc -l", timeout=20).exit_code == 0
    with open_socket(server) as stream:
        stream.sendall(
            head("GET", "/health", "localhost", {**envd.headers(victim.sandbox_id, token), "Connection": "close"})
        )
        assert read_reply(stream).status == 204
