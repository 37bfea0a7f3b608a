"""Runs suites against a server in a lab: a machine without a way out, on which E2B's own names lead to Hutch.

Started by scripts/conformance.sh in a network and a mount namespace of its own, so that nothing here touches the machine's
resolver, ports or trust store. In it, Hutch serves TLS on 443 and DNS on 53 for the domain that clients use when they are told
none: the suites run with an API key and no other setting. Sandboxes reach a small internet (internet.py) behind a link.
"""

import argparse
import contextlib
import json
import os
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import image
import internet
import outcomes

HERE = Path(__file__).resolve().parent
DOMAIN = "e2b.app"
# Ends of the link between the lab and its internet.
LAB_SIDE, INTERNET_SIDE = "192.0.2.1", "192.0.2.2"
# No suite takes this long, in seconds.
SUITE_LIMIT = 2700


def say(text: str) -> None:
    print(f"[conformance] {text}", file=sys.stderr, flush=True)


def run(*command: object, **options: object) -> str:
    """Runs a command that must succeed; returns what it printed."""
    done = subprocess.run([str(c) for c in command], capture_output=True, text=True, timeout=600, **options)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout.strip()


def end(process: subprocess.Popen) -> None:
    """Ends a process that was started here."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def make_authority(folder: Path) -> None:
    """The certificate authority of the lab's internet and a certificate for its hosts."""
    folder.mkdir()
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    run(
        "openssl", "req", "-x509", *key, "-days", 30, "-subj", "/CN=Hutch conformance lab",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign",
        "-keyout", folder / "ca.key", "-out", folder / "ca.pem",
    )  # fmt: skip
    run("openssl", "req", *key, "-subj", "/CN=internet", "-keyout", folder / "key.pem", "-out", folder / "request.pem")
    extensions = folder / "extensions"
    extensions.write_text(f"subjectAltName={internet.subject_names()}\nextendedKeyUsage=serverAuth\n")
    run(
        "openssl", "x509", "-req", "-in", folder / "request.pem", "-CA", folder / "ca.pem", "-CAkey", folder / "ca.key",
        "-days", 30, "-extfile", extensions, "-out", folder / "certificate.pem",
    )  # fmt: skip


@contextlib.contextmanager
def small_internet(authority: Path) -> Iterator[None]:
    """Links the lab to an internet of its own."""
    run("ip", "link", "set", "lo", "up")
    run("ip", "link", "add", "lab0", "type", "veth", "peer", "name", "lab1")
    command = [
        "unshare", "--net", sys.executable, HERE / "internet.py", "--link", "lab1", "--own", INTERNET_SIDE,
        "--gateway", LAB_SIDE, "--certificate", authority / "certificate.pem", "--key", authority / "key.pem",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        # The process changes its namespace before it becomes the interpreter.
        lab = os.readlink("/proc/self/ns/net")
        wait_for(lambda: os.readlink(f"/proc/{process.pid}/ns/net") != lab, 30, "a network namespace")
        run("ip", "link", "set", "lab1", "netns", process.pid)
        run("ip", "addr", "add", f"{LAB_SIDE}/30", "dev", "lab0")
        run("ip", "link", "set", "lab0", "up")
        run("ip", "route", "add", "default", "via", INTERNET_SIDE)
        if process.stdout is None or process.stdout.readline().strip() != "ready":
            raise SystemExit("the lab's internet did not come up")
        yield
    finally:
        end(process)


def wait_for(holds, seconds: float, what: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come within {seconds:.0f} s")
        time.sleep(0.05)


class Hutch:
    """The server under test."""

    def __init__(self, options: argparse.Namespace):
        self.binary, self.data_dir = options.hutch, options.data_dir
        foreign = ("HUTCH_DATA_DIR", "HUTCH_LISTEN", "HUTCH_CONFIG")
        self.environment = {k: v for k, v in os.environ.items() if k not in foreign} | {
            "HUTCH_NODE_NETWORK_NUMBER": str(options.network_number),
            "HUTCH_NODE_DNS_UPSTREAMS": f"{internet.NAME_SERVER}:53",
            "HUTCH_DOMAIN": DOMAIN,
        }
        # Tells scripts/conformance.sh that nothing is left to remove.
        self.purged = self.data_dir.with_name(self.data_dir.name + ".lab") / "purged"
        self.bundle = self.data_dir / "tls" / "ca-bundle.pem"

    def command(self, *command: object) -> str:
        return run(self.binary, *command, "--data-dir", self.data_dir, env=self.environment)

    @contextlib.contextmanager
    def serving(self, log: Path) -> Iterator[None]:
        """Runs it; afterwards its sandboxes are removed."""
        command = [
            self.binary, "serve", "--data-dir", self.data_dir, "--listen", "127.0.0.1:3000",
            "--tls", "self", "--dns", "127.0.0.1:53",
        ]  # fmt: skip
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
        try:
            wait_for(lambda: self.answers(process, log), 120, "the server")
            yield
        finally:
            end(process)
            self.command("sandbox", "purge")
            self.purged.touch()

    def answers(self, process: subprocess.Popen, log: Path) -> bool:
        if process.poll() is not None:
            tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
            raise SystemExit(f"the server ended with {process.returncode}:\n{tail}")
        if not self.bundle.exists():
            return False
        # As clients see it: by name, through TLS.
        with contextlib.suppress(OSError):
            context = ssl.create_default_context(cafile=str(self.bundle))
            with urllib.request.urlopen(f"https://api.{DOMAIN}/health", timeout=5, context=context) as answer:
                return answer.status < 300
        return False


def client_alone(tests: Path, language: str, names: str) -> list[Path]:
    """Test files that look into the checkout's own modules: with another version they say nothing."""
    files = (file.relative_to(tests) for file in sorted(tests.rglob(names)))
    return [file for file in files if outcomes.area_of(f"{language}/{file}") == outcomes.CLIENT_ALONE]


def suites(options: argparse.Namespace) -> Iterator[tuple[str, list[str], Path, dict[str, str]]]:
    """Name, command, folder and further environment of each suite that was installed."""
    work, workers = options.work, options.workers
    for name in ("python-checkout", "python-newest", "interpreter-python"):
        folder = work / name
        if (folder / ".complete").exists():
            command = [
                str(folder / "venv/bin/python"), "-m", "pytest",
                "--numprocesses", str(workers), "--timeout", "120", "-p", "no:cacheprovider", "--tb", "short",
                "-o", "junit_family=xunit1", "--junit-xml", str(options.results / f"{name}.xml"), "tests",
            ]  # fmt: skip
            if name.endswith("-newest"):
                command += [f"--ignore=tests/{file}" for file in client_alone(folder / "tests", "python", "test_*.py")]
            yield name, command, folder, {}
    for name, folder, settings in (
        ("javascript-checkout", "javascript", {}),
        ("javascript-newest", "javascript", {"CONFORMANCE_ON": "published"}),
        ("interpreter-javascript", "interpreter-javascript", {}),
    ):
        if (work / folder / ".complete").exists():
            command = [
                str(work / folder / "node_modules/.bin/vitest"), "run", "--reporter", "json", "--reporter", "default",
                "--outputFile.json", str(options.results / f"{name}.json"),
            ]  # fmt: skip
            if name.endswith("-newest"):
                # The option of the command line does not reach projects.
                alone = client_alone(work / folder / "sdk/tests", "javascript", "*.test.ts")
                settings = {**settings, "CONFORMANCE_WITHOUT": json.dumps([f"tests/{file}" for file in alone])}
            yield name, command, work / folder, {"CONFORMANCE_WORKERS": str(workers), **settings}


def client_environment(hutch: Hutch, key: str, home: Path) -> dict[str, str]:
    """What a client is told: whom to trust, and its key."""
    home.mkdir(exist_ok=True)
    foreign = ("HUTCH_", "E2B_", "PYTEST_", "VITEST", "SSL_", "NODE_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(foreign) and not k.lower().endswith("_proxy")}
    return kept | {
        "E2B_API_KEY": key,
        "SSL_CERT_FILE": str(hutch.bundle),
        "NODE_EXTRA_CA_CERTS": str(hutch.bundle),
        "HOME": str(home),
        "CI": "1",
        "NO_COLOR": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--hutch", "--base", "--data-dir", "--work", "--results"):
        parser.add_argument(option, required=True, type=Path)
    parser.add_argument("--network-number", required=True, type=int)
    parser.add_argument("--workers", required=True, type=int)
    parser.add_argument("--only", default="", help="names of suites, separated by commas")
    options = parser.parse_args()
    scratch = options.data_dir.with_name(options.data_dir.name + ".lab")
    scratch.mkdir()
    make_authority(scratch / "authority")
    resolver = scratch / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\noptions timeout:2 attempts:2\n")
    run("mount", "--bind", resolver, os.path.realpath("/etc/resolv.conf"))

    hutch = Hutch(options)
    say("making the base template of the lab")
    tar = scratch / "base.tar"
    image.with_authority(options.base, scratch / "authority/ca.pem", tar)
    hutch.command("template", "import", "--name", "base", "--rootfs", tar)
    tar.unlink()
    key = hutch.command("key", "create", "--name", "conformance")
    ended: dict[str, int] = {}
    with small_internet(scratch / "authority"), hutch.serving(options.results / "server.log"):
        environment = client_environment(hutch, key, scratch / "home")
        for name, command, folder, settings in suites(options):
            if options.only and name not in options.only.split(","):
                continue
            say(f"{name}: running")
            begun = time.monotonic()
            with (options.results / f"{name}.log").open("wb") as log:
                try:
                    done = subprocess.run(
                        command, cwd=folder, env=environment | settings, stdin=subprocess.DEVNULL,
                        stdout=log, stderr=log, timeout=SUITE_LIMIT,
                    )  # fmt: skip
                    ended[name] = done.returncode
                except subprocess.TimeoutExpired:
                    raise SystemExit(f"{name} did not end within {SUITE_LIMIT} s") from None
            say(f"{name}: done in {time.monotonic() - begun:.0f} s")
    (options.results / "ended.json").write_text(json.dumps(ended))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
