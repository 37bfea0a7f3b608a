"""What envd is asked without an SDK."""

import base64
import json
import socket
import struct

from support.raw import connect_frames, head, open_socket
from support.server import Server


def headers(sandbox_id: str, token: str) -> dict[str, str]:
    """What routes a request to envd and lets it in."""
    return {"E2b-Sandbox-Id": sandbox_id, "E2b-Sandbox-Port": "49983", "X-Access-Token": token}


def start(server: Server, sandbox_id: str, token: str, script: str, user: str = "user") -> socket.socket:
    """Starts a script and returns the connection on which its stream will come; see `raw.connect_frames`."""
    process = {"cmd": "/bin/bash", "args": ["-l", "-c", script]}
    return _open(server, sandbox_id, token, "Start", {"process": process, "stdin": False}, user)


def connect(server: Server, sandbox_id: str, token: str, pid: int) -> socket.socket:
    """Follows a running process."""
    return _open(server, sandbox_id, token, "Connect", {"process": {"pid": pid}}, "user")


def _open(server: Server, sandbox_id: str, token: str, method: str, request: dict, user: str) -> socket.socket:
    payload = json.dumps(request).encode()
    message = struct.pack("!BI", 0, len(payload)) + payload
    fields = {
        **headers(sandbox_id, token),
        "Content-Type": "application/connect+json",
        "Connect-Protocol-Version": "1",
        "Authorization": "Basic " + base64.b64encode(f"{user}:".encode()).decode(),
        "Content-Length": str(len(message)),
        "Connection": "close",
    }
    stream = open_socket(server, timeout=60)
    stream.sendall(head("POST", f"/process.Process/{method}", "localhost", fields) + message)
    return stream


def events(stream: socket.socket):
    """The events of a process stream, as dictionaries; the last one is the end frame's content under `last`."""
    for flags, payload in connect_frames(stream):
        message = json.loads(payload or b"{}")
        yield {"last": message} if flags & 2 else message["event"]
