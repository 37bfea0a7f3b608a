"""Commands and terminals."""

import re
import threading
import time
import uuid

import pytest
from e2b import CommandExitException, PtySize, TimeoutException

from support.host import processes_with, sleeper
from support.wait import seconds, wait_for


def test_output_and_exit_code(shared):
    result = shared.commands.run("echo out; echo err >&2")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 0)


def test_a_failed_command_raises_with_what_it_printed(shared):
    with pytest.raises(CommandExitException) as caught:
        shared.commands.run("echo partial; echo why >&2; exit 7")
    assert (caught.value.exit_code, caught.value.stdout, caught.value.stderr) == (7, "partial\n", "why\n")


def test_unicode_and_quotes_arrive_as_they_are(shared):
    text = "ünïcödé 🐇 \"double\" 'single' $HOME \\n"
    result = shared.commands.run(f"cat <<'END'\n{text}\nEND")
    assert result.stdout == text + "\n"


def test_where_and_who(shared):
    assert shared.commands.run("pwd; whoami; echo $HOME").stdout == "/home/user\nuser\n/home/user\n"
    assert shared.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    assert shared.commands.run("whoami; echo $HOME", user="root").stdout == "root\n/root\n"
    assert shared.commands.run("sudo whoami").stdout == "root\n"


def test_a_user_has_all_its_groups_a_language_and_no_limit_of_file_sizes(shared):
    name = f"g{uuid.uuid4().hex[:8]}"
    shared.commands.run(f"groupadd {name} && usermod -aG {name} user", user="root")
    assert name in shared.commands.run("id -Gn").stdout.split()
    assert shared.commands.run("ulimit -Sf; ulimit -Hf").stdout == "unlimited\nunlimited\n"
    spoken = shared.commands.run("printf '\\303\\244\\n' | wc -m", envs={"LC_ALL": "C.UTF-8"}).stdout
    assert spoken.strip() == "2"


def test_a_folder_that_is_closed_to_the_user_is_an_error(shared):
    shared.commands.run("install -d -m 700 /srv/closed", user="root")
    with pytest.raises(Exception, match="permission denied"):
        shared.commands.run("true", cwd="/srv/closed")
    assert shared.commands.run("pwd", cwd="/srv/closed", user="root").stdout == "/srv/closed\n"


def test_a_killed_command_leaves_its_children_and_a_killed_sandbox_nothing(create):
    sandbox = create()
    marker = f"child-{uuid.uuid4().hex}"
    command = sandbox.commands.run(f"({sleeper(marker)}) & wait", background=True)
    wait_for("the child", lambda: processes_with(marker))
    assert command.kill()
    # Only the process itself is signalled, as on E2B.
    assert all(process.pid != command.pid for process in sandbox.commands.list())
    assert sandbox.commands.run("echo fine").stdout == "fine\n"
    assert processes_with(marker)
    sandbox.kill()
    wait_for("everything to be gone", lambda: not processes_with(marker))


def test_a_missing_folder_or_user_is_an_error(shared):
    with pytest.raises(Exception, match="/no/such/folder"):
        shared.commands.run("true", cwd="/no/such/folder")
    with pytest.raises(Exception, match="(?i)nobodyhere"):
        shared.commands.run("true", user="nobodyhere")


def test_environment_of_sandbox_and_command(create):
    sandbox = create(envs={"A": "sandbox", "B": "sandbox"})
    assert sandbox.commands.run("echo $A $B", envs={"B": "command"}).stdout == "sandbox command\n"
    assert sandbox.commands.run("echo $A $B").stdout == "sandbox sandbox\n"
    names = sandbox.commands.run("env | cut -d= -f1", user="root").stdout.split()
    assert not [name for name in names if name.startswith("HUTCH")], names


def test_output_is_streamed_while_it_is_made(shared):
    seen = []
    shared.commands.run(
        "for i in 1 2 3; do echo $i; sleep 0.4; done", on_stdout=lambda text: seen.append((time.monotonic(), text))
    )
    assert "".join(text for _, text in seen) == "1\n2\n3\n"
    assert seen[-1][0] - seen[0][0] > 0.5, "it came in one piece"


def test_a_command_that_takes_too_long_is_ended(shared):
    marker = uuid.uuid4().hex
    handle = shared.commands.run(sleeper(marker), background=True, timeout=1.5)
    wait_for("its process", lambda: processes_with(marker), every=0.02)
    assert seconds(lambda: pytest.raises(TimeoutException, handle.wait)) < 8
    wait_for("its process to go", lambda: not processes_with(marker), within=10)


def test_commands_start_with_ordinary_signals(shared):
    status = shared.commands.run("grep -E 'SigBlk|SigIgn' /proc/self/status").stdout.split()
    assert int(status[1], 16) == 0, "no signal is blocked"
    # The ones that a program can know; beyond them are the C library's own.
    assert int(status[3], 16) & (1 << 31) - 1 == 0, "no signal is ignored"
    assert shared.commands.run("timeout 0.2 sleep 60; echo $?").stdout == "124\n"


def test_a_command_in_the_background_is_listed_followed_and_killed(shared):
    marker = uuid.uuid4().hex
    handle = shared.commands.run(f"echo up; {sleeper(marker)}", background=True)
    listed = {process.pid: process for process in shared.commands.list()}
    assert marker in " ".join(listed[handle.pid].args)
    assert shared.commands.kill(handle.pid)
    with pytest.raises(CommandExitException):
        handle.wait()
    assert handle.pid not in {process.pid for process in shared.commands.list()}
    assert not shared.commands.kill(handle.pid)


def test_a_command_survives_its_client(shared):
    name = f"/tmp/{uuid.uuid4().hex}"
    handle = shared.commands.run(f"sleep 1; echo done > {name}", background=True)
    handle.disconnect()
    wait_for("the file", lambda: shared.files.exists(name), within=15)


def test_connect_follows_a_running_command(shared):
    gate = f"/tmp/{uuid.uuid4().hex}"
    started = shared.commands.run(f"until [ -e {gate} ]; do sleep 0.05; done; echo late; exit 3", background=True)
    again = shared.commands.connect(started.pid)
    shared.files.write(gate, "")
    with pytest.raises(CommandExitException) as caught:
        again.wait()
    assert (caught.value.stdout, caught.value.exit_code) == ("late\n", 3)


def test_input_reaches_the_command(shared):
    handle = shared.commands.run("read line; echo got:$line; cat", background=True, stdin=True)
    shared.commands.send_stdin(handle.pid, "first\n")
    shared.commands.send_stdin(handle.pid, "rest")
    shared.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "got:first\nrest"


def test_without_input_a_command_reads_nothing(shared):
    assert shared.commands.run("cat; echo end").stdout == "end\n"


def test_many_commands_at_a_time(shared):
    results = {}

    def run(number):
        results[number] = shared.commands.run(f"sleep 0.2; echo {number}").stdout

    threads = [threading.Thread(target=run, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {n: f"{n}\n" for n in range(12)}


def test_five_megabytes_of_output_arrive_unharmed(shared):
    result = shared.commands.run("seq 1 700000 | tee /tmp/seq | md5sum >&2; cat /tmp/seq")
    assert len(result.stdout.splitlines()) == 700_000
    assert result.stdout.endswith("\n699999\n700000\n")


class Screen:
    """What a terminal showed, read by a thread of its own."""

    def __init__(self, handle):
        self.text = ""
        self.handle = handle
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        self.exit = None
        try:
            result = self.handle.wait(on_pty=self._show)
            self.exit = result.exit_code
        except CommandExitException as ended:
            self.exit = ended.exit_code

    def _show(self, data: bytes):
        self.text += data.decode(errors="replace")

    def wait_for(self, pattern: str):
        return wait_for(f"{pattern!r} on {self.text!r}", lambda: re.search(pattern, self.text))


def test_a_terminal_takes_input_resizes_and_ends(shared):
    handle = shared.pty.create(size=PtySize(rows=30, cols=90), envs={"MARK": "pty"}, cwd="/tmp")
    screen = Screen(handle)
    shared.pty.send_stdin(handle.pid, b"stty size; echo mark=$MARK term=$TERM in=$PWD\n")
    screen.wait_for(r"30 90[\s\S]*mark=pty term=xterm-256color in=/tmp")
    shared.pty.resize(handle.pid, PtySize(rows=50, cols=120))
    shared.pty.send_stdin(handle.pid, b"stty size\n")
    screen.wait_for(r"50 120")
    shared.pty.send_stdin(handle.pid, b"exit 4\n")
    screen.thread.join(timeout=15)
    assert screen.exit == 4


def test_a_terminal_passes_control_characters_on(shared):
    handle = shared.pty.create(size=PtySize(rows=24, cols=80))
    screen = Screen(handle)
    shared.pty.send_stdin(handle.pid, b"sleep 500; echo not-$((1+1))-reached\n")
    screen.wait_for("sleep 500")
    wait_for("the command", lambda: "sleep" in shared.commands.run("ps -e -o comm").stdout)
    shared.pty.send_stdin(handle.pid, b"\x03")
    shared.pty.send_stdin(handle.pid, b"echo after-$((40+2))\n")
    screen.wait_for("after-42")
    assert "not-2-reached" not in screen.text
    assert shared.pty.kill(handle.pid)
    screen.thread.join(timeout=15)
    assert not screen.thread.is_alive()
