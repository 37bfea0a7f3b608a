"""Runs inside sandboxes: python3 inside_server.py ADDRESS PORT. An HTTP server that shows what reached it."""

import base64
import hashlib
import json
import socket
import struct
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, content_type="application/json"):
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/ws":
            return self.websocket()
        if self.path == "/raw":
            return self.raw()
        if self.path == "/events":
            return self.events()
        if self.path.startswith("/bytes/"):
            return self.answer(b"x" * int(self.path.rsplit("/", 1)[1]), "application/octet-stream")
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = {"method": self.command, "path": self.path, "headers": headers, "bound": self.server.server_address[0]}
        return self.answer(json.dumps(seen).encode())

    do_DELETE = do_GET

    def do_POST(self):
        digest, size = hashlib.sha256(), 0
        for piece in self.body():
            digest.update(piece)
            size += len(piece)
        self.answer(json.dumps({"size": size, "sha256": digest.hexdigest()}).encode())

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            left = int(self.headers.get("Content-Length", 0))
            while left:
                piece = self.rfile.read(min(left, 1 << 16))
                left -= len(piece)
                yield piece
            return
        while True:
            size = int(self.rfile.readline().split(b";")[0], 16)
            piece = self.rfile.read(size)
            self.rfile.readline()
            if not size:
                return
            yield piece

    def events(self):
        """Three server-sent events, 0.3 s apart; each carries the time at which it was sent."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in range(3):
            self.wfile.write(f"data: {number} {time.time()}\n\n".encode())
            self.wfile.flush()
            time.sleep(0.3)
        self.close_connection = True

    def raw(self):
        """After the upgrade: everything until the client shuts its sending side, then an answer to all of it."""
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "raw")
        self.end_headers()
        self.close_connection = True
        self.wfile.write(hashlib.sha256(self.rfile.read()).hexdigest().encode())

    def websocket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.close_connection = True
        while True:
            start = self.rfile.read(2)
            if len(start) < 2:
                return
            opcode, size = start[0] & 15, start[1] & 127
            if size == 126:
                (size,) = struct.unpack("!H", self.rfile.read(2))
            elif size == 127:
                (size,) = struct.unpack("!Q", self.rfile.read(8))
            mask = self.rfile.read(4)
            masked = self.rfile.read(size)
            keys = (mask * (size // 4 + 1))[:size]
            payload = (int.from_bytes(masked, "big") ^ int.from_bytes(keys, "big")).to_bytes(size, "big")
            if size < 126:
                header = struct.pack("!BB", 0x80 | opcode, size)
            elif size < 1 << 16:
                header = struct.pack("!BBH", 0x80 | opcode, 126, size)
            else:
                header = struct.pack("!BBQ", 0x80 | opcode, 127, size)
            self.wfile.write(header + payload)
            self.wfile.flush()
            if opcode == 8:
                return


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self):
        if self.address_family == socket.AF_INET6:
            # [::] alone: the IPv4 addresses have servers of their own.
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = self.server_address[0], self.server_address[1]


if __name__ == "__main__":
    address, port = sys.argv[1], int(sys.argv[2])
    Server.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
    Server((address, port), Handler).serve_forever()
