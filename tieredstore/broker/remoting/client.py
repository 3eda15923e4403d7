"""Connecting to another remoting server: a name server, a broker."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence

from tieredstore.broker.remoting.connection import Connection
from tieredstore.broker.remoting.handler_table import HandlerTable
from tieredstore.broker.remoting.limits import BufferedBytes, CloseListener, RemotingLimits
from tieredstore.errors import Invalid, Unavailable


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`. Raises Invalid."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isascii() or not port.isdigit():
        raise Invalid(f"address: expected host:port, found {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def connect(
    address: str,
    table: HandlerTable | None = None,
    *,
    limits: RemotingLimits | None = None,
    close_listeners: Sequence[CloseListener] = (),
    timeout_ms: int = 3_000,
    tls: ssl.SSLContext | None = None,
) -> Connection:
    """Open a connection to `host:port`. table: who answers the server's own calls. Raises
    Unavailable, Invalid."""
    host, port = split_address(address)
    limits = limits or RemotingLimits()
    buffered = BufferedBytes(limits.max_buffered_bytes)
    table = table or HandlerTable()
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            _, connection = await loop.create_connection(
                lambda: Connection(table, limits, buffered, list(close_listeners)),
                host,
                port,
                ssl=tls,
            )
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{address}: no connection in {timeout_ms} ms: {error!r}") from error
    return connection
