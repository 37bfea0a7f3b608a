"""E2B's command line in a real terminal."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest
from e2b import Sandbox, SandboxNotFoundException

from support.terminal import Terminal
from support.wait import wait_for

pytestmark = pytest.mark.timeout(180)
# A line of `sandbox metrics`.
FIGURES = r"\[(\S+ \S+Z)\] +CPU: +[\d.]+% / +\d+ Cores? .*Memory: +\d+ / \d+ .*Disk: +\d+ / \d+"


class Cli:
    """The command line, told of the server under test alone."""

    def __init__(self, program: str, server, home: Path):
        foreign = ("E2B_", "HUTCH_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        self.program = program
        self.env = kept | {
            "E2B_API_URL": server.url,
            "E2B_SANDBOX_URL": server.url,
            "E2B_API_KEY": server.key,
            "HOME": str(home),
        }

    def terminal(self, *arguments: str) -> Terminal:
        return Terminal(self.program, *arguments, env=self.env)

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess:
        """Runs it as a script does, without a terminal."""
        given = {"input": stdin} if stdin is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(
            [self.program, *arguments], env=self.env, capture_output=True, text=True, timeout=60, **given
        )

    def objects(self, *arguments: str) -> list[dict]:
        """What it prints as JSON, one object a line."""
        done = self.run(*arguments, "--format", "json")
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


@pytest.fixture
def cli(server, tmp_path) -> Cli:
    program = os.environ.get("HUTCH_E2E_CLI")
    if not program:
        pytest.skip("the command line is not installed")
    return Cli(program, server, tmp_path)


def is_gone(server, sandbox_id: str) -> bool:
    try:
        Sandbox.get_info(sandbox_id, **server.sdk())
    except SandboxNotFoundException:
        return True
    return False


def test_create_opens_a_terminal_that_knows_its_size_and_takes_the_sandbox_with_it(cli, server):
    with cli.terminal("sandbox", "create", "base") as terminal:
        sandbox_id = terminal.expect(r"with sandbox ID (i[a-z0-9]+)").group(1)
        terminal.expect(r"\$ ")
        terminal.type("echo $((6*7)); tty; stty size\n")
        terminal.expect(r"^42\s+/dev/pts/\d+\s+50 200\s")
        terminal.resize(90, 30)
        # The command line tells the sandbox, when it has heard of it.
        for _ in range(20):
            terminal.type("stty size\n")
            if terminal.expect(r"^(30 90|50 200)\s").group(1) == "30 90":
                break
        else:
            raise AssertionError("the new size did not arrive")
        terminal.type("exit\n")
        terminal.expect("Closing terminal connection")
        assert terminal.ended() == 0
    wait_for("the sandbox to go with its terminal", lambda: is_gone(server, sandbox_id), within=30)


def test_connect_joins_a_running_sandbox_and_leaves_it_running(cli, server, create):
    sandbox = create()
    sandbox.files.write("/home/user/note", "kept")
    with cli.terminal("sandbox", "connect", sandbox.sandbox_id) as terminal:
        terminal.expect(r"\$ ")
        # The interrupt key reaches the program inside and not the command line.
        terminal.type("cat note; echo; sleep 600\n")
        terminal.expect(r"^kept\s")
        wait_for("the program", lambda: "sleep" in sandbox.commands.run("ps -eo comm").stdout, within=20)
        terminal.type("\x03")
        terminal.type("echo still-$((1+1))\n")
        terminal.expect(r"^still-2\s")
        terminal.type("exit\n")
        assert terminal.ended() == 0
    assert sandbox.is_running()


def test_exec_passes_output_input_and_exit_codes(cli, create):
    sandbox_id = create().sandbox_id
    options = ("-u", "root", "-c", "/tmp", "-e", "A=b")
    script = "id -un; pwd; echo $A >&2; exit 3"
    done = cli.run("sandbox", "exec", *options, sandbox_id, "sh", "-c", script)
    assert (done.returncode, done.stdout) == (3, "root\n/tmp\n")
    assert done.stderr.startswith("b\n")
    text = "".join(f"line {n}\n" for n in range(20_000))
    done = cli.run("sandbox", "exec", sandbox_id, "md5sum", stdin=text)
    same = subprocess.run(["md5sum"], input=text, capture_output=True, text=True, check=True)
    assert (done.returncode, done.stdout) == (0, same.stdout)
    done = cli.run("sandbox", "exec", "--background", sandbox_id, "sleep", "300")
    assert done.returncode == 0 and done.stderr.strip().isdigit()


def test_a_sandbox_is_listed_described_and_killed(cli, server):
    done = cli.run("sandbox", "create", "--detach", "base")
    assert done.returncode == 0, done.stderr
    sandbox_id = re.search(r"\bi[a-z0-9]{15,}\b", done.stdout).group(0)
    assert sandbox_id in cli.run("sandbox", "list").stdout
    listed = json.loads(cli.run("sandbox", "list", "--format", "json").stdout)
    assert [s["state"] for s in listed if s["sandboxId"] == sandbox_id] == ["running"]
    assert f"Sandbox ID: {sandbox_id}" in cli.run("sandbox", "info", sandbox_id).stdout
    assert json.loads(cli.run("sandbox", "info", sandbox_id, "--format", "json").stdout)["sandboxId"] == sandbox_id
    assert "has been killed" in cli.run("sandbox", "kill", sandbox_id).stdout
    assert is_gone(server, sandbox_id)
    again = cli.run("sandbox", "kill", sandbox_id)
    assert "wasn't found" in again.stdout + again.stderr


def test_logs_are_followed_until_the_sandbox_ends_and_stay_readable(cli, create):
    sandbox = create()
    sandbox_id = sandbox.sandbox_id
    with cli.terminal("sandbox", "logs", "--follow", sandbox_id) as terminal:
        terminal.expect("Logs for sandbox")
        sandbox.commands.run("echo followed-$((40+2))")
        terminal.expect(r"INFO .*command: .*followed-\$\(\(40\+2\)\).*process started", within=30)
        assert sandbox.kill()
        assert terminal.ended() == 0
    lines = cli.objects("sandbox", "logs", sandbox_id)
    assert [line["message"] for line in lines][-1] == "sandbox ended: request"
    assert any("followed-" in line.get("command", "") for line in lines)
    assert cli.objects("sandbox", "logs", "--level", "ERROR", sandbox_id) == []
    own = cli.objects("sandbox", "logs", "--loggers", "process", sandbox_id)
    assert own and {line["logger"] for line in own} == {"process"}


def test_metrics_are_followed_and_stay_readable(cli, create):
    sandbox = create()
    with cli.terminal("sandbox", "metrics", "--follow", sandbox.sandbox_id) as terminal:
        times = [terminal.expect(FIGURES, within=30).group(1) for _ in range(3)]
        assert times == sorted(set(times)), "each sample comes once"
        terminal.type("\x03")
        assert terminal.ended() == -signal.SIGINT
    assert sandbox.kill()
    samples = cli.objects("sandbox", "metrics", sandbox.sandbox_id)
    assert len(samples) >= 3 and all(s["memTotal"] == 512 << 20 and s["cpuCount"] == 2 for s in samples)
