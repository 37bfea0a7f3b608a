"""What sandboxes reach over the network, and what not."""

import json
import os
import subprocess
import uuid
from pathlib import Path

import pytest

from support import inside_server
from support.host import addresses, service
from support.wait import wait_for

# An address that stands for the internet: documentation range, routed to a namespace of this machine for the test. Workers
# that run at the same time have one each.
WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
ROUTER, OUTSIDE = f"203.0.113.{64 + 2 * WORKER}", f"203.0.113.{65 + 2 * WORKER}"

PROBE = """
import concurrent.futures, json, socket, sys
def family(address):
    return socket.AF_INET6 if ':' in address else socket.AF_INET
def tcp(address, port):
    with socket.socket(family(address)) as s:
        s.settimeout(3)
        s.connect(socket.getaddrinfo(address, port, family(address), socket.SOCK_STREAM)[0][4])
        s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
        answer = b''
        while piece := s.recv(4096):
            answer += piece
        return answer.decode('latin-1')
def udp(address, port):
    with socket.socket(family(address), socket.SOCK_DGRAM) as s:
        s.sendto(b'from-a-sandbox', socket.getaddrinfo(address, port, family(address), socket.SOCK_DGRAM)[0][4])
def attempt(target):
    try:
        udp(*target)
    except OSError:
        pass
    try:
        return [*target, tcp(*target)]
    except OSError:
        return None
with concurrent.futures.ThreadPoolExecutor(64) as threads:
    print(json.dumps([answer for answer in threads.map(attempt, json.loads(sys.argv[1])) if answer]))
"""


def probe(sandbox, targets: list[tuple[str, int]]) -> list:
    """Which of the targets a sandbox reaches, TCP; a datagram is sent to each as well."""
    sandbox.files.write("/tmp/probe.py", PROBE)
    quoted = json.dumps(targets)
    return json.loads(sandbox.commands.run(f"python3 /tmp/probe.py '{quoted}'", timeout=120).stdout)


def gateway(sandbox) -> str:
    return sandbox.commands.run("ip -4 route show default | cut -d' ' -f3").stdout.strip()


def own_address(sandbox) -> str:
    return sandbox.commands.run("hostname -I").stdout.split()[0]


@pytest.fixture(scope="module")
def prison(create_for_module):
    return create_for_module(timeout=900)


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@pytest.fixture(scope="module")
def outside():
    """An HTTP server at an address that is not this machine's and not private."""
    name = f"hutchout{uuid.uuid4().hex[:6]}"
    run("ip", "netns", "add", name)
    server = None
    try:
        run("ip", "link", "add", f"{name[-8:]}a", "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "address", "add", ROUTER, "dev", f"{name[-8:]}a")
        run("ip", "link", "set", f"{name[-8:]}a", "up")
        run("ip", "route", "add", OUTSIDE, "dev", f"{name[-8:]}a")
        inside = ["ip", "netns", "exec", name]
        run(*inside, "ip", "link", "set", "lo", "up")
        run(*inside, "ip", "address", "add", OUTSIDE, "dev", "eth0")
        run(*inside, "ip", "link", "set", "eth0", "up")
        run(*inside, "ip", "route", "add", ROUTER, "dev", "eth0")
        run(*inside, "ip", "route", "add", "default", "via", ROUTER)
        program = (
            "import socket\n"
            f"listener = socket.create_server(('{OUTSIDE}', 80))\n"
            "while True:\n"
            "    stream, peer = listener.accept()\n"
            "    with stream:\n"
            "        if stream.recv(4096):\n"
            "            stream.sendall(('HTTP/1.0 200 OK\\r\\n\\r\\n' + peer[0]).encode())\n"
        )
        server = subprocess.Popen([*inside, "python3", "-c", program])
        check = [*inside, "python3", "-c", f"import socket; socket.create_connection(('{OUTSIDE}', 80), 1)"]
        wait_for("the server outside", lambda: subprocess.run(check, capture_output=True).returncode == 0)
        yield OUTSIDE
    finally:
        if server:
            server.kill()
            server.wait()
        # Takes the veth pair along.
        subprocess.run(["ip", "netns", "delete", name], check=False)


def test_services_of_the_host_are_not_reached(prison, server):
    with service() as visits, service("::") as visits6, service("127.0.0.1") as on_loopback:
        targets = [(address, visits.port) for address, _ in addresses(4)]
        targets += [(gateway(prison), visits.port), ("127.0.0.1", on_loopback.port), ("localhost", on_loopback.port)]
        targets += [("0.0.0.0", visits.port), ("127.1.2.3", on_loopback.port), ("::ffff:127.0.0.1", on_loopback.port)]
        for address, _ in addresses(6):
            targets.append((f"{address}%eth0" if address.startswith("fe80") else address, visits6.port))
        targets += [(address, server.address[1]) for address, _ in addresses(4)]
        targets += [(gateway(prison), server.address[1]), (gateway(prison), 22), (gateway(prison), 49983)]
        assert probe(prison, targets) == []
        for seen in (visits, visits6, on_loopback):
            assert seen.tcp == [] and seen.udp == []


def test_the_host_answers_two_questions_on_its_gateway_and_nothing_else(prison, neighbour):
    ask = "curl -s -o /dev/null -w '%{http_code}' --max-time 5 --path-as-is"
    host = gateway(prison)
    for request, status in [
        (f"http://{host}/", "404"),
        (f"http://{host}/sandboxes", "404"),
        (f"http://{host}/me/../logs", "404"),
        (f"-X POST http://{host}/me", "405"),
        (f"http://{host}/logs", "405"),
        (f"-H 'X: {'x' * 20000}' http://{host}/me", "431"),
        (f"-d @/etc/ld.so.cache http://{host}/logs", "400"),
    ]:
        assert prison.commands.run(f"{ask} {request}").stdout == status, request[:80]
    big = f"head -c 1000000 /dev/zero | {ask} --data-binary @- http://{host}/logs || true"
    assert prison.commands.run(big).stdout in ("413", "000")
    # Whatever it claims to be, the link says who it is.
    claims = f"-H 'Host: other' -H 'E2b-Sandbox-Id: {neighbour.sandbox_id}' -H 'X-Forwarded-For: {own_address(neighbour)}'"
    said = json.loads(prison.commands.run(f"curl -s {claims} http://{host}/me").stdout)
    assert said == {"sandboxID": prison.sandbox_id}
    # The address of a neighbour cannot be bound, and packets that show it go nowhere (the rules have tests of their own).
    bound = f"sudo curl -s --max-time 3 --interface {own_address(neighbour)} http://{host}/me || echo refused"
    assert prison.commands.run(bound).stdout == "refused\n"
    # Idle connections are bounded, and cut after a while; others are not kept from asking.
    hold = f"import socket, time; s = [socket.create_connection(('{host}', 80)) for _ in range(100)]; print('held', flush=True); time.sleep(30)"
    held = prison.commands.run(f'python3 -c "{hold}"', background=True, timeout=0)
    said = json.loads(neighbour.commands.run(f"curl -sS --max-time 5 http://{gateway(neighbour)}/me").stdout)
    assert said == {"sandboxID": neighbour.sandbox_id}
    held.kill()


def test_private_and_special_ranges_are_not_reached(prison):
    ranges = [
        "10.0.0.1",
        "10.200.0.1",
        "10.255.255.53",
        "172.16.0.1",
        "172.31.255.254",
        "192.168.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "169.254.169.254",
        "169.254.170.2",
        "198.18.0.1",
        "192.0.0.1",
        "224.0.0.251",
        "255.255.255.255",
        "0.0.0.0",
    ]
    targets = [(address, port) for address in ranges for port in (80,)]
    targets += [("fd00:ec2::254", 80), ("fe80::1%eth0", 80), ("ff02::1%eth0", 80)]
    assert probe(prison, targets) == []


def test_other_sandboxes_are_not_reached(prison, neighbour, server):
    neighbour.files.write("server.py", Path(inside_server.__file__).read_text())
    neighbour.commands.run("python3 server.py 0.0.0.0 8000", background=True, timeout=0)
    neighbour.commands.run("until curl -s -o /dev/null localhost:8000; do sleep 0.1; done", timeout=30)
    address = own_address(neighbour)
    assert probe(neighbour, [(address, 8000)]), "the server is up"
    assert probe(prison, [(address, 8000), (address, 49983), (address, 22)]) == []
    assert probe(neighbour, [(own_address(prison), 49983)]) == []


def test_the_internet_is_reached_and_sees_the_hosts_address(prison, outside):
    [[_, _, answer]] = probe(prison, [(outside, 80)])
    assert answer.endswith(ROUTER), answer


def test_without_internet_access_nothing_is_reached(create, outside):
    sandbox = create(allow_internet_access=False)
    with service() as visits:
        targets = [(outside, 80), (gateway(sandbox), visits.port), ("1.1.1.1", 80)]
        assert probe(sandbox, targets) == []
        assert visits.tcp == [] and visits.udp == []
    lookup = "RES_OPTIONS='timeout:2 attempts:1' getent hosts example.com || echo none"
    assert sandbox.commands.run(lookup, timeout=60).stdout == "none\n"
    assert sandbox.commands.run("curl -s -o /dev/null -w '%{http_code}' localhost:49983/health").stdout == "204"


def test_the_guest_cannot_change_its_network(prison):
    for script in [
        "ip link add dummy0 type dummy",
        "ip address add 10.99.99.99/24 dev eth0",
        "ip link set eth0 down",
        "ip link set eth0 address 02:00:00:00:00:01",
        "ip route replace default dev eth0",
        "ip neigh replace 10.0.0.1 lladdr 02:00:00:00:00:01 dev eth0",
        "nft list ruleset | grep -q . || nft add table inet x",
        "iptables -L",
        "ip netns add x",
        "tc qdisc add dev eth0 root netem delay 1s",
    ]:
        out = prison.commands.run(
            f"PATH=$PATH:/usr/sbin:/sbin; {{ {script}; }} >/dev/null 2>&1 && echo done || echo refused", user="root"
        )
        assert out.stdout == "refused\n", script


def test_names_are_resolved_by_the_relay_alone(prison):
    assert prison.commands.run("grep nameserver /etc/resolv.conf").stdout.split()[1] == gateway(prison)
    # A question gets an answer, whatever the host's own name servers say to it.
    question = (
        "import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(10); "
        "q = bytes.fromhex('abcd01000001000000000000') + b'\\x07example\\x03com\\x00\\x00\\x01\\x00\\x01'; "
        f"s.sendto(q, ('{gateway(prison)}', 53)); print(s.recv(512)[:2].hex())"
    )
    assert prison.commands.run(f'python3 -c "{question}"', timeout=30).stdout == "abcd\n"
