"""An object store whose requests fail, get lost, or take effect late and out of order. While one
process waits for an answer, others may run."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence

from tieredstore.clock import Clock
from tieredstore.contracts.objects import ClientLimits
from tieredstore.errors import Busy, Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient


class RandomObjects:
    """The bucket with its delayed requests. `rate`: probability that a request fails. `pre_empted`:
    probability that `meanwhile` runs during a request of the main thread. It gets the client of the
    request."""

    def __init__(
        self, rng: random.Random, clock: Clock, *, min_part_bytes: int, page_keys: int
    ) -> None:
        self.rng = rng
        self.clock = clock
        self.base = MemoryObjectClient(
            now_ms=clock.now_ms,
            limits=ClientLimits(min_part_bytes=min_part_bytes),
            page_keys=page_keys,
        )
        self.page_keys = page_keys
        self.rate = 0.0
        self.pre_empted = 0.0
        self.meanwhile: Callable[[RandomClient], None] | None = None
        self._depth = 0
        self._late: list[Callable[[], object]] = []

    def hold(self, act: Callable[[], object]) -> None:
        """Delay a change of the bucket until `deliver` applies it."""
        self._late.append(act)

    def deliver(self, share: float = 1.0) -> None:
        """Apply delayed changes in random order, each with probability `share`."""
        late, self._late = self._late, []
        self.rng.shuffle(late)
        for act in late:
            if self.rng.random() < share:
                act()
            else:
                self._late.append(act)

    def go_wrong(self) -> bool:
        return bool(self.rate) and self.rng.random() < self.rate

    def let_others_go_on(self, client: RandomClient) -> None:
        """Sometimes call `meanwhile`, so that other processes run. These calls are nested at most
        twice."""
        if self.meanwhile is None or threading.current_thread() is not threading.main_thread():
            return
        if self._depth < 2 and self.rng.random() < self.pre_empted:
            self._depth += 1
            try:
                self.meanwhile(client)
            finally:
                self._depth -= 1

    def calmly(self) -> _Calm:
        """Return a context in which no request fails and no other process runs."""
        return _Calm(self)


class _Calm:
    def __init__(self, objects: RandomObjects) -> None:
        self._objects = objects

    def __enter__(self) -> None:
        objects = self._objects
        self._before = (objects.rate, objects.meanwhile)
        objects.rate, objects.meanwhile = 0.0, None

    def __exit__(self, *_error: object) -> None:
        self._objects.rate, self._objects.meanwhile = self._before


class RandomClient(MemoryObjectClient):
    """Client of one process. With `is_dead`, the process has ended. With `refuses_deletions`,
    deletions fail."""

    def __init__(self, objects: RandomObjects) -> None:
        super().__init__(
            beside=objects.base,
            now_ms=objects.clock.now_ms,
            limits=objects.base.limits,
            page_keys=objects.page_keys,
        )
        self.objects = objects
        self.is_dead = False
        self.refuses_deletions = False
        self._fate = threading.local()

    def request(self, operation: str, key: str) -> None:
        self._fate.now = ""
        if self.is_dead:
            raise Unavailable("the process ended")
        if self.refuses_deletions and operation == "DELETE":
            raise Unavailable(f"injected: {operation} {key} is not allowed for a while")
        self.objects.let_others_go_on(self)
        fate = self._choose(operation) if self.objects.go_wrong() else ""
        self._fate.now = fate
        if fate == "fail":
            raise Unavailable(f"injected: {operation} {key} failed")
        if fate == "busy":
            raise Busy(f"injected: {operation} {key} met a conflict")

    def _choose(self, operation: str) -> str:
        fates = ["fail", "lose"]
        if operation in ("PUT", "COMPLETE_UPLOAD"):
            fates += ["late", "twice", "busy"]
        if operation == "GET":
            fates.append("short")
        return self.objects.rng.choice(fates)

    def reply(self, operation: str, key: str) -> None:
        fate = self._fate.now
        self.objects.let_others_go_on(self)
        self._fate.now = fate
        if fate == "lose":
            raise Unavailable(f"injected: the reply of {operation} {key} was lost")

    def _make(self, key: str, content: bytes, metadata: Mapping[str, str]) -> bool:
        fate, self._fate.now = getattr(self._fate, "now", ""), ""
        if fate in ("late", "twice"):
            base = self.objects.base
            self.objects.hold(lambda: MemoryObjectClient._make(base, key, content, metadata))
            if fate == "late":
                raise Unavailable(f"injected: no reply to the creation of {key}")
        else:
            self._fate.now = fate
        return super()._make(key, content, metadata)

    def delete(self, keys: Sequence[str]) -> None:
        if keys and not self.is_dead and self.objects.go_wrong():
            base, late = self.objects.base, list(keys)
            self.objects.hold(lambda: MemoryObjectClient.delete(base, late))
            if self.objects.rng.random() < 0.5:
                raise Unavailable(f"injected: no reply to the deletion of {late[0]}")
        super().delete(keys)

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        found = super().get_range(key, position, length)
        if found is not None and getattr(self._fate, "now", "") == "short":
            return found[: (len(found) + 1) // 2]
        return found
