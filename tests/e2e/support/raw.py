"""HTTP over plain sockets, where a client library would hide what matters."""

import base64
import hashlib
import http.client
import os
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass

from support.server import Server

BROWSER = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"


@dataclass
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def open_socket(server: Server, timeout: float = 20) -> socket.socket:
    return socket.create_connection(server.address, timeout=timeout)


def head(method: str, path: str, host: str, headers: dict[str, str] | None = None) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def read_reply(stream: socket.socket, method: str = "GET") -> Reply:
    response = http.client.HTTPResponse(stream, method=method)
    response.begin()
    return Reply(response.status, response.headers, response.read())


def exchange(
    server: Server, method: str, path: str, host: str, headers: dict[str, str] | None = None, body: bytes = b""
) -> Reply:
    """One request on a connection of its own. `path` and `host` go out as they are."""
    fields = {"Connection": "close", **(headers or {})}
    if body or method in ("POST", "PUT"):
        fields["Content-Length"] = str(len(body))
    with open_socket(server) as stream:
        stream.sendall(head(method, path, host, fields) + body)
        return read_reply(stream, method)


class WebSocket:
    """A client's end of a WebSocket."""

    GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    TEXT, BINARY, CLOSE = 1, 2, 8

    def __init__(self, server: Server, host: str, path: str, headers: dict[str, str] | None = None):
        key = base64.b64encode(os.urandom(16)).decode()
        self.stream = open_socket(server)
        fields = {
            "Connection": "Upgrade",
            "Upgrade": "websocket",
            "Sec-WebSocket-Version": "13",
            "Sec-WebSocket-Key": key,
            **(headers or {}),
        }
        self.stream.sendall(head("GET", path, host, fields))
        self.file = self.stream.makefile("rb")
        status = self.file.readline().split()
        assert status[1] == b"101", status
        answer = http.client.parse_headers(self.file)
        expected = base64.b64encode(hashlib.sha1((key + self.GUID).encode()).digest()).decode()
        assert answer["Sec-WebSocket-Accept"] == expected

    def send(self, payload: bytes, opcode: int = BINARY) -> None:
        mask = os.urandom(4)
        size = len(payload)
        if size < 126:
            header = struct.pack("!BB", 0x80 | opcode, 0x80 | size)
        elif size < 1 << 16:
            header = struct.pack("!BBH", 0x80 | opcode, 0x80 | 126, size)
        else:
            header = struct.pack("!BBQ", 0x80 | opcode, 0x80 | 127, size)
        keys = (mask * (size // 4 + 1))[:size]
        masked = (int.from_bytes(payload, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")
        self.stream.sendall(header + mask + masked)

    def receive(self) -> tuple[int, bytes]:
        first, size = struct.unpack("!BB", self.file.read(2))
        if size == 126:
            (size,) = struct.unpack("!H", self.file.read(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", self.file.read(8))
        return first & 0x0F, self.file.read(size)

    def close(self) -> None:
        self.file.close()
        self.stream.close()


def connect_frames(stream: socket.socket) -> Iterator[tuple[int, bytes]]:
    """The frames of a Connect stream whose response head was not read yet."""
    response = http.client.HTTPResponse(stream)
    response.begin()
    assert response.status == 200, response.read()
    while True:
        prefix = response.read(5)
        if len(prefix) < 5:
            return
        flags, size = struct.unpack("!BI", prefix)
        yield flags, response.read(size)
        if flags & 2:
            return
