"""An internet that fits on this machine: the few public hosts that tests talk to, in a network namespace of its own.

It is started inside its namespace, waits for the link to be moved there, gives the hosts' addresses to it, and serves:
HTTPS with a certificate of the lab's authority, and DNS for the host names. It answers what the real hosts answer to the
requests of the tests and nothing else. Prints `ready`, then runs until it is ended.
"""

import argparse
import http.server
import socket
import socketserver
import ssl
import struct
import subprocess
import threading
import time

# Address -> status of the answer to any request, and where it redirects to.
HOSTS = {
    "1.1.1.1": (301, "https://one.one.one.one/"),
    "8.8.8.8": (302, "https://dns.google/"),
    "142.250.0.204": (204, None),
}
# Name -> address.
NAMES = {
    "connectivitycheck.gstatic.com": "142.250.0.204",
    "one.one.one.one": "1.1.1.1",
    "dns.google": "8.8.8.8",
}
NAME_SERVER = "9.9.9.9"
NXDOMAIN, REFUSED = 3, 5


def subject_names() -> str:
    """What the hosts' certificate is for, as openssl wants it."""
    return ",".join([f"IP:{address}" for address in HOSTS] + [f"DNS:{name}" for name in NAMES])


class Answer(http.server.BaseHTTPRequestHandler):
    """Answers every request with the status of the address that it came to."""

    protocol_version = "HTTP/1.1"
    timeout = 30

    def answer(self) -> None:
        status, location = HOSTS[self.connection.getsockname()[0]]
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        if status != 204:
            self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD = do_POST = answer

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class Https(http.server.ThreadingHTTPServer):
    """A server whose handshakes happen in the connection's own thread, so that a silent client holds nobody up."""

    daemon_threads = True

    def __init__(self, address: str, context: ssl.SSLContext):
        self.context = context
        super().__init__((address, 443), Answer)

    def finish_request(self, request, client_address) -> None:
        request.settimeout(10)
        with self.context.wrap_socket(request, server_side=True) as encrypted:
            super().finish_request(encrypted, client_address)

    def handle_error(self, *_: object) -> None:
        """A client that goes away or does not trust us is no news."""


class Names(socketserver.BaseRequestHandler):
    """A name server for the hosts: their addresses, and that no other name exists."""

    def handle(self) -> None:
        query, sock = self.request
        answer = answer_to(query)
        if answer:
            sock.sendto(answer, self.client_address)


def answer_to(query: bytes) -> bytes | None:
    """The answer to a DNS query with one question; none to what is no query."""
    if len(query) < 17 or query[2] & 0x80:
        return None
    labels, at = [], 12
    while at < len(query) and query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace").lower())
        at += 1 + query[at]
    question = query[12 : at + 5]
    if len(question) < at - 7:
        return None
    kind = struct.unpack("!H", question[-4:-2])[0]
    address = NAMES.get(".".join(labels))
    records = b""
    if address and kind == 1:
        records = b"\xc0\x0c" + struct.pack("!HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    code = 0 if address else NXDOMAIN
    flags = 0x8180 | (query[2] & 1) << 8 | code
    return query[:2] + struct.pack("!HHHHH", flags, 1, 1 if records else 0, 0, 0) + question + records


def configure(link: str, own: str, gateway: str) -> None:
    """Waits for the link and gives it the addresses of the internet."""
    deadline = time.monotonic() + 30
    while link not in (name for _, name in socket.if_nameindex()):
        if time.monotonic() > deadline:
            raise SystemExit(f"the link {link} did not come within 30 s")
        time.sleep(0.02)
    for command in (
        ["link", "set", "lo", "up"],
        ["addr", "add", f"{own}/30", "dev", link],
        ["link", "set", link, "up"],
        *(["addr", "add", f"{address}/32", "dev", "lo"] for address in (*HOSTS, NAME_SERVER)),
        ["route", "add", "default", "via", gateway],
    ):
        subprocess.run(["ip", *command], check=True, timeout=30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for option in ("--link", "--own", "--gateway", "--certificate", "--key"):
        parser.add_argument(option, required=True)
    options = parser.parse_args()
    configure(options.link, options.own, options.gateway)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(options.certificate, options.key)
    servers: list[socketserver.BaseServer] = [Https(address, context) for address in HOSTS]
    servers.append(socketserver.ThreadingUDPServer((NAME_SERVER, 53), Names))
    for server in servers:
        threading.Thread(target=server.serve_forever, daemon=True).start()
    print("ready", flush=True)
    threading.Event().wait()


if __name__ == "__main__":
    main()
