"""An in-memory object store with a client that pauses in a request, or times out before the request
takes effect."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from tieredstore.errors import Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient

HOWS = ("before", "after", "lost", "late", "twice")
"""When other clients run, relative to the chosen request. `before`: before the request takes
effect. `after`: between its effect and its reply. `lost`: like `after`, and the reply is lost.
`late`: the request times out, and takes effect after all requests of the other clients. `twice`:
the request is answered, and takes effect a second time later."""
CHANGING = frozenset({"PUT", "COMPLETE_UPLOAD", "DELETE"})


class LateClient(MemoryObjectClient):
    """In-memory object store whose client pauses at the request that `watch` chooses. Times in
    replies are `ahead_ms` later than the times of objects. With `stamps_beginning`, a multipart
    object gets the time at which its upload began, as on Amazon S3."""

    def __init__(
        self, *, ahead_ms: int = 0, stamps_beginning: bool = False, **settings: Any
    ) -> None:
        super().__init__(**settings)
        self.requests: list[str] = []
        self.is_over = False
        self._ahead_ms = ahead_ms
        self._stamps_beginning = stamps_beginning
        self._begun_ms = 0
        self._number = 0
        self._how = ""
        self._is_held = False
        self._meanwhile: Callable[[], None] = lambda: None
        self._late: list[Callable[[], object]] = []

    def watch(
        self, number: int = 0, how: str = "", meanwhile: Callable[[], None] | None = None
    ) -> None:
        """Choose a request to watch. Number 1 is the next request, and 0 disables watching."""
        self.requests.clear()
        self.is_over = False
        self._number, self._how = number, how
        self._meanwhile = meanwhile or self._meanwhile

    def deliver(self) -> None:
        """Apply the late requests now."""
        for act in self._late:
            act()
        self._late.clear()

    def now_ms(self) -> int:
        return super().now_ms() + self._ahead_ms

    def request(self, operation: str, key: str) -> None:
        self.requests.append(f"{operation} {key}")
        if operation == "CREATE_UPLOAD":
            self._begun_ms = self._now_ms()
        is_chosen = len(self.requests) == self._number and not self.is_over
        self._is_held = is_chosen and self._how in {"late", "twice"} and operation in CHANGING
        if is_chosen and self._how == "before":
            self._go_on()

    def reply(self, operation: str, key: str) -> None:
        if len(self.requests) != self._number or self.is_over or self._how == "before":
            return
        self._go_on()
        if self._how == "lost":
            raise Unavailable(f"injected: the reply of {operation} {key} was lost")

    def _make(self, key: str, content: bytes, metadata: Mapping[str, str]) -> bool:
        if self._hold(lambda: self._make(key, content, metadata)):
            raise Unavailable(f"injected: no reply to the creation of {key}")
        made = super()._make(key, content, metadata)
        if made and self._stamps_beginning and self.requests[-1].startswith("COMPLETE"):
            found = self._store.objects[key]
            self._store.objects[key] = dataclasses.replace(found, modified_ms=self._begun_ms)
        return made

    def delete(self, *arguments: Any, **named: Any) -> None:
        if not arguments[0]:
            return
        number = len(self.requests) + 1
        if number == self._number and self._how in {"late", "twice"} and not self.is_over:
            again = MemoryObjectClient(beside=self)
            self._late.append(lambda: again.delete(*arguments, **named))
            if self._how == "late":
                self.request("DELETE", arguments[0][0])
                self._go_on()
                raise Unavailable(f"injected: no reply to the deletion of {arguments[0][0]}")
        super().delete(*arguments, **named)

    def _hold(self, act: Callable[[], object]) -> bool:
        """Defer a chosen request until `deliver`. Return whether the request must not be applied
        now as well."""
        if not self._is_held:
            return False
        self._is_held = False
        self._late.append(act)
        if self._how == "late":
            self._go_on()
        return self._how == "late"

    def _go_on(self) -> None:
        self.is_over = True
        self._meanwhile()
