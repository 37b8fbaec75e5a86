"""An S3 store with faults: a proxy on loopback before a real server, which counts, delays, refuses or spoils requests."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

_HOP = ("connection", "transfer-encoding", "keep-alive", "content-length")


@dataclass(kw_only=True)
class Faults:
    """What the proxy does to requests; changed by a test while it runs."""

    refused: float = 0.0  # share of requests that are answered by one of `codes`
    codes: tuple[int, ...] = (500, 503)
    named: str | None = None  # the code in the body of a refusal; empty: no body
    without: str = ""  # only requests whose signature does not hold this key are refused
    only: str = ""  # faults only for paths that contain this
    delay_s: float = 0.0
    framing: bool = False  # objects are stored with the framing of chunked uploads
    loses: float = 0.0  # share of objects that are taken, answered with success, and not kept
    flips: float = 0.0  # share of objects that are stored with one wrong bit
    seen: Counter[str] = field(default_factory=Counter)
    address: str = ""
    before: Callable[[str, str], object] = lambda method, path: None  # called with each request, which waits for it
    rng: random.Random = field(default_factory=lambda: random.Random(5))
    pause: threading.Event = field(default_factory=threading.Event)  # never set: `wait` is a delay

    def kind(self, method: str, path: str) -> str:
        """A request in words: `PUT part`, `POST uploads`."""
        name, _, query = path.partition("?")
        what = "uploads" if "upload" in query else "part" if "/part-" in name else "other"
        return f"{method} {what}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    faults: Faults
    behind: tuple[str, int]

    def _body(self) -> bytes:
        if "chunked" in self.headers.get("Transfer-Encoding", ""):
            data = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return data
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _answer(self, code: int, body: bytes, headers: list[tuple[str, str]]) -> None:
        self.send_response(code)
        for name, value in headers:
            if name.lower() not in _HOP:
                self.send_header(name, value)
        size = next((value for name, value in headers if name.lower() == "content-length"), "0")
        self.send_header("Content-Length", size if self.command == "HEAD" else str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def handle_any(self) -> None:
        faults, body = self.faults, self._body()
        faults.seen[faults.kind(self.command, self.path)] += 1
        faults.before(self.command, self.path)
        if faults.delay_s:
            faults.pause.wait(faults.delay_s)
        mine = faults.only in self.path
        known = faults.without and faults.without in self.headers.get("Authorization", "")
        if mine and not known and faults.rng.random() < faults.refused:
            code = faults.rng.choice(faults.codes)
            name = {403: "AccessDenied", 404: "NoSuchBucket", 503: "SlowDown"}.get(code, "InternalError")
            name = name if faults.named is None else faults.named
            text = f"<Error><Code>{name}</Code><Message>planted</Message></Error>".encode() if name else b""
            self._answer(code, text, [("Content-Type", "application/xml")])
            return
        headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP}
        if self.command == "PUT" and mine and faults.framing and body:
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\nx-amz-checksum-crc64nvme:AAAAAAAAAAA=\r\n\r\n"
            headers = {n: v for n, v in headers.items() if not n.lower().startswith(("x-amz-decoded", "content-encoding"))}
        if self.command == "PUT" and mine and body and faults.rng.random() < faults.flips:
            spoiled = bytearray(body)
            spoiled[faults.rng.randrange(len(body))] ^= 1 << faults.rng.randrange(8)
            body = bytes(spoiled)
        if self.command == "PUT" and mine and body and faults.rng.random() < faults.loses:
            self._answer(200, b"", [("ETag", f'"{md5(body, usedforsecurity=False).hexdigest()}"')])
            return
        upstream = HTTPConnection(*self.behind, timeout=60)
        try:
            upstream.request(self.command, self.path, body=body, headers=headers)
            answer = upstream.getresponse()
            self._answer(answer.status, answer.read(), answer.getheaders())
        finally:
            upstream.close()

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def log_message(self, *arguments: Any) -> None:
        return


@contextmanager
def faulty(server: str) -> Iterator[Faults]:
    """A proxy before the server at HOST:PORT; `address` is its own."""
    host, _, port = server.rpartition(":")
    faults = Faults()
    handler = type("Handler", (_Handler,), {"faults": faults, "behind": (host, int(port))})
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    proxy.daemon_threads = True
    faults.address = f"127.0.0.1:{proxy.server_address[1]}"
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    try:
        yield faults
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
