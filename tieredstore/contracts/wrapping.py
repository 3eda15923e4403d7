"""Wrappers around a provider, a segment, a writer epoch or a metadata store. Each base class
forwards every method of its contract, which a test checks. Subclasses override methods to count,
throttle, refuse or fail calls. Methods of optional protocols (Probed, MeteredProvider) are not
forwarded. Use `find_layer` to find the outermost layer that supports such a protocol. Stores are
wrapped in the same way, with the local store as the innermost layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

from tieredstore.contracts.metadata_store import (
    MetadataStore,
)
from tieredstore.contracts.segment import (
    Capabilities,
    FileSegment,
    SegmentId,
    SegmentListing,
    SegmentProvider,
    WriterEpoch,
)

_Protocol = TypeVar("_Protocol")
_Member = TypeVar("_Member", bound=Callable[..., object])


def _forward(member: _Member) -> _Member:
    """Return a method that calls the method of the same name on `wrapped`."""
    name = member.__name__

    @wraps(member)
    def call(self: Any, /, *arguments: Any, **named: Any) -> Any:
        return getattr(self.wrapped, name)(*arguments, **named)

    return cast(_Member, call)


class WrapperSegment:
    """FileSegment that forwards to another FileSegment, `wrapped`."""

    def __init__(self, wrapped: FileSegment) -> None:
        self.wrapped = wrapped

    @property
    def id(self) -> SegmentId:
        return self.wrapped.id

    size = _forward(FileSegment.size)
    write = _forward(FileSegment.write)
    read = _forward(FileSegment.read)
    read_nowait = _forward(FileSegment.read_nowait)
    seal = _forward(FileSegment.seal)
    delete = _forward(FileSegment.delete)
    close = _forward(FileSegment.close)


class WrapperProvider:
    """SegmentProvider that forwards to another SegmentProvider, `wrapped`. Most subclasses override
    `wrap_segment`."""

    def __init__(self, wrapped: SegmentProvider) -> None:
        self.wrapped = wrapped

    def wrap_segment(self, segment: FileSegment) -> FileSegment:
        """Return the segment that `open` returns instead of `segment`."""
        return segment

    @property
    def capabilities(self) -> Capabilities:
        return self.wrapped.capabilities

    @property
    def url(self) -> str:
        return self.wrapped.url

    list = _forward(SegmentProvider.list)

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> FileSegment:
        return self.wrap_segment(self.wrapped.open(id, listing))

    acquire_writer = _forward(SegmentProvider.acquire_writer)
    close = _forward(SegmentProvider.close)


class WrapperEpoch:
    """WriterEpoch that forwards to another WriterEpoch, `wrapped`."""

    def __init__(self, wrapped: WriterEpoch) -> None:
        self.wrapped = wrapped

    @property
    def owner(self) -> str:
        return self.wrapped.owner

    check = _forward(WriterEpoch.check)
    confirm = _forward(WriterEpoch.confirm)
    release = _forward(WriterEpoch.release)


class WrapperMetadataStore:
    """MetadataStore that forwards to another MetadataStore, `wrapped`."""

    def __init__(self, wrapped: MetadataStore) -> None:
        self.wrapped = wrapped

    load = _forward(MetadataStore.load)
    batch = _forward(MetadataStore.batch)
    topics = _forward(MetadataStore.topics)
    topic = _forward(MetadataStore.topic)
    add_topic = _forward(MetadataStore.add_topic)
    update_topic = _forward(MetadataStore.update_topic)
    set_reserve_time = _forward(MetadataStore.set_reserve_time)
    delete_topic = _forward(MetadataStore.delete_topic)
    queues = _forward(MetadataStore.queues)
    queue = _forward(MetadataStore.queue)
    add_queue = _forward(MetadataStore.add_queue)
    update_queue = _forward(MetadataStore.update_queue)
    delete_queue = _forward(MetadataStore.delete_queue)
    segments = _forward(MetadataStore.segments)
    segment = _forward(MetadataStore.segment)
    put_segment = _forward(MetadataStore.put_segment)
    delete_segment = _forward(MetadataStore.delete_segment)
    flush = _forward(MetadataStore.flush)
    close = _forward(MetadataStore.close)
    destroy = _forward(MetadataStore.destroy)


_WRAPPERS = (WrapperSegment, WrapperProvider, WrapperEpoch, WrapperMetadataStore)


def find_layer(outermost: object, protocol: type[_Protocol]) -> _Protocol | None:
    """Return the outermost layer that supports an optional protocol, or None."""
    layer: object = outermost
    while not isinstance(layer, protocol):
        if not isinstance(layer, _WRAPPERS):
            return None
        layer = layer.wrapped
    return layer


def list_layers(store: object) -> Iterator[object]:
    """Yield a store and the stores it wraps, outermost first."""
    layer: object | None = store
    while layer is not None:
        yield layer
        layer = getattr(layer, "next_store", None)
