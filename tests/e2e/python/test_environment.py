"""What programs find around them inside a sandbox."""

import json
import os
import shutil
import uuid

import httpx
import pytest
from e2b import CommandExitException, Sandbox

from support.wait import wait_for

# Memory and disk of the base template, in MiB.
MEMORY, DISK = 512, 10240


def out(sandbox, command: str, **options) -> str:
    return sandbox.commands.run(command, timeout=60, **options).stdout.strip()


def messages(server, sandbox) -> list[dict]:
    with server.client() as client:
        return client.get(f"/v2/sandboxes/{sandbox.sandbox_id}/logs", params={"limit": 1000}).json()["logs"]


def test_a_sandbox_knows_who_it_is(shared):
    variables = dict(line.split("=", 1) for line in out(shared, "env | grep ^E2B_").splitlines())
    template = shared.get_info().template_id
    assert variables["E2B_SANDBOX"] == "true"
    assert variables["E2B_SANDBOX_ID"] == shared.sandbox_id
    assert variables["E2B_TEMPLATE_ID"] == template
    for name in ["E2B_SANDBOX", "E2B_SANDBOX_ID", "E2B_TEMPLATE_ID"]:
        assert out(shared, f"cat /run/e2b/.{name}") == variables[name]
    origin = dict(line.split("=", 1) for line in out(shared, "cat /.e2b").splitlines())
    assert origin["ENV_ID"] == origin["TEMPLATE_ID"] == template
    assert uuid.UUID(origin["BUILD_ID"])
    assert out(shared, "hostname") == shared.sandbox_id


def test_a_sandbox_asks_its_host_who_it_is_and_sends_log_lines(shared, server):
    for base in ["http://events.e2b.local", "$E2B_EVENTS_ADDRESS"]:
        assert json.loads(out(shared, f"curl -sS {base}/me")) == {"sandboxID": shared.sandbox_id}
    text = f"from inside {uuid.uuid4()}"
    line = json.dumps({"level": "error", "message": text, "step": 3, "envID": "somebody"})
    status = "curl -sS -o /dev/null -w '%{http_code}' events.e2b.local/logs -d"
    assert out(shared, f"{status} '{line}'") == "200"
    stored = wait_for(
        "the line", lambda: [entry for entry in messages(server, shared) if entry["message"] == text]
    )
    assert stored[0]["level"] == "error"
    assert stored[0]["fields"]["step"] == "3" and "envID" not in stored[0]["fields"]
    other = json.dumps({"message": text, "instanceID": "another"})
    assert out(shared, f"{status} '{other}'") == "400"


def test_it_does_so_without_internet_access(create):
    sandbox = create(allow_internet_access=False)
    assert json.loads(out(sandbox, "curl -sS http://events.e2b.local/me")) == {"sandboxID": sandbox.sandbox_id}


def test_sizes_are_those_of_the_sandbox(shared):
    assert abs(int(out(shared, "df --output=size -m / | tail -1")) - DISK) < DISK / 50
    info = shared.get_info()
    if shutil.which("lxcfs") is None:
        pytest.skip("lxcfs is not installed")
    assert int(out(shared, "free -m | awk '/^Mem/{print $2}'")) == info.memory_mb == MEMORY
    assert int(out(shared, "awk '/MemTotal/{print $2}' /proc/meminfo")) == MEMORY * 1024
    counts = out(shared, "nproc; grep -c ^processor /proc/cpuinfo; python3 -c 'import os; print(os.cpu_count())'").split()
    host = len(os.sched_getaffinity(0))
    assert {int(count) for count in counts} == {min(info.cpu_count, host)}
    # Less than since the sandbox began, so not the host's.
    assert float(out(shared, "cut -d' ' -f1 /proc/uptime")) < 1800


def test_memory_in_use_is_the_sandboxs(create):
    if shutil.which("lxcfs") is None:
        pytest.skip("lxcfs is not installed")
    sandbox = create()
    used = lambda: int(out(sandbox, "free -m | awk '/^Mem/{print $3}'"))
    before = used()
    hold = "import time; block = bytearray(200 << 20); block[::4096] = bytes(len(block[::4096])); print('held', flush=True); time.sleep(60)"
    held = sandbox.commands.run(f'python3 -c "{hold}"', background=True)
    wait_for("the memory in use", lambda: used() > before + 150)
    held.kill()
    wait_for("its end", lambda: used() < before + 100)


def test_time_zones_and_sudo(shared):
    assert out(shared, "TZ=Asia/Kolkata date +%z") == "+0530"
    assert out(shared, "TZ=Europe/Berlin date -d 2024-07-01T00:00Z +%Z") == "CEST"
    assert out(shared, "sudo -n id -u") == "0"
    assert out(shared, "LC_ALL=C.UTF-8 python3 -c 'print(chr(0xe9), ascii(chr(0xe9)))'") == "é '\\xe9'"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "localhost"])
def test_a_server_on_one_loopback_address_is_reached(shared, server, address):
    port = {"127.0.0.1": 8501, "::1": 8502, "localhost": 8503}[address]
    shared.files.write(f"/tmp/on-{port}/file", address)
    script = f"cd /tmp/on-{port} && exec python3 -m http.server {port} --bind {address}"
    handle = shared.commands.run(script, background=True, timeout=0)
    headers = {"E2b-Sandbox-Id": shared.sandbox_id, "E2b-Sandbox-Port": str(port)}
    read = lambda: httpx.get(f"{server.url}/file", headers=headers, trust_env=False, timeout=10)
    wait_for("the server", lambda: read().status_code == 200)
    assert read().text == address
    handle.kill()


def test_certificates_of_the_host_are_trusted_and_stay_so(create, server):
    sandbox = create()
    make = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=lab -keyout key.pem -out lab.pem"
    out(sandbox, f"cd /tmp && {make} 2>/dev/null")
    pem = out(sandbox, "cat /tmp/lab.pem")
    verify = "openssl verify -no-CAstore -no-CApath -CAfile /etc/ssl/certs/ca-certificates.crt /tmp/lab.pem"
    with pytest.raises(CommandExitException):
        out(sandbox, verify)
    before = out(sandbox, "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt")
    for _ in range(2):
        assert initialise(server, sandbox, caBundle=pem + "\n") == 204
        assert out(sandbox, verify) == "/tmp/lab.pem: OK"
    assert out(sandbox, "grep -c BEGIN /etc/ssl/certs/ca-certificates.crt") == str(int(before) + 1)
    out(sandbox, "sudo update-ca-certificates --fresh", user="user")
    assert out(sandbox, verify) == "/tmp/lab.pem: OK"
    assert initialise(server, sandbox, caBundle="no certificate") == 400
    assert out(sandbox, verify) == "/tmp/lab.pem: OK"


def initialise(server, sandbox: Sandbox, **fields) -> int:
    """What the node does: asks envd with the instance's secret, which root of the host can read."""
    for labels in server.data_dir.glob("node/instances/*/labels.json"):
        if json.loads(labels.read_text()).get("hutch.sandbox") == sandbox.sandbox_id:
            secret = json.loads((labels.parent / "instance.json").read_text())["spec"]["secret"]
            address = out(sandbox, "hostname -I").split()[0]
            with server.client() as client:
                token = client.post(f"/sandboxes/{sandbox.sandbox_id}/connect", json={"timeout": 120}).json()
            body = {"accessToken": token.get("envdAccessToken"), **fields}
            url = f"http://{address}:49983/init"
            return httpx.post(url, json=body, headers={"X-Hutch-Secret": secret}, trust_env=False).status_code
    raise AssertionError("the sandbox has no instance on this machine")
