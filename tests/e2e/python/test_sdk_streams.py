"""Many streams, much output, slow readers: none is another's concern."""

import re
import threading
from base64 import b64decode

from e2b.sandbox.commands.command_handle import PtySize
from support import envd
from support.wait import seconds

OUTPUT = 100_000_000
TERMINALS = 24


def peak_memory_mib(sandbox) -> float:
    """The most that envd has used so far."""
    status = sandbox.commands.run("cat /proc/$(pgrep -o -x envd)/status", user="root").stdout
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 1024


def test_a_hundred_megabytes_of_output_take_seconds_and_constant_memory(create):
    sandbox = create(timeout=300)
    before = peak_memory_mib(sandbox)
    result = []
    script = f"head -c {OUTPUT} /dev/zero | tr '\\0' x"
    took = seconds(lambda: result.append(sandbox.commands.run(script, timeout=120)))
    assert len(result[0].stdout) == OUTPUT
    assert result[0].stdout.count("x") == OUTPUT
    assert took < 60
    assert peak_memory_mib(sandbox) < before + 16


def test_a_client_that_does_not_read_stalls_no_other_stream(create, server):
    sandbox = create(timeout=120)
    size = 20_000_000
    script = f"head -c {size} /dev/zero | tr '\\0' x"
    idle = [envd.start(server, sandbox.sandbox_id, sandbox._envd_access_token, script) for _ in range(4)]
    try:
        ticks = []
        live = sandbox.commands.run("for i in $(seq 20); do echo $i; sleep 0.1; done", on_stdout=ticks.append)
        assert live.exit_code == 0
        assert "".join(ticks).split() == [str(n) for n in range(1, 21)]
        assert max(seconds(lambda: sandbox.commands.run("true")) for _ in range(5)) < 5
        # What nobody read has waited for its reader.
        for stream in idle:
            seen = list(envd.events(stream))
            assert sum(len(b64decode(e.get("data", {}).get("stdout", ""))) for e in seen) == size
            assert seen[-2]["end"].get("exitCode", 0) == 0
    finally:
        for stream in idle:
            stream.close()


def test_many_terminals_at_a_time_each_answer_and_end(create):
    sandbox = create(timeout=120)
    shown = {}

    def use(number: int) -> None:
        seen = []
        handle = sandbox.pty.create(size=PtySize(rows=24, cols=80))
        sandbox.pty.send_stdin(handle.pid, f"echo answer=$(({number} * 7)); exit\n".encode())
        result = handle.wait(on_pty=lambda data: seen.append(data))
        shown[number] = (result.exit_code, b"".join(seen).decode(errors="replace"))

    threads = [threading.Thread(target=use, args=(n,)) for n in range(TERMINALS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert len(shown) == TERMINALS
    for number, (code, text) in shown.items():
        assert code == 0
        assert f"answer={number * 7}\r\n" in text
    left = sandbox.commands.run("ls /dev/pts | grep -c '^[0-9]' || true", user="root").stdout
    assert left.strip() == "0"
