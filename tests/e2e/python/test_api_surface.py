"""What the API has, says and refuses as a whole."""

import json
import re
import time

import httpx
import pytest

from support.raw import head, open_socket, read_reply

WRONG_KEYS = ["e2b_" + "0" * 40, "e2b_xyz", "nonsense", "", "é" * 10, "e2b_" + "0" * 5000]
METHODS = ("get", "post", "put", "patch", "delete")


@pytest.fixture(scope="module")
def document(server) -> dict:
    with server.client(key=None) as client:
        reply = client.get("/openapi.json")
    assert reply.status_code == 200 and reply.headers["content-type"].startswith("application/json")
    return reply.json()


def operations(document: dict):
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method in METHODS:
                yield method, path, operation


def filled(path: str) -> str:
    """The path with something plausible in place of its parameters."""
    path = re.sub(r"\{sandboxID\}", "i" + "0" * 19, path)
    return re.sub(r"\{\w+\}", "aaaaaaaaaaaaaaaaaaaa", path)


def test_the_document_describes_the_contract(document):
    assert document["openapi"].startswith("3.")
    for path in [
        "/sandboxes",
        "/v2/sandboxes",
        "/sandboxes/{sandboxID}",
        "/v2/sandboxes/{sandboxID}/connect",
        "/health",
    ]:
        assert path in document["paths"], path
    text = json.dumps(document)
    for name in set(re.findall(r'"#/components/schemas/([^"]+)"', text)):
        assert name in document["components"]["schemas"], name


def test_every_protected_operation_wants_a_key(document, server):
    protected = [(m, p) for m, p, operation in operations(document) if "401" in operation["responses"]]
    assert len(protected) > 20
    with server.client(key=None) as client:
        for method, path in protected:
            reply = client.request(method, filled(path))
            assert reply.status_code == 401, f"{method} {path}: {reply.status_code} {reply.text}"
            assert reply.json()["code"] == 401 and reply.json()["message"]


@pytest.mark.parametrize("key", WRONG_KEYS, ids=lambda key: key[:12] or "empty")
def test_no_wrong_key_opens(server, key):
    with server.client(key=None) as client:
        for headers in [{"X-API-Key": key.encode()}, {"Authorization": (b"Bearer " + key.encode()).strip()}]:
            assert client.get("/v2/sandboxes", headers=headers).status_code == 401
            assert client.post("/v2/sandboxes", headers=headers, json={"templateID": "base"}).status_code == 401


def test_a_refused_request_leaves_the_connection_usable(server):
    """Head and body arrive in packets of their own, as many clients send them."""
    body = b'{"timeout": 5}'
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body))}
    for key, path in [("wrong", "/v2/sandboxes"), (server.key, f"/sandboxes/i{'0' * 19}/pause"), (server.key, "/none")]:
        with open_socket(server) as stream:
            for _ in range(3):
                stream.sendall(head("POST", path, "localhost", {**fields, "X-API-Key": key}))
                time.sleep(0.02)
                stream.sendall(body)
                reply = read_reply(stream, "POST")
                assert reply.status in (401, 404, 501)
                assert reply.headers.get("connection") != "close"


def test_what_comes_later_says_so(document, api, create):
    sandbox = create().sandbox_id
    later = [(m, p) for m, p, operation in operations(document) if "501" in operation["responses"]]
    assert len(later) > 10
    for method, path in later:
        reply = api.request(method, filled(path.replace("{sandboxID}", sandbox)))
        assert reply.status_code == 501, f"{method} {path}: {reply.status_code}"
        assert "not supported by this version" in reply.json()["message"]
    for path in ["/sandboxes/{sandboxID}/fork", "/sandboxes/{sandboxID}/snapshots", "/v3/templates"]:
        assert ("post", path) in later, path
    for path in ["pause", "fork", "snapshots"]:
        assert api.post(filled(f"/sandboxes/{{sandboxID}}/{path}")).status_code == 404, path


def test_unknown_routes_and_methods_are_json(api):
    assert api.get("/no/such/route").status_code == 404 and api.get("/no/such/route").json()["message"]
    assert api.put("/v2/sandboxes").status_code == 405


def test_malformed_json_is_a_400(api):
    deep = "[" * 100_000
    for body in [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"templateID":7}',
        '{"templateID":"base","timeout":-5}',
        deep,
        "\x00\xff",
    ]:
        reply = api.post("/v2/sandboxes", content=body.encode("latin-1"), headers={"Content-Type": "application/json"})
        assert reply.status_code == 400, f"{body[:30]!r}: {reply.status_code} {reply.text}"
        assert reply.json()["code"] == 400 and reply.json()["message"]


@pytest.mark.parametrize(
    "bad",
    ["a-b-c", "ABC", "i%00", "..%2f..%2fetc%2fpasswd", "%2e%2e", "i'or'1'='1", "i" * 5000, "é", "%ff", "i;rm -rf"],
    ids=lambda bad: bad[:12],
)
def test_malformed_ids_are_refused(api, bad):
    for method, path in [
        ("GET", f"/sandboxes/{bad}"),
        ("DELETE", f"/sandboxes/{bad}"),
        ("POST", f"/sandboxes/{bad}/timeout"),
        ("POST", f"/v2/sandboxes/{bad}/connect"),
        ("GET", f"/sandboxes/{bad}/logs"),
        ("GET", f"/sandboxes/{bad}/metrics"),
    ]:
        reply = api.request(method, path, json={"timeout": 5} if method == "POST" else None)
        assert reply.status_code in (400, 404), f"{method} {path}: {reply.status_code}"
        assert "root:" not in reply.text


def test_a_body_that_is_too_large_is_refused(api):
    huge = json.dumps({"templateID": "base", "metadata": {"a": "b" * (8 << 20)}})
    reply = api.post("/v2/sandboxes", content=huge, headers={"Content-Type": "application/json"})
    assert reply.status_code in (400, 413), reply.text
    assert "limits.max_body_bytes" in reply.json()["message"]


def test_bodies_in_chunks_are_accepted(api):
    pieces = (piece.encode() for piece in ['{"templateID"', ':"no-such-', 'template"}'])
    assert api.post("/v2/sandboxes", content=pieces).status_code == 404


def test_browsers_of_other_origins_may_ask(server):
    preflight = httpx.options(
        f"{server.url}/v2/sandboxes",
        headers={
            "Origin": "https://app.example",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "x-api-key,content-type",
        },
        trust_env=False,
    )
    assert preflight.status_code in (200, 204)
    assert preflight.headers["access-control-allow-origin"] == "*"
    assert "x-api-key" in preflight.headers["access-control-allow-headers"].lower()
    with server.client() as client:
        listing = client.get("/v2/sandboxes", headers={"Origin": "https://app.example"})
    assert "x-next-token" in listing.headers["access-control-expose-headers"].lower()


def test_templates_are_listed_and_found(api):
    listed = api.get("/templates").json()
    base = next(template for template in listed if "base" in template["names"] or "base" in template["aliases"])
    assert (base["cpuCount"], base["memoryMB"]) == (2, 512)
    assert api.get("/v2/templates").json() == listed
    assert api.get("/templates/aliases/base").json()["templateID"] == base["templateID"]
    assert api.get("/templates/aliases/no-such-one").status_code == 404
    assert api.get(f"/templates/{base['templateID']}").json()["builds"]
    exists = api.get(f"/templates/{base['templateID']}/tags/exists", params={"tag": "default"})
    assert exists.json()["exists"] is True


def test_the_team_and_health(api, server):
    teams = api.get("/teams").json()
    assert len(teams) == 1 and teams[0]["teamID"]
    with server.client(key=None) as client:
        assert client.get("/health").status_code in (200, 204)
