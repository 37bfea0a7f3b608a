"""What a person sees when something is in the way: one line that says what to do."""

import socket
import subprocess
import tempfile
from pathlib import Path

import pytest


def serve(own, listen="127.0.0.1:0", data_dir=None, **settings):
    done = own.run("serve", "--listen", listen, "--data-dir", str(data_dir or own.data_dir), check=False, **settings)
    assert done.returncode != 0
    return done.stderr


def only_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.startswith("hutch: ")]
    assert len(lines) == 1, text
    assert "panicked" not in text
    return lines[0]


def test_a_port_that_is_taken(own):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        line = only_line(serve(own, f"127.0.0.1:{taken.getsockname()[1]}"))
    assert "in use" in line and "--listen" in line


def test_ports_of_tls_and_dns_that_are_taken(own):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        tls = only_line(serve(own, tls_mode="self", tls_listen=address))
        dns = only_line(serve(own, dns_listen=address))
    assert "in use" in tls and "tls.listen" in tls
    assert "in use" in dns and "--dns" in dns


def test_certificate_files_that_are_missing(own, tmp_path):
    settings = {"tls_mode": "files", "tls_listen": "127.0.0.1:0"}
    line = only_line(serve(own, tls_cert=tmp_path / "no.pem", tls_key=tmp_path / "no.key", **settings))
    assert "no.pem" in line and "No such file" in line


def test_a_runtime_that_is_missing(own):
    line = only_line(serve(own, node_runc="/no/such/runc"))
    assert "runc" in line and "install" in line


def test_guest_programs_that_are_missing(own, tmp_path):
    line = only_line(serve(own, node_guest_dir=tmp_path))
    assert "envd is missing" in line and "make build" in line


def test_not_root(own):
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    if subprocess.run([*nobody, "test", "-x", own.binary], check=False).returncode != 0:
        pytest.skip("the program lies where nobody else may run it")
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o777)
        serve = [own.binary, "serve", "--listen", "127.0.0.1:0", "--data-dir", f"{folder}/data"]
        done = subprocess.run([*nobody, *serve], env=own.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    line = only_line(done.stderr)
    assert "root" in line and "sudo" in line


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"pool_size": "many"}, "HUTCH_POOL_SIZE"),
        ({"isolation_default": "microvm"}, "isolation.default"),
        ({"node_network_number": "56"}, "node.network_number"),
        ({"limits_history_days": "0"}, "limits.history_days"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_settings_that_cannot_work_are_named(own, settings, named):
    assert named in only_line(serve(own, **settings))


def test_an_address_that_is_none(own):
    assert "127.0.0.1:3000" in only_line(serve(own, "3000"))


def test_the_doctor_says_what_the_host_can_do(own):
    said = own.run("doctor", "--data-dir", str(own.data_dir), check=False).stdout.lower()
    for word in ["kvm", "runc", "runsc", "criu", "cgroup", "nft", "kernel", "isolation"]:
        assert word in said, word


def test_the_configuration_can_be_shown_and_read_back(own, tmp_path):
    shown = own.run("config", limits_history_days=3).stdout
    assert "history_days = 3" in shown
    file = tmp_path / "hutch.toml"
    file.write_text(shown.replace("history_days = 3", "history_days = 4"))
    assert "history_days = 4" in own.run("config", "--config", str(file)).stdout


def test_keys_are_listed_without_themselves_and_revoked_at_once(own):
    at = ("--data-dir", str(own.data_dir))
    own.start()
    try:
        key = own.run("key", "create", "--name", "for-a-while", *at).stdout
        assert key.startswith("e2b_") and len(key.strip()) == 44 and key.count("\n") == 1
        listed = own.run("key", "list", *at).stdout
        assert "for-a-while" in listed and key.strip() not in listed
        with own.server.client(key=key.strip()) as client:
            assert client.get("/v2/sandboxes").status_code == 200
            own.run("key", "revoke", "for-a-while", *at)
            assert client.get("/v2/sandboxes").status_code == 401
    finally:
        own.stop()
