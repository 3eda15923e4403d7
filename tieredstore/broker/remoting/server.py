"""RemotingServer: accepts connections, and closes those that are idle."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress

from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.limits import BufferedBytes, CloseListener, RemotingLimits

_STOP_TIMEOUT_S = 3.0


class RemotingServer:
    """Serves one port by one table of handlers. Its sockets are bound by the caller, so that
    nobody is answered before everything behind them is ready."""

    def __init__(self, table: HandlerTable, limits: RemotingLimits | None = None) -> None:
        self.table = table
        self.limits = limits or RemotingLimits()
        self.connections: set[Connection] = set()
        self._buffered = BufferedBytes(self.limits.max_buffered_bytes)
        self._close_listeners: list[CloseListener] = [self._forget]
        self._all_ended = asyncio.Event()
        self._server: asyncio.Server | None = None
        self._sweep: asyncio.TimerHandle | None = None

    def add_close_listener(self, listener: CloseListener) -> None:
        """Have a function called with each connection that has ended."""
        self._close_listeners.append(listener)

    async def start(self, listening: socket.socket) -> None:
        """Begin to accept on a bound socket."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._open, sock=listening, backlog=1024)
        self._plan_sweep()

    def _open(self) -> Connection:
        connection = Connection(self.table, self.limits, self._buffered, self._close_listeners)
        self.connections.add(connection)
        return connection

    def _forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections:
            self._all_ended.set()

    @property
    def buffered_bytes(self) -> int:
        """Bytes of unfinished frames and of responses that peers do not take."""
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
        server, self._server = self._server, None
        if server is None:
            return
        server.close()
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
