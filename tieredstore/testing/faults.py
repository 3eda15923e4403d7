"""Wrappers around a provider and a metadata store that inject faults and crashes at chosen calls.

Wrappers that share a `Faults` number their changing calls together, starting with 1. A scenario
that uses both can therefore be stopped before or after each of its changes:

    for point in crash_points(lambda faults: scenario(new_folder(), faults)):
        folder = new_folder()
        run_until_crash(lambda faults: scenario(folder, faults), point)
        ...  # open `folder` again without faults and check the guarantees
"""

from __future__ import annotations

import enum
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    MetadataStore,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import (
    Buffer,
    FencedWrite,
    FileSegment,
    SegmentId,
    SegmentListing,
    SegmentProvider,
    UnknownWrite,
    WriterEpoch,
    WriteResult,
)
from tieredstore.contracts.tier_identity import EpochRecord
from tieredstore.contracts.wrapping import (
    WrapperEpoch,
    WrapperMetadataStore,
    WrapperProvider,
    WrapperSegment,
)
from tieredstore.errors import Unavailable

T = TypeVar("T")


class SimulatedCrash(BaseException):
    """Simulated end of the process. Not caught by `except Exception`."""


class Fault(enum.Enum):
    """Fault of a call.

    `FAIL`: the call does nothing and raises Unavailable. `LOSE_REPLY`: the call succeeds, but a
    write returns UnknownWrite and any other call raises Unavailable. `TEAR`: only the first half is
    written, and UnknownWrite is returned (like LOSE_REPLY if writes are atomic, like FAIL for other
    calls). `FENCE`: a write does nothing and returns FencedWrite (like FAIL for other calls).
    `CRASH_BEFORE`, `CRASH_AFTER`: SimulatedCrash before or after the call. `CRASH_TORN`:
    SimulatedCrash after the first half of a write (like CRASH_BEFORE for other calls)."""

    FAIL = "fail"
    LOSE_REPLY = "lose the reply of"
    TEAR = "tear"
    FENCE = "fence"
    CRASH_BEFORE = "crash before"
    CRASH_AFTER = "crash after"
    CRASH_TORN = "crash half-way in"


_CRASHES = frozenset({Fault.CRASH_BEFORE, Fault.CRASH_AFTER, Fault.CRASH_TORN})


class Faults:
    """Planned faults. `writes` maps the number of a changing call to its fault, and `reads` that of
    a reading call (only FAIL and CRASH_BEFORE). After a crash, every call on every thread raises
    SimulatedCrash, because the process is dead."""

    def __init__(
        self, writes: Mapping[int, Fault] | None = None, reads: Mapping[int, Fault] | None = None
    ) -> None:
        self._writes = dict(writes or {})
        self._reads = dict(reads or {})
        self._lock = threading.Lock()
        self._read_count = 0
        self.crashed = False
        self._at_crash: list[Callable[[], None]] = []
        self.calls: list[str] = []
        """Names of the changing calls so far."""

    def at_crash(self, action: Callable[[], None]) -> None:
        """Register a function to run at the crash, for example to release file locks."""
        self._at_crash.append(action)

    def write_fault(self, call: str) -> Fault | None:
        """Count a changing call and return its fault. Raises SimulatedCrash for CRASH_BEFORE."""
        with self._lock:
            self._check()
            self.calls.append(call)
            fault = self._writes.get(len(self.calls))
        if fault is Fault.CRASH_BEFORE:
            self.crash()
        return fault

    def read_fault(self, call: str) -> None:
        """Count a reading call. Raises Unavailable or SimulatedCrash if a fault is planned."""
        with self._lock:
            self._check()
            self._read_count += 1
            fault = self._reads.get(self._read_count)
        if fault in _CRASHES:
            self.crash()
        if fault is not None:
            raise Unavailable(f"injected: {call} failed")

    def change(self, call: str, action: Callable[[], T]) -> T:
        """Run `action`, a changing call that writes no bytes, with its planned fault."""
        fault = self.write_fault(call)
        if fault is Fault.CRASH_TORN:
            self.crash()
        if fault in {Fault.FAIL, Fault.TEAR, Fault.FENCE}:
            raise Unavailable(f"injected: {call} failed")
        result = action()
        if fault is Fault.CRASH_AFTER:
            self.crash()
        if fault is Fault.LOSE_REPLY:
            raise Unavailable(f"injected: the reply of {call} was lost")
        return result

    def crash(self) -> None:
        self.crashed = True
        for action in self._at_crash:
            action()
        self._at_crash.clear()
        raise SimulatedCrash

    def _check(self) -> None:
        if self.crashed:
            raise SimulatedCrash


@dataclass(frozen=True, slots=True)
class CrashPoint:
    """Point before, after, or in the middle of the `number`-th changing call of a scenario."""

    number: int
    fault: Fault
    call: str

    def __str__(self) -> str:
        return f"{self.fault.value} call {self.number}: {self.call}"


def crash_points(scenario: Callable[[Faults], object]) -> list[CrashPoint]:
    """Run the scenario once without faults and return all its crash points. A crash after a call
    and before the next one leaves the same stored bytes. Both points are listed, because the
    scenario may do its own work in between."""
    faults = Faults()
    scenario(faults)
    points = []
    for number, call in enumerate(faults.calls, 1):
        kinds = [Fault.CRASH_BEFORE, Fault.CRASH_AFTER]
        if call.startswith("write "):
            kinds.insert(1, Fault.CRASH_TORN)
        points += [CrashPoint(number, kind, call) for kind in kinds]
    return points


def run_until_crash(scenario: Callable[[Faults], object], point: CrashPoint) -> Faults:
    """Run the scenario until the crash point. Raises AssertionError if it is not reached."""
    faults = Faults({point.number: point.fault})
    try:
        scenario(faults)
    except SimulatedCrash:
        return faults
    raise AssertionError(f"the scenario ended before its crash point: {point}")


class FaultySegment(WrapperSegment):
    """FileSegment with planned faults. `read_nowait` is not counted and never fails."""

    def __init__(self, segment: FileSegment, faults: Faults, *, tears: bool) -> None:
        super().__init__(segment)
        self._faults = faults
        self._tears = tears

    def size(self) -> int:
        self._faults.read_fault(f"size {self.id}")
        return super().size()

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        call = f"write {self.id}"
        fault = self._faults.write_fault(call)
        if fault is None:
            return super().write(position, buffers)
        if fault is Fault.FAIL:
            raise Unavailable(f"injected: {call} at {position} failed")
        if fault is Fault.FENCE:
            return FencedWrite(super().size(), "injected writer")
        torn = self._tears and fault in {Fault.TEAR, Fault.CRASH_TORN}
        if torn:
            data = b"".join(buffers)
            buffers = [data[: len(data) // 2]]
        if fault is not Fault.CRASH_TORN or torn:
            super().write(position, buffers)
        if fault in _CRASHES:
            self._faults.crash()
        what = "was torn" if torn else "got no reply"
        return UnknownWrite(f"injected: {call} at {position} {what}")

    def read(self, position: int, length: int) -> memoryview:
        self._faults.read_fault(f"read {self.id}")
        return super().read(position, length)

    def seal(self) -> None:
        self._faults.change(f"seal {self.id}", super().seal)

    def delete(self) -> None:
        self._faults.change(f"delete {self.id}", super().delete)


class FaultyEpoch(WrapperEpoch):
    """WriterEpoch with planned faults. `confirm` counts as a changing call, because it confirms
    stored writes."""

    def __init__(self, epoch: WriterEpoch, faults: Faults) -> None:
        super().__init__(epoch)
        self._faults = faults

    def confirm(self) -> None:
        self._faults.change("confirm", super().confirm)


class FaultyProvider(WrapperProvider):
    """SegmentProvider with planned faults in its segments. A crash releases its writer epochs."""

    def __init__(self, provider: SegmentProvider, faults: Faults) -> None:
        super().__init__(provider)
        self._faults = faults

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        return FaultySegment(segment, self._faults, tears=self.capabilities.rewritable)

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        self._faults.read_fault(f"list {prefix}")
        return super().list(prefix)

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        epoch = super().acquire_writer(broker_name, take_over=take_over, record=record)
        self._faults.at_crash(epoch.release)
        return FaultyEpoch(epoch, self._faults)


class FaultyMetadataStore(WrapperMetadataStore):
    """MetadataStore with planned faults in its changing calls, including the end of the outermost
    `batch()`."""

    def __init__(self, store: MetadataStore, faults: Faults) -> None:
        super().__init__(store)
        self._faults = faults

    def _change(self, call: str, action: Callable[[], T]) -> T:
        return self._faults.change(f"metadata {call}", action)

    @contextmanager
    def batch(self) -> Iterator[None]:
        with super().batch():
            yield
            fault = self._faults.write_fault("metadata batch")
            if fault is Fault.CRASH_TORN:
                self._faults.crash()
        if fault is Fault.CRASH_AFTER:
            self._faults.crash()
        if fault is not None:
            raise Unavailable("injected: the metadata batch failed")

    def add_topic(self, topic: str, reserve_time_hours: int = -1) -> TopicMetadata:
        return self._change(
            f"add_topic {topic}", partial(super().add_topic, topic, reserve_time_hours)
        )

    def update_topic(self, topic: TopicMetadata) -> None:
        self._change(f"update_topic {topic.topic}", partial(super().update_topic, topic))

    def set_reserve_time(self, topic: TopicMetadata, hours: int) -> bool:
        return self._change(
            f"set_reserve_time {topic.topic}", partial(super().set_reserve_time, topic, hours)
        )

    def delete_topic(self, topic: str) -> None:
        self._change(f"delete_topic {topic}", partial(super().delete_topic, topic))

    def add_queue(self, topic: str, queue_id: int) -> QueueMetadata:
        return self._change(
            f"add_queue {topic}/{queue_id}", partial(super().add_queue, topic, queue_id)
        )

    def update_queue(self, queue: QueueMetadata) -> None:
        self._change(
            f"update_queue {queue.topic}/{queue.queue_id}", partial(super().update_queue, queue)
        )

    def delete_queue(self, topic: str, queue_id: int) -> None:
        self._change(
            f"delete_queue {topic}/{queue_id}", partial(super().delete_queue, topic, queue_id)
        )

    def put_segment(self, segment: FileSegmentMetadata) -> None:
        self._change(f"put_segment {segment.id}", partial(super().put_segment, segment))

    def delete_segment(self, id: SegmentId) -> None:
        self._change(f"delete_segment {id}", partial(super().delete_segment, id))

    def flush(self) -> None:
        self._change("flush", super().flush)

    def close(self) -> None:
        self._change("close", super().close)

    def destroy(self) -> None:
        self._change("destroy", super().destroy)
