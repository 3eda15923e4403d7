"""Effect of an operation on a tier: segments, objects, bytes and costs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import SegmentId, SegmentListing
from tieredstore.contracts.usage import MeteredProvider, Prices, read_usage, usage_fields
from tieredstore.contracts.wrapping import find_layer
from tieredstore.jobs.operating.part import TierPart
from tieredstore.jobs.reporting.costs import deletion_cost


@dataclass(slots=True)
class QueueEffect:
    """Effect on one queue. `segments`: deleted segments. `messages`: messages that become
    unreadable. `objects`, `size_bytes`: objects and bytes of the segments in the tier. An object
    that several queues share stays until all its parts are deleted."""

    key: QueueKey
    segments: int = 0
    objects: int = 0
    size_bytes: int = 0
    messages: int = 0


@dataclass(slots=True)
class Effect:
    """Effect on each queue. `problems`: errors of skipped queues, by path."""

    queues: list[QueueEffect] = field(default_factory=list)
    problems: dict[str, str] = field(default_factory=dict)
    _objects: list[int] = field(default_factory=list)

    def add(
        self,
        key: QueueKey,
        segments: Iterable[SegmentId],
        messages: int,
        listings: Mapping[SegmentId, SegmentListing],
    ) -> None:
        """Add the deleted segments of one queue. Segments that exist only in the metadata have no
        objects and no bytes."""
        found = QueueEffect(key, messages=messages)
        for segment in segments:
            found.segments += 1
            listing = listings.get(segment)
            if listing is not None:
                found.objects += listing.objects
                found.size_bytes += listing.size_bytes
                self._objects.append(listing.objects)
        self.queues.append(found)

    def report(self, part: TierPart, **more: object) -> dict[str, object]:
        """Build the JSON report (`docs/cli.md`). The cost is for an object store at the configured
        prices, or at S3's. `more`: further fields of the report."""
        metered = find_layer(part.provider, MeteredProvider)
        prices = metered.prices if metered is not None else Prices()
        size_bytes = sum(queue.size_bytes for queue in self.queues)
        requests, usd = deletion_cost(self._objects, prices)
        return {
            "tier": part.url,
            "cluster": part.config.broker_cluster_name,
            "broker": part.broker,
            "done": part.is_writer,
            **more,
            "segments": sum(queue.segments for queue in self.queues),
            "objects": sum(queue.objects for queue in self.queues),
            "bytes": size_bytes,
            "messages": sum(queue.messages for queue in self.queues),
            "storage_saved_usd_month": prices.price_storage(size_bytes),
            "delete_requests": requests,
            "delete_usd": usd,
            "queues": [
                {
                    **queue.key._asdict(),
                    "segments": queue.segments,
                    "objects": queue.objects,
                    "bytes": queue.size_bytes,
                    "messages": queue.messages,
                }
                for queue in self.queues
            ],
            "problems": [{"path": path, "problem": text} for path, text in self.problems.items()],
            **usage_fields(read_usage(part.provider)),
        }
