"""In-memory object store that injects failures, lost replies and crashes.

Requests are numbered from 1. Each part of a multipart upload is a request:

    for number, _ in request_points(scenario):
        store = MemoryObjectClient()
        run_until_crash_at(scenario, store, number, ObjectFault.CRASH_AFTER)
        ...  # open another client on `store` and check the guarantees
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Mapping
from typing import Any

from tieredstore.errors import Busy, Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.faults import SimulatedCrash


class ObjectFault(enum.Enum):
    """Fault of a request. BUSY (409) and FAIL (503): the request is not executed. LOSE_REPLY: it is
    executed, but its reply is lost. SHORT: a read returns half of its bytes. CRASH_BEFORE,
    CRASH_AFTER: the process ends before or after the request."""

    BUSY = "busy at"
    FAIL = "fail"
    LOSE_REPLY = "lose the reply of"
    SHORT = "cut the reply of"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"


class FaultyObjectClient(MemoryObjectClient):
    """Object store with planned faults. `plan` maps request numbers to faults. `fault_of` is a
    function that chooses faults instead. After a crash, all requests of all threads raise
    SimulatedCrash."""

    def __init__(
        self,
        plan: Mapping[int, ObjectFault] | None = None,
        *,
        fault_of: Callable[[str, str], ObjectFault | None] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self.plan = dict(plan or {})
        self.fault_of = fault_of
        self.requests: list[str] = []
        """Requests so far, each as the text `<operation> <key>`."""
        self.is_crashed = False
        self._current = threading.local()
        self._count_lock = threading.Lock()

    def count(self, operation: str) -> int:
        """Return the number of requests of an operation so far."""
        return sum(request.startswith(f"{operation} ") for request in self.requests)

    def request(self, operation: str, key: str) -> None:
        with self._count_lock:
            if self.is_crashed:
                raise SimulatedCrash
            self.requests.append(f"{operation} {key}")
            fault = self.plan.get(len(self.requests))
        if self.fault_of is not None:
            fault = self.fault_of(operation, key)
        self._current.fault = fault
        if fault is ObjectFault.CRASH_BEFORE:
            self._crash()
        if fault is ObjectFault.FAIL:
            raise Unavailable(f"injected: {operation} {key} failed")
        if fault is ObjectFault.BUSY:
            raise Busy(f"injected: {operation} {key} met a conflict")

    def reply(self, operation: str, key: str) -> None:
        if self._current.fault is ObjectFault.CRASH_AFTER:
            self._crash()
        if self._current.fault is ObjectFault.LOSE_REPLY:
            raise Unavailable(f"injected: the reply of {operation} {key} was lost")

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        found = super().get_range(key, position, length)
        if found is not None and self._current.fault is ObjectFault.SHORT:
            return found[: (len(found) + 1) // 2]
        return found

    def _crash(self) -> None:
        self.is_crashed = True
        raise SimulatedCrash


def request_points(scenario: Callable[[FaultyObjectClient], object]) -> list[tuple[int, str]]:
    """Run the scenario once without faults, and return the number and name of each request."""
    client = FaultyObjectClient()
    scenario(client)
    return list(enumerate(client.requests, 1))


def run_until_crash_at(
    scenario: Callable[[FaultyObjectClient], object],
    store: MemoryObjectClient,
    number: int,
    fault: ObjectFault,
) -> None:
    """Run the scenario on `store` until its `number`-th request. Raises AssertionError if it sends
    fewer requests."""
    try:
        scenario(FaultyObjectClient({number: fault}, beside=store))
    except SimulatedCrash:
        return
    raise AssertionError(f"the scenario ended before request {number}")
