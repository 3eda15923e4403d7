"""What a verb of an operator takes out of a tier, in segments, objects, bytes and money."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.segment import SegmentId, SegmentListing, SegmentProvider
from tieredstore.contracts.usage import MeteredProvider, Prices, read_usage, usage_fields
from tieredstore.contracts.wrapping import find_layer
from tieredstore.jobs.operating.part import TierPart
from tieredstore.jobs.reporting.costs import deletion_cost


@dataclass(slots=True)
class QueueEffect:
    """segments: what goes, whole; messages: how many can be read no more; objects and size_bytes:
    of the segments, as the tier has them. An object that several queues share stays until all of
    it is gone."""

    key: QueueKey
    segments: int = 0
    objects: int = 0
    size_bytes: int = 0
    messages: int = 0


@dataclass(slots=True)
class Effect:
    """What goes, by queue; problems: what is wrong with a queue that was left out, by path."""

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
        """Add segments of a queue. One that the tier does not have is an entry of the metadata."""
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
        """Make the JSON report (`docs/cli.md`). Money is what an object store asks for it by the
        configured prices, or by those of S3 where the tier is elsewhere; requests: what this run
        itself took."""
        prices = _find_prices(part.provider)
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
                    "topic": queue.key.topic,
                    "queue_id": queue.key.queue_id,
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


def _find_prices(provider: SegmentProvider) -> Prices:
    metered = find_layer(provider, MeteredProvider)
    return metered.prices if metered is not None else Prices()
