"""A proxy that delays the last bytes of requests, like a busy machine, and records their heads."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Self
from urllib.parse import urlsplit

_LATE_BYTES = 5
"""Size of the last chunk of a chunked body, bytes."""
_HEAD = re.compile(rb"(?:GET|PUT|POST|HEAD|DELETE) \S+ HTTP/1\.1\r\n.*?\r\n\r\n", re.DOTALL)


class LateEnds:
    """A proxy in front of the server at `endpoint`, as a context manager. `heads` has the request
    line and headers of each request."""

    def __init__(self, endpoint: str, delay_s: float = 0.03) -> None:
        parts = urlsplit(endpoint)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = parts.hostname, parts.port
        self._ends: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._delay_s = delay_s
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.heads: list[bytes] = []

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for end in (self._listener, *self._ends):
            end.close()

    def _start(self, work: Callable[..., None], *args: socket.socket) -> None:
        thread = threading.Thread(target=work, args=args)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._server)
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    self._ends.append(end)
                self._start(self._pass_up, client, server)
                self._start(_pass_on, server, client)

    def _pass_up(self, client: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := client.recv(1 << 16):
                self.heads += _HEAD.findall(data)
                if data.endswith(b"\r\n0\r\n\r\n"):
                    server.sendall(data[:-_LATE_BYTES])
                    time.sleep(self._delay_s)
                    data = data[-_LATE_BYTES:]
                server.sendall(data)
        with suppress(OSError):
            server.shutdown(socket.SHUT_WR)


def _pass_on(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)
