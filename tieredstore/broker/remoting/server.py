"""RemotingServer: accepts connections, and closes those that are idle."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress

from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.limits import BufferedBytes, CloseListener, RemotingLimits
from tieredstore.broker.remoting.listener import Listener
from tieredstore.broker.tls import TlsMode

_STOP_TIMEOUT_S = 3.0


class RemotingServer:
    """Serves one port by one table of handlers. Its socket is bound by the caller, so that nobody
    is answered before everything behind it is ready. tls: for clients that begin with it, as
    `tls_mode` allows."""

    def __init__(
        self,
        table: HandlerTable,
        limits: RemotingLimits | None = None,
        tls: ssl.SSLContext | None = None,
        tls_mode: TlsMode = TlsMode.PERMISSIVE,
    ) -> None:
        self.table = table
        self.limits = limits or RemotingLimits()
        self.connections: set[Connection] = set()
        self._buffered = BufferedBytes(self.limits.max_buffered_bytes)
        self._close_listeners: list[CloseListener] = [self._forget]
        self._all_ended = asyncio.Event()
        self._listener = Listener(
            self._open, self.limits.idle_timeout_ms / 1000, tls=tls, mode=tls_mode
        )
        self._is_running = False
        self._sweep: asyncio.TimerHandle | None = None

    def add_close_listener(self, listener: CloseListener) -> None:
        """Have a function called with each connection that has ended."""
        self._close_listeners.append(listener)

    async def start(self, listening: socket.socket) -> None:
        """Begin to accept on a bound socket."""
        self._listener.start(listening)
        self._is_running = True
        self._plan_sweep()

    def _open(self) -> Connection:
        return Connection(
            self.table,
            self.limits,
            self._buffered,
            self._close_listeners,
            self.connections.add,  # a TLS handshake that fails opens none
        )

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_ended.set()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of unfinished frames, of requests that wait, and of responses that peers do not
        take."""
        return self._buffered.total_bytes

    def _plan_sweep(self) -> None:
        delay_s = self.limits.idle_timeout_ms / 1000 / 8
        self._sweep = asyncio.get_running_loop().call_later(delay_s, self._close_idle)

    def _close_idle(self) -> None:
        limit_s = asyncio.get_running_loop().time() - self.limits.idle_timeout_ms / 1000
        for connection in list(self.connections):
            if connection.last_frame_s < limit_s:
                connection.abort(f"no whole frame came for {self.limits.idle_timeout_ms} ms")
        self._plan_sweep()

    async def stop(self) -> None:
        """Accept nobody any more and end every connection. Idempotent."""
        if not self._is_running:
            return
        self._is_running = False
        await self._listener.stop()
        if self._sweep is not None:
            self._sweep.cancel()
        self._all_ended.clear()
        for connection in list(self.connections):
            connection.close()
        if not self.connections:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(_STOP_TIMEOUT_S):
                await self._all_ended.wait()
        for connection in list(self.connections):
            connection.abort("the server stops")
