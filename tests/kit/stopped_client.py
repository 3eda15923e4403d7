"""An in-memory object store with a client that is paused in a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tieredstore.errors import Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient


class StoppedClient(MemoryObjectClient):
    """Client that calls `meanwhile` before or after request number `number`, whose reply may get
    lost."""

    def __init__(self, number: int, when: str, **settings: Any) -> None:
        super().__init__(**settings)
        self.number = number
        self.when = when
        self.meanwhile: Callable[[], None] = lambda: None
        self.is_over = False
        self.requests: list[str] = []

    def request(self, operation: str, key: str) -> None:
        self.requests.append(f"{operation} {key}")
        if self.when == "before":
            self._stop()

    def reply(self, operation: str, key: str) -> None:
        if self.when != "before" and self._stop() and self.when == "lost":
            raise Unavailable(f"injected: the reply of {operation} {key} was lost")

    def _stop(self) -> bool:
        if len(self.requests) != self.number or self.is_over:
            return False
        self.is_over = True
        self.meanwhile()
        return True
