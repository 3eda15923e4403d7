"""RemotingServer: accepts TLS and plain clients on a single port, and closes idle connections. A
TLS handshake starts with the byte 0x16, which is too large to be the first byte of a frame's
length. The server only peeks at this byte, so that the event loop's TLS can read it."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from tieredstore.broker.hosts import name_host
from tieredstore.broker.peer_warnings import PEERS
from tieredstore.broker.ports import CLIENTS, count_room
from tieredstore.broker.remoting.connection import (
    BufferedBytes,
    CloseListener,
    Connection,
    RemotingLimits,
)
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.tls import TlsMode

TLS_HANDSHAKE: Final = 0x16
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S: Final = 1.0
_BACKLOG: Final = 1024
_log = logging.getLogger(__name__)


class Listener:
    """Accepts connections on a bound socket. Creates a protocol for each client once it has sent a
    byte. `tls`: None to disable TLS. `silence_s`: time limit for the first byte of a client and for
    a TLS handshake, in seconds."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        silence_s: float,
        tls: ssl.SSLContext | None = None,
        mode: TlsMode = TlsMode.PERMISSIVE,
    ) -> None:
        self._make_protocol = make_protocol
        self._silence_s = silence_s
        self._tls = None if mode is TlsMode.DISABLED else tls
        self._serves_plain = mode is not TlsMode.ENFORCING
        self._silent: dict[socket.socket, asyncio.TimerHandle] = {}
        self._hosts: dict[socket.socket, str] = {}
        self._opening: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None

    def start(self, listening: socket.socket) -> None:
        """Start accepting. `stop` closes the socket."""
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._listening = listening
        self._accepting = asyncio.get_running_loop().create_task(self._accept_all(listening))

    async def stop(self) -> None:
        """Stop accepting, and disconnect clients that have sent nothing yet. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for client in list(self._silent):
            self._give_up(client)
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, address = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    _log.error("no connection can be accepted for now: %s", error)
                    await asyncio.sleep(_RETRY_S)
                continue
            host = name_host(str(address[0]))
            if CLIENTS.take(host, free=count_room(client.fileno())):
                self._hosts[client] = host
                self._wait_for_first_byte(client)
            else:
                client.close()
                PEERS.note(
                    "remoting clients turned away",
                    f"a client of {host} is turned away: the limit of open files leaves too few",
                )

    def _wait_for_first_byte(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._silent[client] = loop.call_later(self._silence_s, self._give_up, client)
        loop.add_reader(client, self._look, client)

    def _stop_waiting(self, client: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(client)
        self._silent.pop(client).cancel()

    def _give_up(self, client: socket.socket) -> None:
        self._stop_waiting(client)
        self._close(client)

    def _close(self, client: socket.socket) -> None:
        CLIENTS.give_back(self._hosts.pop(client))
        client.close()

    def _look(self, client: socket.socket) -> None:
        try:
            first = client.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        self._stop_waiting(client)
        is_tls = bool(first) and first[0] == TLS_HANDSHAKE
        if not first or (self._tls is None if is_tls else not self._serves_plain):
            self._close(client)
            return
        task = asyncio.get_running_loop().create_task(self._open(client, is_tls=is_tls))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    async def _open(self, client: socket.socket, *, is_tls: bool) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._make_protocol,
                client,
                ssl=self._tls if is_tls else None,
                ssl_handshake_timeout=self._silence_s if is_tls else None,
            )
        except OSError as error:  # a failed handshake among them
            PEERS.note("remoting clients not served", f"a client was not served: {error}")
        else:
            del self._hosts[client]  # its connection has the place
        finally:
            if client in self._hosts:
                self._close(client)


_STOP_TIMEOUT_S = 3.0


class RemotingServer:
    """Serves a port with a handler table. The caller binds the socket first, so that clients are
    served only when everything is ready. `tls`: used for clients that start a TLS handshake, if
    `tls_mode` allows TLS."""

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
        """Register a function to call with each closed connection."""
        self._close_listeners.append(listener)

    async def start(self, listening: socket.socket) -> None:
        """Start accepting on a bound socket."""
        self._listener.start(listening)
        self._is_running = True
        self._plan_sweep()

    def _open(self) -> Connection:
        return Connection(
            self.table,
            self.limits,
            self._buffered,
            self._close_listeners,
            self.connections.add,  # a failed TLS handshake opens none
        )

    def _forget(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            CLIENTS.give_back(connection.host)
        if not self.connections:
            self._all_ended.set()

    @property
    def buffered_bytes(self) -> int:
        """Number of bytes in incomplete frames, waiting requests and unsent responses of all
        connections."""
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
        """Stop accepting and close all connections. Idempotent."""
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
