"""The sockets of a boto3 client, so that requests under way can be ended: boto3 waits for an answer
as long as its time-outs say, and has no way to give up earlier."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Any
from weakref import WeakSet


class Connections:
    """All sockets that the clients given to `follow` have opened."""

    def __init__(self) -> None:
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()
        self._is_broken = False

    def follow(self, client: Any) -> None:
        """Note each connection that a client makes from now on. Where botocore is not as it is
        known, nothing is noted: requests under way then end by their time-outs."""
        with suppress(AttributeError):
            classes = client._endpoint.http_session._pool_classes_by_scheme  # noqa: SLF001
            for scheme, pool in list(classes.items()):
                classes[scheme] = self._noting(pool)

    def shut_down(self) -> None:
        """End what is sent or awaited, in whatever thread, with an error there; what is opened
        later, too. Idempotent."""
        with self._lock:
            self._is_broken = True
            found = list(self._sockets)
        for opened in found:
            _shut_down(opened)

    def _noting(self, pool: Any) -> Any:
        """The class of a pool whose connections tell of their sockets."""
        base, note = pool.ConnectionCls, self._note

        def connect(connection: Any) -> None:
            base.connect(connection)
            note(connection.sock)

        kind = type(base.__name__, (base,), {"connect": connect})
        return type(pool.__name__, (pool,), {"ConnectionCls": kind})

    def _note(self, opened: Any) -> None:
        if not isinstance(opened, socket.socket):
            return  # TLS to a proxy that speaks TLS
        with self._lock:
            self._sockets.add(opened)
            is_broken = self._is_broken
        if is_broken:
            _shut_down(opened)


def _shut_down(opened: socket.socket) -> None:
    """Of the connection below TLS, too, which another thread may be reading."""
    with suppress(OSError):
        socket.socket.shutdown(opened, socket.SHUT_RDWR)
