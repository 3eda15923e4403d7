"""The ports of a broker, bound before anything else: one that is taken ends a start at once, and
what a store records knows the port of a broker that takes a free one."""

from __future__ import annotations

import socket
from contextlib import AsyncExitStack
from typing import NamedTuple

from tieredstore.broker.settings import BrokerSettings
from tieredstore.errors import Unavailable
from tieredstore.message.hosts import join_address, strip_brackets


class Sockets(NamedTuple):
    """Bound, and listening once a server takes them. namesrv: None where there is no such port."""

    remoting: socket.socket
    namesrv: socket.socket | None
    grpc: socket.socket


def bind_ports(settings: BrokerSettings, closing: AsyncExitStack) -> Sockets:
    """Bind the ports of the settings, and write those that were free ones into the settings.
    Raises Unavailable for a port that is taken."""

    def bind(port: int) -> socket.socket:
        bound = closing.enter_context(_bind(settings.bind_address, port))
        bound.setblocking(False)
        return bound

    remoting = bind(settings.listen_port)
    settings.listen_port = _port_of(remoting)
    namesrv = bind(settings.namesrv_listen_port) if settings.namesrv_listen_port >= 0 else None
    if namesrv is not None:
        settings.namesrv_listen_port = _port_of(namesrv)
    grpc = bind(settings.grpc_server_port)
    settings.grpc_server_port = _port_of(grpc)
    return Sockets(remoting, namesrv, grpc)


def _bind(host: str, port: int) -> socket.socket:
    host = strip_brackets(host)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port whose last connections are still being forgotten is taken all the same.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise Unavailable(f"{join_address(host, port)}: cannot listen: {error.strerror}") from error
    return bound


def _port_of(bound: socket.socket) -> int:
    port: int = bound.getsockname()[1]
    return port
