"""Listener: accepts on one port clients that speak TLS and clients that do not.

The first byte says which: 0x16 begins a TLS handshake, and no frame is as long as that would make
it. It is looked at and left in the socket, so that the loop's own TLS begins with it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from typing import Final

from tieredstore.broker.descriptors import leaves_room
from tieredstore.broker.tls import TlsMode

TLS_HANDSHAKE: Final = 0x16
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S: Final = 1.0
_TELL_S: Final = 10.0
_BACKLOG: Final = 1024
_log = logging.getLogger(__name__)


class Listener:
    """Accepts on a bound socket and makes a protocol for each client that has said something.

    tls: None when there is no certificate: then TLS is not served. silence_s: how long a client may
    say nothing, and how long a handshake may take.
    """

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
        self._opening: set[asyncio.Task[None]] = set()
        self._accepting: asyncio.Task[None] | None = None
        self._listening: socket.socket | None = None
        self._told_s = -_TELL_S

    def start(self, listening: socket.socket) -> None:
        """Begin to accept; the socket is closed by `stop`."""
        listening.setblocking(False)
        listening.listen(_BACKLOG)
        self._listening = listening
        self._accepting = asyncio.get_running_loop().create_task(self._accept_all(listening))

    async def stop(self) -> None:
        """Accept nobody any more, and close those that have said nothing yet. Idempotent."""
        if self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._accepting = None
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        for client in list(self._silent):
            self._stop_waiting(client)
            client.close()
        for task in list(self._opening):
            task.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)

    async def _accept_all(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                client, _ = await loop.sock_accept(listening)
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    _log.error("no connection can be accepted for now: %s", error)
                    await asyncio.sleep(_RETRY_S)
                continue
            if leaves_room(client.fileno()):
                self._wait_for_first_byte(client)
            else:
                client.close()
                self._tell_full()

    def _tell_full(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._told_s + _TELL_S:
            self._told_s = now_s
            _log.error("clients are turned away: the limit of open files leaves too few for files")

    def _wait_for_first_byte(self, client: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        self._silent[client] = loop.call_later(self._silence_s, self._give_up, client)
        loop.add_reader(client, self._look, client)

    def _stop_waiting(self, client: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(client)
        self._silent.pop(client).cancel()

    def _give_up(self, client: socket.socket) -> None:
        self._stop_waiting(client)
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
            client.close()
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
            _log.info("a client was not served: %s", error)
            client.close()
