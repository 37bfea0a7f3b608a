"""TLS and DNS of the server's own: a program with nothing but E2B_DOMAIN, a key and the CA works. All of it happens in a network
namespace with the real ports, 443 and 53."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from support.lab import lab
from support.wait import wait_for

HERE = Path(__file__).parent
DOMAIN = "sandbox.test"
SDKS = os.environ.get("HUTCH_E2E_SDKS", "").split()


class Https:
    """The own server in a lab, with TLS and DNS."""

    def __init__(self, own, place):
        self.own, self.lab = own, place
        self.tls = own.data_dir / "tls"
        self.process: subprocess.Popen | None = None

    def start(self, *flags: str, **settings: object) -> None:
        command = [self.own.binary, "serve", "--listen", "127.0.0.1:3000", "--data-dir", self.own.data_dir, *flags]
        with self.own.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.lab.server_prefix, *command],
                env=self.own.environment(domain=DOMAIN, **settings),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.own.pid_file.write_text(str(self.process.pid))
        wait_for("the server", self.answers, within=60, every=0.1)

    def answers(self) -> bool:
        assert self.process.poll() is None, self.own.tail()
        return self.curl("http://127.0.0.1:3000/health", check=False).returncode == 0

    def stop(self) -> None:
        if self.process:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=30)
            self.process = None
            self.own.pid_file.write_text("")

    def purge(self) -> None:
        """Its sandboxes, whose links are in the lab."""
        purge = [self.own.binary, "sandbox", "purge", "--data-dir", self.own.data_dir]
        subprocess.run([*self.lab.server_prefix, *purge], env=self.own.environment(), check=True, timeout=60)

    def curl(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess:
        return self.lab.run("curl", "--silent", "--show-error", "--fail", "--max-time", "10", *arguments, check=check)

    def trusted(self) -> dict[str, str]:
        """What the server's greeting tells to export."""
        return {
            "E2B_DOMAIN": DOMAIN,
            "E2B_API_KEY": self.own.key,
            "SSL_CERT_FILE": str(self.tls / "ca-bundle.pem"),
            "NODE_EXTRA_CA_CERTS": str(self.tls / "ca.pem"),
        }


@pytest.fixture(scope="module")
def https(own):
    own.stop()
    with lab("127.0.0.1") as place:
        server = Https(own, place)
        try:
            server.start("--tls", "self", "--dns")
            yield server
        finally:
            with contextlib.suppress(AssertionError):
                server.stop()
            server.purge()


def test_names_resolve_through_the_servers_own_dns(https):
    for name in (DOMAIN, f"api.{DOMAIN}", f"3000-abc.{DOMAIN}"):
        assert https.lab.run("getent", "hosts", name).stdout.startswith("127.0.0.1 ")
    assert https.lab.run("getent", "hosts", "example.com", check=False).returncode != 0


@pytest.mark.parametrize("sdk", SDKS)
def test_a_program_that_knows_only_the_domain(https, sdk):
    language = sdk.partition("-")[0]
    place = Path(os.environ["HUTCH_E2E_WORK"]) / sdk
    environment = https.trusted()
    if language == "python":
        command = [place / "bin/python", HERE / "client.py"]
    else:
        command = ["node", HERE / "client.mjs"]
        environment["SDK"] = str(place)
    told = json.loads(https.lab.run(*command, env=environment).stdout.splitlines()[-1])
    host = told.pop("host")
    assert host.startswith("8000-") and host.endswith(f".{DOMAIN}"), host
    assert told == {"said": "hello from user", "note": "a note", "page": "a note", "signed": "a note"}


def test_both_versions_of_http_are_offered(https):
    ca = str(https.tls / "ca.pem")
    for version, flag in (("2", "--http2"), ("1.1", "--http1.1")):
        said = https.curl("--cacert", ca, flag, "--write-out", "%{http_version}", f"https://api.{DOMAIN}/health")
        assert said.stdout == version
    # By address and by localhost, for E2B_API_URL.
    for host in ("127.0.0.1", "localhost"):
        https.curl("--cacert", ca, f"https://{host}/health")


def test_without_the_ca_there_is_no_trust(https):
    refused = https.curl(f"https://api.{DOMAIN}/health", check=False)
    assert refused.returncode == 60, refused.stderr
    # Nor does the CA vouch for anything but its domain.
    text = subprocess.run(
        ["openssl", "x509", "-noout", "-ext", "nameConstraints", "-in", https.tls / "ca.pem"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert f"DNS:{DOMAIN}" in text and "critical" in text


def test_the_ca_survives_a_restart_and_plain_http_stays(https):
    before = (https.tls / "ca.pem").read_text()
    assert (https.tls / "ca.key").stat().st_mode & 0o777 == 0o600
    https.stop()
    https.start("--tls", "self", "--dns")
    assert (https.tls / "ca.pem").read_text() == before
    https.curl("http://127.0.0.1:3000/health")


def test_silent_clients_are_cut_off(https):
    https.stop()
    https.start("--tls", "self", "--dns", tls_handshake_timeout_seconds=1, tls_max_handshakes=2)
    script = (
        "import socket\n"
        "idle = [socket.create_connection(('127.0.0.1', 443)) for _ in range(4)]\n"
        "[s.settimeout(10) for s in idle]\n"
        "assert [s.recv(1) for s in idle] == [b''] * 4\n"
    )
    https.lab.run("python3", "-c", script)
    https.curl("--cacert", str(https.tls / "ca.pem"), f"https://api.{DOMAIN}/health")
    https.stop()
    https.start("--tls", "self", "--dns")


def test_files_are_followed(https, tmp_path):
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")

    def make(name: str) -> None:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30"]
            + ["-subj", f"/CN={name}", "-addext", f"subjectAltName=DNS:{DOMAIN},DNS:*.{DOMAIN}"]
            + ["-keyout", tmp_path / "new.key", "-out", tmp_path / "new.pem"],
            check=True,
            capture_output=True,
        )
        for kind in ("key", "pem"):
            (tmp_path / f"new.{kind}").rename(tmp_path / f"server.{kind}")

    def served() -> str:
        return https.curl("--verbose", "--cacert", str(tmp_path / "server.pem"), f"https://api.{DOMAIN}/health").stderr

    make("first")
    https.stop()
    https.start("--tls", "files", "--dns", tls_cert=tmp_path / "server.pem", tls_key=tmp_path / "server.key")
    assert "CN=first" in served()
    make("second")
    other = ("--verbose", "--insecure", f"https://api.{DOMAIN}/health")
    wait_for("the new certificate", lambda: "CN=second" in https.curl(*other).stderr, within=30)
    assert "CN=second" in served()


def test_a_certificate_is_ordered(https, tmp_path):
    if not (shutil.which("pebble") and shutil.which("pebble-challtestsrv")):
        pytest.skip("pebble is not installed")
    key, cert = tmp_path / "pebble.key", tmp_path / "pebble.pem"
    subprocess.run(
        # Without the configuration's defaults, which would make it a CA.
        ["openssl", "req", "-x509", "-config", "/dev/null", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-days", "2", "-subj", "/CN=pebble", "-addext", "subjectAltName=IP:127.0.0.1"]
        + ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", key, "-out", cert],
        check=True,
        capture_output=True,
    )
    settings = {
        "listenAddress": "127.0.0.1:14000",
        "managementListenAddress": "127.0.0.1:15000",
        "certificate": str(cert),
        "privateKey": str(key),
        "httpPort": 5002,
        "tlsPort": 5001,
    }
    (tmp_path / "pebble.json").write_text(json.dumps({"pebble": settings}))
    hook = tmp_path / "hook"
    hook.write_text(
        "#!/bin/sh\ncase $1 in add) what=set-txt ;; remove) what=clear-txt ;; esac\n"
        """exec curl -sSf -d "{\\"host\\":\\"$2.\\",\\"value\\":\\"$3\\"}" http://127.0.0.1:8055/$what\n"""
    )
    hook.chmod(0o755)
    names = ["-dns01", "127.0.0.1:8053", "-management", "127.0.0.1:8055", "-http01", "", "-https01", "", "-tlsalpn01", ""]
    programs = [
        ["pebble-challtestsrv", *names],
        ["pebble", "-strict", "-dnsserver", "127.0.0.1:8053", "-config", str(tmp_path / "pebble.json")],
    ]
    https.stop()
    # That of an earlier run is from a Pebble that is no more.
    shutil.rmtree(https.tls / "acme", ignore_errors=True)
    with contextlib.ExitStack() as running:
        for program in programs:
            process = subprocess.Popen(
                [*https.lab.server_prefix, *program],
                env={**os.environ, "PEBBLE_VA_NOSLEEP": "1"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            running.callback(process.wait)
            running.callback(process.kill)
        management = "https://127.0.0.1:15000/roots/0"
        wait_for("pebble", lambda: https.curl("--insecure", management, check=False).returncode == 0)
        https.start(
            "--tls",
            "acme",
            "--dns",
            tls_acme_directory="https://127.0.0.1:14000/dir",
            tls_acme_root=cert,
            tls_acme_hook=hook,
            tls_acme_check_servers="127.0.0.1:8053",
        )
        (tmp_path / "root.pem").write_text(https.curl("--insecure", management).stdout)
        ask = ("--cacert", str(tmp_path / "root.pem"), f"https://3000-abc.{DOMAIN}/")
        # The sandbox does not exist, but the certificate is for its name.
        # curl's 22 is an answer that is an error.
        wait_for("a certificate", lambda: https.curl(*ask, check=False).returncode == 22, within=60, every=0.5)
    assert (https.tls / "acme/certificate.pem").stat().st_mode & 0o777 == 0o600
