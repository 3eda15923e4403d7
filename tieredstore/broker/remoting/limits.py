"""What one connection, and all together, may cost the process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tieredstore.broker.remoting.frame import MAX_FRAME_BYTES

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection


@dataclass(frozen=True, slots=True)
class RemotingLimits:
    """idle_timeout_ms: a connection on which no whole frame came for so long is closed (clients
    send a heartbeat each 30 s). high_water_bytes: with more than this unsent, nothing more is read
    from a connection. max_pending: requests of one connection that are not answered yet, parked
    polls among them; one more gets SYSTEM_BUSY. max_buffered_bytes: of all connections, frames
    that are not whole, requests that wait, and responses that are not sent; above it the connection
    that holds the most is closed.
    """

    max_frame_bytes: int = MAX_FRAME_BYTES
    idle_timeout_ms: int = 120_000
    high_water_bytes: int = 1 << 20
    max_pending: int = 16_384
    max_buffered_bytes: int = 512 << 20


class BufferedBytes:
    """Counts the bytes that are buffered for connections; when they pass the limit, the connection
    that holds the most is aborted, so that one greedy peer does not cost the others."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held: dict[Connection, int] = {}
        self.total_bytes = 0

    def hold(self, connection: Connection, count_bytes: int) -> None:
        """Note how much a connection holds now."""
        self.total_bytes += count_bytes - self._held.pop(connection, 0)
        if count_bytes:
            self._held[connection] = count_bytes
        while self.total_bytes > self._limit_bytes:
            greediest = max(self._held, key=self._held.__getitem__)
            self.total_bytes -= self._held.pop(greediest)
            greediest.abort(
                f"the connections hold more than {self._limit_bytes} bytes, this one the most"
            )


CloseListener = Callable[["Connection"], object]
