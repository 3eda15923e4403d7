"""Wrappers: a provider, a segment, a writer epoch or a metadata store around another one.

Each base forwards every member of its contract. A subclass overrides what it changes: it counts,
slows down, refuses or fails calls. A test compares the bases with the contracts, so a member that
is new in a contract is missing in no wrapper.

An optional protocol (Probed, MeteredProvider) is not forwarded: `find_layer` finds the outermost
layer that has it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

from tieredstore.contracts.epoch_record import EpochRecord
from tieredstore.contracts.metadata_store import (
    FileSegmentMetadata,
    MetadataStore,
    QueueMetadata,
    TopicMetadata,
)
from tieredstore.contracts.segment import (
    Buffer,
    Capabilities,
    FileSegment,
    FileSegmentType,
    SegmentId,
    SegmentListing,
    SegmentProvider,
    WriterEpoch,
    WriteResult,
)

_Protocol = TypeVar("_Protocol")


class WrapperSegment:
    """A FileSegment around another one, `wrapped`."""

    def __init__(self, wrapped: FileSegment) -> None:
        self.wrapped = wrapped

    @property
    def id(self) -> SegmentId:
        return self.wrapped.id

    def size(self) -> int:
        return self.wrapped.size()

    def write(self, position: int, buffers: Sequence[Buffer]) -> WriteResult:
        return self.wrapped.write(position, buffers)

    def read(self, position: int, length: int) -> memoryview:
        return self.wrapped.read(position, length)

    def read_nowait(self, position: int, length: int) -> memoryview | None:
        return self.wrapped.read_nowait(position, length)

    def seal(self) -> None:
        self.wrapped.seal()

    def delete(self) -> None:
        self.wrapped.delete()

    def close(self) -> None:
        self.wrapped.close()


class WrapperProvider:
    """A SegmentProvider around another one, `wrapped`. Most subclasses override `wrap_segment`."""

    def __init__(self, wrapped: SegmentProvider) -> None:
        self.wrapped = wrapped

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        """Return what `open` returns for a segment that `wrapped` has opened."""
        return segment

    @property
    def capabilities(self) -> Capabilities:
        return self.wrapped.capabilities

    @property
    def url(self) -> str:
        return self.wrapped.url

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        return self.wrapped.list(prefix)

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        return self.wrap_segment(self.wrapped.open(id, listing))

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> WriterEpoch:
        return self.wrapped.acquire_writer(broker_name, take_over=take_over, record=record)

    def close(self) -> None:
        self.wrapped.close()


class WrapperEpoch:
    """A WriterEpoch around another one, `wrapped`."""

    def __init__(self, wrapped: WriterEpoch) -> None:
        self.wrapped = wrapped

    @property
    def owner(self) -> str:
        return self.wrapped.owner

    def check(self) -> None:
        self.wrapped.check()

    def confirm(self) -> None:
        self.wrapped.confirm()

    def release(self) -> None:
        self.wrapped.release()


class WrapperMetadataStore:
    """A MetadataStore around another one, `wrapped`."""

    def __init__(self, wrapped: MetadataStore) -> None:
        self.wrapped = wrapped

    def load(self) -> None:
        self.wrapped.load()

    def batch(self) -> AbstractContextManager[None]:
        return self.wrapped.batch()

    def topics(self) -> list[TopicMetadata]:
        return self.wrapped.topics()

    def topic(self, topic: str) -> TopicMetadata | None:
        return self.wrapped.topic(topic)

    def add_topic(self, topic: str, reserve_time_hours: int = -1) -> TopicMetadata:
        return self.wrapped.add_topic(topic, reserve_time_hours)

    def update_topic(self, topic: TopicMetadata) -> None:
        self.wrapped.update_topic(topic)

    def set_reserve_time(self, topic: TopicMetadata, hours: int) -> bool:
        return self.wrapped.set_reserve_time(topic, hours)

    def delete_topic(self, topic: str) -> None:
        self.wrapped.delete_topic(topic)

    def queues(self, topic: str) -> list[QueueMetadata]:
        return self.wrapped.queues(topic)

    def queue(self, topic: str, queue_id: int) -> QueueMetadata | None:
        return self.wrapped.queue(topic, queue_id)

    def add_queue(self, topic: str, queue_id: int) -> QueueMetadata:
        return self.wrapped.add_queue(topic, queue_id)

    def update_queue(self, queue: QueueMetadata) -> None:
        self.wrapped.update_queue(queue)

    def delete_queue(self, topic: str, queue_id: int) -> None:
        self.wrapped.delete_queue(topic, queue_id)

    def segments(
        self, path: str | None = None, type: FileSegmentType | None = None
    ) -> Iterator[FileSegmentMetadata]:
        return self.wrapped.segments(path, type)

    def segment(self, id: SegmentId) -> FileSegmentMetadata | None:
        return self.wrapped.segment(id)

    def put_segment(self, segment: FileSegmentMetadata) -> None:
        self.wrapped.put_segment(segment)

    def delete_segment(self, id: SegmentId) -> None:
        self.wrapped.delete_segment(id)

    def flush(self) -> None:
        self.wrapped.flush()

    def close(self) -> None:
        self.wrapped.close()

    def destroy(self) -> None:
        self.wrapped.destroy()


_WRAPPERS = (WrapperSegment, WrapperProvider, WrapperEpoch, WrapperMetadataStore)


def find_layer(outermost: object, protocol: type[_Protocol]) -> _Protocol | None:
    """Find the outermost of some layers, one wrapped by the other, that has an optional protocol;
    None when none has it."""
    layer: object = outermost
    while not isinstance(layer, protocol):
        if not isinstance(layer, _WRAPPERS):
            return None
        layer = layer.wrapped
    return layer
