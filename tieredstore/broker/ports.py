"""Ports of a broker and file descriptors of the process. A start binds the ports first, so that a
port in use ends the start immediately. The store also needs the port, which the system may have
chosen, because it writes the port into records."""

from __future__ import annotations

import logging
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from typing import Final, NamedTuple

from tieredstore.broker.hosts import HostShares
from tieredstore.broker.settings import BrokerSettings
from tieredstore.errors import Unavailable
from tieredstore.message.hosts import join_address, strip_brackets

RESERVED: Final = 256
"""Number of file descriptors reserved for files, but at most a quarter of the process's limit."""


FAST_DISTANCE: Final = 2
"""The second remoting port is `listenPort` minus this number, as in Java."""
_TRIES: Final = 16
_log = logging.getLogger(__name__)


CLIENTS: Final = HostShares()
"""Connections of all ports of remoting and gRPC. They share the descriptors of the process."""


def count_room(descriptor: int) -> int:
    """Return how many more clients may connect after a new client got `descriptor`. The remaining
    descriptors are reserved for files. All lower descriptors are assumed to be in use, because the
    system always assigns the lowest free one."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return limit - min(RESERVED, limit // 4) - descriptor


def raise_limit() -> None:
    """Raise the limit of open files to the maximum, like Java. Each client needs a descriptor, and
    the usual limit of 1,024 is too low."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class Sockets(NamedTuple):
    """Bound sockets on which servers will listen. `fast`: second remoting port, or None. `namesrv`:
    port of the name server, or None."""

    remoting: socket.socket
    fast: socket.socket | None
    namesrv: socket.socket | None
    grpc: socket.socket


def bind_ports(settings: BrokerSettings, closing: AsyncExitStack) -> Sockets:
    """Bind the configured ports, and store the ports that the system chose in the settings. Raises
    Unavailable for a port in use. If only the second remoting port is in use, the broker has no
    second port."""

    def bind(port: int) -> socket.socket:
        bound = closing.enter_context(_bind(settings.bind_address, port))
        bound.setblocking(False)
        return bound

    fast = None
    if settings.fast_remoting_enable and settings.listen_port == 0:
        remoting, fast = _bind_free_pair(bind)
    else:
        remoting = bind(settings.listen_port)
    settings.listen_port = _port_of(remoting)
    namesrv = bind(settings.namesrv_listen_port) if settings.namesrv_listen_port >= 0 else None
    if namesrv is not None:
        settings.namesrv_listen_port = _port_of(namesrv)
    grpc = bind(settings.grpc_server_port)
    settings.grpc_server_port = _port_of(grpc)
    if settings.fast_remoting_enable and fast is None:
        fast = _bind_fast(settings.listen_port, bind)
    return Sockets(remoting, fast, namesrv, grpc)


def _bind_free_pair(
    bind: Callable[[int], socket.socket],
) -> tuple[socket.socket, socket.socket | None]:
    """Bind a port chosen by the system, and the second remoting port below it. If the second port
    is in use in every attempt, returns None for it."""
    for _ in range(_TRIES):
        remoting = bind(0)
        with suppress(Unavailable):
            return remoting, bind(_port_of(remoting) - FAST_DISTANCE)
        remoting.close()
    return bind(0), None


def _bind_fast(listen_port: int, bind: Callable[[int], socket.socket]) -> socket.socket | None:
    port = listen_port - FAST_DISTANCE
    if port <= 0:
        return None
    try:
        return bind(port)
    except Unavailable as error:
        _log.warning(
            "%s. Clients that send to listenPort - %d by default (VIP channel) are not served. "
            "fastRemotingEnable=false switches this port off",
            error,
            FAST_DISTANCE,
        )
        return None


def _bind(host: str, port: int) -> socket.socket:
    host = strip_brackets(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last connections are still in TIME_WAIT can be bound too.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise Unavailable(f"{join_address(host, port)}: cannot listen: {error.strerror}") from error
    return bound


def _port_of(bound: socket.socket) -> int:
    port: int = bound.getsockname()[1]
    return port
