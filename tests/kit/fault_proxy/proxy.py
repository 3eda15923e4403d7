"""A proxy that injects faults in front of an S3 server (loopback, plain HTTP, path-style).

    with FaultProxy("http://127.0.0.1:5602") as proxy:
        lost = proxy.inject(lose_reply(), "PutObject", key=r"/c\\.", calls={2})
        ...  # a client at proxy.endpoint
        assert lost.hits == 1
        assert proxy.count("PutObject") == 3

Requests are forwarded unchanged, with their Host header, because it is signed. A request that a
fault changed is signed again if the proxy has credentials. Bodies are held in memory. The faults
are in `tests.kit.fault_proxy.faults`.
"""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Container
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

from tests.kit.fault_proxy.http import (
    NOTHING,
    Credentials,
    Fault,
    Forward,
    Headers,
    Reply,
    Request,
    sign_again,
)

UPSTREAM_TIMEOUT_S = 120.0
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "expect", "transfer-encoding"})
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request that passed through the proxy. `applied` is the server's last HTTP status, or None
    if the request never reached the server. `answered` is the HTTP status sent to the client, or
    None."""

    operation: str
    key: str
    applied: int | None
    answered: int | None
    sent_bytes: int


class Rule:
    """A fault and the requests that it affects. `matched` counts matching requests, `hits` those to
    which the fault was applied."""

    def __init__(
        self, fault: Fault, operations: tuple[str, ...], key: str, calls: Container[int] | None
    ) -> None:
        self.fault = fault
        self.matched = 0
        self.hits = 0
        self._operations = operations
        self._key = re.compile(key)
        self._calls = calls

    def strikes(self, request: Request) -> bool:
        if self._operations and request.operation not in self._operations:
            return False
        if not self._key.search(request.key):
            return False
        self.matched += 1
        if self._calls is not None and self.matched not in self._calls:
            return False
        self.hits += 1
        return True


class FaultProxy:
    """A proxy that listens on its own loopback port from construction to `close`."""

    def __init__(self, server: str, credentials: Credentials | None = None) -> None:
        """Start the proxy. `server` is the endpoint behind it, `http://host:port`."""
        parts = urlsplit(server)
        if parts.scheme != "http" or not parts.hostname or not parts.port:
            raise ValueError(f"expected http://host:port, found {server!r}")
        self.address = (parts.hostname, parts.port)
        self._credentials = credentials
        self._lock = threading.Lock()
        self._rules: list[Rule] = []
        self._seen: list[Exchange] = []
        self._failures: list[BaseException] = []
        self._listener = _Listener(self)
        self._thread = threading.Thread(
            target=self._listener.serve_forever, args=(0.02,), name="fault-proxy", daemon=True
        )
        self._thread.start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.server_address[1]}"

    @property
    def seen(self) -> list[Exchange]:
        """Requests and replies since the start, in the order of the replies."""
        with self._lock:
            return list(self._seen)

    def inject(
        self, fault: Fault, *operations: str, key: str = "", calls: Container[int] | None = None
    ) -> Rule:
        """Inject a fault into requests of the given S3 operations (default: all) whose key matches
        the regular expression `key`. `calls` lists the numbers of the affected requests, from 1, or
        is None for all. If several rules match, the first is the outermost."""
        rule = Rule(fault, operations, key, calls)
        with self._lock:
            self._rules.append(rule)
        return rule

    def heal(self) -> None:
        """Remove all rules."""
        with self._lock:
            self._rules.clear()

    def forget(self) -> None:
        """Forget the requests seen so far."""
        with self._lock:
            self._seen.clear()

    def count(self, *operations: str, key: str = "") -> int:
        """Return the number of seen requests of these operations. The parameters are the same as
        for `inject`."""
        return sum(
            (not operations or exchange.operation in operations)
            and re.search(key, exchange.key) is not None
            for exchange in self.seen
        )

    def close(self) -> None:
        """Close all connections. Raises the error of a fault that failed."""
        self._listener.shutdown()
        self._listener.end_connections()
        self._listener.server_close()
        self._thread.join()
        if self._failures:
            raise self._failures[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def handle(self, request: Request, upstream: _Upstream) -> Reply:
        """Return the reply to a request, after all faults that affect it."""
        with self._lock:
            faults = [rule.fault for rule in self._rules if rule.strikes(request)]
        applied: list[int] = []

        def to_server(changed: Request) -> Reply:
            if changed is not request and self._credentials:
                changed = sign_again(changed, self._credentials)
            reply = upstream.send(changed)
            applied.append(reply.status)
            return reply

        forward: Forward = to_server
        for fault in reversed(faults):
            forward = _through(fault, forward)
        reply = forward(request)
        answered = None if reply.cut_at == NOTHING else reply.status
        exchange = Exchange(
            request.operation, request.key, applied[-1] if applied else None, answered,
            len(request.body),
        )  # fmt: skip
        with self._lock:
            self._seen.append(exchange)
        return reply

    def note_failure(self, error: BaseException) -> None:
        with self._lock:
            self._failures.append(error)


def _through(fault: Fault, forward: Forward) -> Forward:
    return lambda request: fault(request, forward)


class _Upstream:
    """Connection to the server on behalf of one client connection."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=UPSTREAM_TIMEOUT_S)
        self._used = False

    def send(self, request: Request) -> Reply:
        try:
            return self._send(request)
        except (ConnectionError, http.client.RemoteDisconnected):
            self.close()
            if not self._used:
                raise
            # the server ended a connection that had been idle
            self._used = False
            return self._send(request)

    def close(self) -> None:
        self._connection.close()

    def _send(self, request: Request) -> Reply:
        self._connection.putrequest(
            request.method, request.target, skip_host=True, skip_accept_encoding=True
        )
        for name, value in request.headers:
            if name.lower() not in {*_HOP_BY_HOP, "content-length"}:
                self._connection.putheader(name, value.encode("latin-1"))
        if request.body or request.method in {"PUT", "POST"}:
            self._connection.putheader("Content-Length", str(len(request.body)))
        self._connection.endheaders(request.body or None)
        with self._connection.getresponse() as found:
            body = found.read()
            headers: Headers = tuple(
                (name, value)
                for name, value in found.getheaders()
                if name.lower() not in _HOP_BY_HOP
            )
            reply = Reply(found.status, headers, body, found.reason)
        self._used = not found.will_close
        if body and reply.header("Content-Length") is None:
            reply = reply.with_body(body)
        return reply


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.to_reset: set[socket.socket] = set()
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        if request in self.to_reset:
            self.to_reset.discard(request)
            request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            request.close()  # an orderly end first would be seen instead of the reset
        else:
            super().shutdown_request(request)

    def end_connections(self) -> None:
        for connection in list(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: the handler reports its own errors."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self._upstream = _Upstream(self.server.proxy.address)

    def finish(self) -> None:
        self._upstream.close()
        with suppress(OSError):
            super().finish()

    def handle(self) -> None:
        with suppress(ConnectionError, TimeoutError):
            super().handle()

    def _pass(self) -> None:
        headers = tuple(self.headers.items())
        body = self._body()
        if body is None:
            self.close_connection = True  # the client went away within its request
            return
        request = Request(self.command, self.path, headers, body)
        try:
            reply = self.server.proxy.handle(request, self._upstream)
        except (OSError, http.client.HTTPException):
            reply = Reply(0, cut_at=NOTHING)  # the server is gone: the client sees just that
        except Exception as error:
            self.server.proxy.note_failure(error)
            reply = Reply(0, cut_at=NOTHING)
        self._answer(reply)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do_OPTIONS = _pass

    def _body(self) -> bytes | None:
        if "chunked" in (self.headers.get("Transfer-Encoding") or "").lower():
            return self._read_chunked_body()
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length)
        return body if len(body) == length else None

    def _read_chunked_body(self) -> bytes | None:
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0] or b"0", 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass  # trailers
        return b"".join(pieces)

    def _answer(self, reply: Reply) -> None:
        if reply.reset:
            self.server.to_reset.add(self.connection)
        if reply.cut_at is not None:
            self.close_connection = True
        if reply.cut_at == NOTHING:
            return
        reason = reply.reason or http.client.responses.get(reply.status, "")
        lines = [f"HTTP/1.1 {reply.status} {reason}"]
        lines += [f"{name}: {value}" for name, value in reply.headers]
        if reply.header("Content-Length") is None and reply.status != 204:
            lines.append("Content-Length: 0")
        head = ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
        self.wfile.write(head + reply.body[: reply.cut_at])

    def log_message(self, format: str, *args: object) -> None:
        """Do nothing, because `FaultProxy.seen` records all requests."""
