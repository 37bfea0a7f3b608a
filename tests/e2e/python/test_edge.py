"""Traffic to sandboxes: which one, which port, and what passes."""

import hashlib
import http.client
import json
import socket
import time
from pathlib import Path

import pytest

from support import inside_server
from support.raw import BROWSER, WebSocket, exchange, head, open_socket, read_reply

ALL, IPV4, IPV6, CLOSED = 8000, 8001, 8002, 8009
DOMAIN = "sandboxes.example"


@pytest.fixture(scope="module")
def inside(shared):
    """The shared sandbox with servers on all addresses, on 127.0.0.1 alone and on ::1 alone."""
    shared.files.write("server.py", Path(inside_server.__file__).read_text())
    for address, port in [("0.0.0.0", ALL), ("127.0.0.1", IPV4), ("::1", IPV6)]:
        shared.commands.run(f"python3 server.py {address} {port}", background=True, timeout=0)
    probes = "curl -sg -o /dev/null localhost:$p || curl -sg -o /dev/null [::1]:$p"
    ready = f"for p in {ALL} {IPV4} {IPV6}; do until {probes}; do sleep 0.1; done; done"
    shared.commands.run(ready, timeout=30)
    return shared


def routed(sandbox, port: int) -> dict[str, str]:
    return {"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port)}


def host_of(sandbox, port: int) -> str:
    return f"{port}-{sandbox.sandbox_id}.{DOMAIN}"


@pytest.mark.parametrize("port", [ALL, IPV4, IPV6])
def test_a_server_is_reached_by_host_name_and_by_headers(inside, server, port):
    by_host = exchange(server, "GET", "/some/path?q=a%20b&r=%2F", host_of(inside, port), {"X-Own": "value"})
    seen = json.loads(by_host.body)
    assert seen["path"] == "/some/path?q=a%20b&r=%2F"
    assert seen["headers"]["host"] == host_of(inside, port)
    assert seen["headers"]["x-own"] == "value"
    assert not [name for name in seen["headers"] if name.startswith(("x-forwarded", "x-hutch"))]
    by_headers = exchange(server, "GET", "/x", "localhost", routed(inside, port))
    assert json.loads(by_headers.body)["path"] == "/x"


def test_the_host_name_wins_over_headers(inside, server):
    seen = json.loads(exchange(server, "GET", "/", host_of(inside, ALL), routed(inside, IPV4)).body)
    assert seen["bound"] == "0.0.0.0"


def test_where_headers_count(inside, server):
    for host in ["localhost", "localhost:1234", "127.0.0.1", "[::1]:3000", "sandbox.example.org"]:
        assert exchange(server, "GET", "/", host, routed(inside, ALL)).status == 200, host
    for dropped in ["E2b-Sandbox-Id", "E2b-Sandbox-Port"]:
        headers = {name: value for name, value in routed(inside, ALL).items() if name != dropped}
        reply = exchange(server, "GET", "/", "localhost", headers)
        assert reply.status == 400 and dropped in reply.text


@pytest.mark.parametrize("bad_port", ["0", "65536", "99999999", "-1", "http"])
def test_ports_that_are_none_are_refused(inside, server, bad_port):
    headers = {"E2b-Sandbox-Id": inside.sandbox_id, "E2b-Sandbox-Port": bad_port}
    assert exchange(server, "GET", "/", "localhost", headers).status == 400


def test_a_closed_port_is_said_in_json_and_html(inside, server):
    reply = exchange(server, "GET", "/", host_of(inside, CLOSED))
    assert reply.status == 502
    assert reply.headers["content-type"] == "application/json; charset=utf-8"
    assert json.loads(reply.body) == {
        "sandboxId": inside.sandbox_id,
        "message": "The sandbox is running but port is not open",
        "port": CLOSED,
        "code": 502,
    }
    page = exchange(server, "GET", "/", host_of(inside, CLOSED), {"User-Agent": BROWSER, "Accept": "text/html"})
    assert page.status == 502 and page.headers["content-type"].startswith("text/html")
    assert "no service running on port" in page.text
    assert str(CLOSED) in page.text and inside.sandbox_id in page.text


def test_an_unknown_sandbox_is_said_in_json_and_html(server):
    unknown = "i" + "0" * 19
    reply = exchange(server, "GET", "/", f"{ALL}-{unknown}.{DOMAIN}")
    assert reply.status == 502
    assert json.loads(reply.body) == {"sandboxId": unknown, "message": "The sandbox was not found", "code": 502}
    page = exchange(server, "GET", "/", f"{ALL}-{unknown}.{DOMAIN}", {"User-Agent": BROWSER, "Accept": "*/*"})
    assert page.status == 502 and "Sandbox Not Found" in page.text


@pytest.mark.parametrize(
    "headers",
    [
        {"User-Agent": BROWSER, "Accept": "application/json"},
        {"User-Agent": BROWSER, "Sec-Fetch-Mode": "cors"},
        {"User-Agent": BROWSER, "X-Requested-With": "XMLHttpRequest"},
        {"User-Agent": "node", "Sec-Fetch-Mode": "cors", "Accept": "*/*"},
    ],
    ids=["accept", "fetch", "ajax", "node"],
)
def test_programs_get_json_even_from_browsers(server, headers):
    reply = exchange(server, "GET", "/", f"{ALL}-i{'0' * 19}.{DOMAIN}", headers)
    assert json.loads(reply.body)["code"] == 502


@pytest.mark.parametrize(
    "path",
    [
        "/init",
        "//init",
        "/init/",
        "/./init",
        "/files/../init",
        "/%69nit",
        "/INIT",
        "/tunnel?port=22",
        "/logs",
        "/freeze",
    ],
)
def test_internal_routes_are_not_there_for_anyone(inside, server, api, path):
    token = api.get(f"/sandboxes/{inside.sandbox_id}").json()["envdAccessToken"]
    for host, headers in [
        (host_of(inside, 49983), {}),
        ("localhost", routed(inside, 49983)),
        (f"49983-i{'0' * 19}.{DOMAIN}", {}),
    ]:
        for method in ["POST", "GET"]:
            headers = {**headers, "X-Access-Token": token, "x-hutch-secret": "guess"}
            reply = exchange(server, method, path, host, headers)
            assert reply.status == 404 and "reserved for the control plane" in reply.text, reply.text


def test_a_path_called_init_of_another_server_is_its_own(inside, server):
    assert json.loads(exchange(server, "GET", "/init", host_of(inside, ALL)).body)["path"] == "/init"


@pytest.mark.parametrize("port", [ALL, IPV4, IPV6])
def test_websockets_pass_both_ways(inside, server, port):
    connection = WebSocket(server, host_of(inside, port), "/ws")
    for payload in [b"short", b"m" * 70_000, bytes(range(256)) * 4000]:
        connection.send(payload)
        assert connection.receive() == (WebSocket.BINARY, payload)
    connection.send("grüße".encode(), WebSocket.TEXT)
    assert connection.receive() == (WebSocket.TEXT, "grüße".encode())
    connection.send(b"\x03\xe8", WebSocket.CLOSE)
    assert connection.receive()[0] == WebSocket.CLOSE
    connection.close()


def test_a_websocket_may_be_quiet(inside, server):
    connection = WebSocket(server, "localhost", "/ws", routed(inside, IPV4))
    time.sleep(3)
    connection.send(b"still there")
    assert connection.receive() == (WebSocket.BINARY, b"still there")
    connection.close()


@pytest.mark.parametrize("port", [ALL, IPV4])
def test_an_upgraded_connection_can_be_half_closed(inside, server, port):
    data = bytes(range(256)) * 5000
    with open_socket(server) as stream, stream.makefile("rb") as answer:
        stream.sendall(head("GET", "/raw", host_of(inside, port), {"Connection": "Upgrade", "Upgrade": "raw"}))
        assert answer.readline().split()[1] == b"101"
        http.client.parse_headers(answer)
        stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)
        assert answer.read().decode() == hashlib.sha256(data).hexdigest()


def test_server_sent_events_are_not_held_back(inside, server):
    with open_socket(server) as stream:
        stream.sendall(head("GET", "/events", host_of(inside, IPV4)))
        response = http.client.HTTPResponse(stream)
        response.begin()
        arrived = [time.time() - float(line.split()[2]) for line in response if line.startswith(b"data: ")]
    assert len(arrived) == 3
    assert max(arrived) < 0.25, f"delayed by {arrived}"


def test_large_bodies_stream_up_and_down(inside, server):
    body = hashlib.sha256(b"seed").digest() * (1 << 19)
    reply = exchange(server, "POST", "/", host_of(inside, IPV4), body=body)
    assert json.loads(reply.body) == {"size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
    down = exchange(server, "GET", f"/bytes/{16 << 20}", host_of(inside, ALL))
    assert len(down.body) == 16 << 20 and set(down.body) == {ord("x")}


def test_bodies_in_chunks_stream_up(inside, server):
    with open_socket(server) as stream:
        fields = {"Transfer-Encoding": "chunked", "Connection": "close"}
        stream.sendall(head("POST", "/", host_of(inside, ALL), fields))
        for piece in [b"one", b"two" * 1000, b"3"]:
            stream.sendall(b"%x\r\n%s\r\n" % (len(piece), piece))
        stream.sendall(b"0\r\n\r\n")
        seen = json.loads(read_reply(stream).body)
    whole = b"one" + b"two" * 1000 + b"3"
    assert seen == {"size": len(whole), "sha256": hashlib.sha256(whole).hexdigest()}


def test_a_connection_is_kept_for_further_requests(inside, server):
    with open_socket(server) as stream:
        for number in range(3):
            stream.sendall(head("GET", f"/{number}", host_of(inside, ALL)))
            assert json.loads(read_reply(stream).body)["path"] == f"/{number}"


def test_a_server_that_has_just_started_is_reached(inside, server):
    port = 8010
    inside.commands.run(f"sleep 0.2; python3 server.py 127.0.0.1 {port}", background=True, timeout=0)
    assert exchange(server, "GET", "/", host_of(inside, port)).status == 200


def test_a_killed_sandbox_is_not_found_at_once(create, server):
    sandbox = create()
    assert exchange(server, "GET", "/health", host_of(sandbox, 49983)).status == 204
    sandbox.kill()
    assert exchange(server, "GET", "/health", host_of(sandbox, 49983)).status == 502


def test_a_private_sandbox_is_closed_without_its_token(api, server):
    rules = {"allowPublicTraffic": False, "maskRequestHost": "app.test:${PORT}"}
    made = api.post("/v2/sandboxes", json={"templateID": "base", "timeout": 120, "network": rules}).json()
    sandbox_id, token = made["sandboxID"], made["trafficAccessToken"]
    try:
        assert api.post(f"/v2/sandboxes/{sandbox_id}/connect", json={}).json()["trafficAccessToken"] == token
        host = f"{CLOSED}-{sandbox_id}.{DOMAIN}"
        for path, headers in [("/", {}), ("/", {"E2b-Traffic-Access-Token": token[:-1]}), ("/?token=" + token, {})]:
            refused = exchange(server, "GET", path, host, headers)
            assert refused.status == 403
            body = json.loads(refused.body)
            assert body["sandboxId"] == sandbox_id
            assert body["message"].startswith("Sandbox is secured with traffic access token. ")
        # Nothing listens there, which only who has the token learns.
        for path, headers in [("/", {"E2b-Traffic-Access-Token": token}), (f"/?e2b-traffic-access-token={token}", {})]:
            passed = exchange(server, "GET", path, host, headers)
            assert (passed.status, json.loads(passed.body)["port"]) == (502, CLOSED)
        assert exchange(server, "GET", "/health", f"49983-{sandbox_id}.{DOMAIN}").status == 204
    finally:
        api.delete(f"/sandboxes/{sandbox_id}")
