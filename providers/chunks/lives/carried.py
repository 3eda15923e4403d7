"""Units of a consume queue that are in the writes of their messages (`docs/formats/chunk-log.md`).

The commit log of a queue is listed before its consume queue, and such a write is deleted only after
an object of the consume queue holds its units: so who lists both in this order misses none.
"""

from __future__ import annotations

from collections.abc import Iterable

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.providers.chunks.client import ObjectInfo
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.names import (
    CarriedUnits,
    make_carried_name,
    parse_object_name,
)


def find_carried(
    objects: Iterable[ObjectInfo], queue_folder: str, path: str
) -> dict[SegmentId, list[Extent]]:
    """Find the units that objects of a queue's commit log carry: for each segment of its consume
    queue the extents, in no order. Each object counts once, however often it is listed.

    path: logical path of the queue. Objects that have not the length of their name, and all others,
    are left alone.
    """
    found: dict[SegmentId, dict[str, Extent]] = {}
    for info in objects:
        carrier = info.key.removeprefix(f"{queue_folder}/")
        name = parse_object_name(carrier.split("/", 2)[-1])
        if name is None or name.units is None or name.size_bytes != info.size_bytes:
            continue
        units = SegmentId(path, FileSegmentType.CONSUME_QUEUE, name.units.base_offset)
        extent = make_carried_extent(name.units, carrier, name.end - name.start, info.modified_ms)
        found.setdefault(units, {})[carrier] = extent
    return {units: list(extents.values()) for units, extents in found.items()}


def make_carried_extent(
    units: CarriedUnits, carrier: str, log_bytes: int, modified_ms: int
) -> Extent:
    """Return what units are in the chain of their segment. carrier: the name of their object from
    the queue's folder on, in which they come behind `log_bytes` of messages."""
    name = make_carried_name(units.life, carrier)
    return Extent(units.start, units.end, name, modified_ms, log_bytes)
