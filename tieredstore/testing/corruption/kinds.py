"""Kinds of damage that `corruption` can plant, with a function for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from tieredstore.contracts.segment import SegmentId
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.message.hashes import tiered_key_hash
from tieredstore.message.index.tiered import COMPACTED_ITEM_SIZE
from tieredstore.message.properties import find_property
from tieredstore.testing.corruption.image import INDEX, LOG, UNITS, StoredAt
from tieredstore.testing.corruption.places import ItemAt, Places, Planted

_PAGE_BYTES = 4096
_OF_ITEMS: Final = frozenset({"index-item"})
_OF_UNITS: Final = frozenset({"unit-overlap", "record-size", "record-queue-offset"})
_OF_LOST: Final = frozenset({"index-item", "record-missing", "segment-truncated"})
_OF_SLOTS: Final = frozenset({"index-item", "index-slot", "index-header"})


def _make_planted(
    kind: str,
    finding: str,
    segment: SegmentId | None,
    position: int | None,
    message: StoredAt | None = None,
    *,
    also: frozenset[str] = frozenset(),
    offsets: Iterable[int] = (),
) -> Planted:
    touched = set(offsets)
    path = None if segment is None else segment.path
    if message is not None:
        path = message.path
        touched.add(message.queue_offset)
    queue_offset = None if message is None else message.queue_offset
    return Planted(kind, finding, segment, position, queue_offset, path, frozenset(touched), also)


# Records


def _header_field(kind: str, finding: str, field: int, size: int) -> Callable[[Places], Planted]:
    """Return a function that damages one byte of a field in a record's header."""

    def plant(places: Places) -> Planted:
        message = places.message()
        places.flip(message.log, message.position + field + places.choose_between(0, size))
        at = message.position + field
        return _make_planted(kind, finding, message.log, at, message, also=_OF_ITEMS)

    return plant


def _body_bit(places: Places) -> Planted:
    message = places.message(lambda one: places.record(one).sections.body_length > 0)
    sections = places.record(message).sections
    at = sections.body_offset + places.choose_between(0, sections.body_length)
    places.flip(message.log, at)
    return _make_planted("body-bit", "record-body-crc", message.log, message.position + 8, message)


def _property_at(places: Places, message: StoredAt, name: bytes) -> tuple[int, bytes] | None:
    """Return the position of a property's value in the commit log segment, and the value."""
    record = places.record(message)
    value = find_property(record.properties_bytes, name)
    if value is None or not value.isalnum():
        return None
    at = record.properties_bytes.rindex(name + b"\x01" + value) + len(name) + 1
    return record.sections.properties_offset + at, value


def _tags_bit(places: Places) -> Planted:
    message = places.message(lambda one: _property_at(places, one, b"TAGS") is not None)
    found = _property_at(places, message, b"TAGS")
    assert found is not None
    places.flip(message.log, found[0] + places.choose_between(0, len(found[1])), 1)
    at = message.unit_position + 12
    return _make_planted("tags-bit", "unit-tags-code", message.units, at, message)


def _key_bit(places: Places) -> Planted:
    def item_of(one: StoredAt) -> ItemAt | None:
        found = _property_at(places, one, b"UNIQ_KEY")
        if found is None:
            return None
        key_hash = tiered_key_hash(one.path.split("/")[1], found[1].decode())
        return next(
            (item for item in items.get(one, ()) if _hash_of(places, item) == key_hash), None
        )

    items: dict[StoredAt, list[ItemAt]] = {}
    for known in places.items:
        if known.message is not None and not places.is_whole(known.segment):
            items.setdefault(known.message, []).append(known)
    message = places.message(lambda one: item_of(one) is not None)
    item, found = item_of(message), _property_at(places, message, b"UNIQ_KEY")
    assert item is not None and found is not None  # noqa: PT018
    places.flip(message.log, found[0] + places.choose_between(0, len(found[1])), 1)
    places.need(item.segment)
    planted = _make_planted("key-bit", "index-item", item.segment, item.position)
    return replace(planted, path=message.path, offsets=frozenset({message.queue_offset}))


def _hash_of(places: Places, item: ItemAt) -> int:
    data = places.image.segments[item.segment]
    return int.from_bytes(data[item.position : item.position + 4], "big", signed=True)


def _topic_bit(places: Places) -> Planted:
    message = places.message()
    sections = places.record(message).sections
    at = sections.topic_offset
    places.flip(message.log, at + places.choose_between(0, sections.topic_length))
    return _make_planted("topic", "record-topic", message.log, at, message, also=_OF_ITEMS)


def _body_length(places: Places) -> Planted:
    message = places.message()
    places.flip(message.log, places.record(message).sections.body_offset - 4, 0x40)
    return _make_planted(
        "body-length", "record-structure", message.log, message.position, message, also=_OF_ITEMS
    )


def _older_record(places: Places) -> Planted:
    def older(one: StoredAt) -> StoredAt | None:
        return next(
            (
                other
                for other in places.messages[one.path]
                if other.size == one.size and other.queue_offset < one.queue_offset
            ),
            None,
        )

    message = places.message(lambda one: older(one) is not None)
    other = older(message)
    assert other is not None
    data = places.image.segments[other.log][other.position : other.position + other.size]
    places.image.segments[message.log][message.position : message.position + message.size] = data
    at = message.position + 20
    return _make_planted(
        "record-overwritten", "record-queue-offset", message.log, at, message, also=_OF_ITEMS
    )


# Commit log segments


def _in_segment(places: Places, segment: SegmentId) -> list[StoredAt]:
    return [one for one in places.messages[segment.path] if one.log == segment]


def _log_truncated(places: Places) -> Planted:
    segment = places.segment(LOG)
    messages = _in_segment(places, segment)
    first = places.choose_between(0, len(messages))
    message = messages[first]
    cut = message.position + places.choose_between(1, message.size)
    del places.image.segments[segment][cut:]
    lost = (one.queue_offset for one in messages[first:])
    return _make_planted(
        "log-truncated", "record-missing", message.units, message.unit_position, message,
        also=_OF_LOST, offsets=lost,
    )  # fmt: skip


def _log_missing(places: Places) -> Planted:
    segment = places.segment(LOG)
    del places.image.segments[segment]
    lost = [one.queue_offset for one in _in_segment(places, segment)]
    return _make_planted(
        "log-missing", "segment-missing", segment, None, also=_OF_LOST, offsets=lost
    )


def _zeroed_page(places: Places) -> Planted:
    segment = places.segment(LOG)
    messages = _in_segment(places, segment)
    message = messages[places.choose_between(0, len(messages))]
    data = places.image.segments[segment]
    end = min(message.position + _PAGE_BYTES, len(data))
    data[message.position : end] = bytes(end - message.position)
    touched = (one.queue_offset for one in messages if message.position <= one.position < end)
    also = frozenset(
        {
            "record-magic", "record-size", "record-body-crc", "record-structure", "record-topic",
            "record-queue-id", "record-queue-offset", "record-physical-offset", "unit-tags-code",
            "index-item",
        }
    )  # fmt: skip
    return _make_planted(
        "zeroed-page", "record-magic", segment, message.position + 4, message, also=also,
        offsets=touched,
    )  # fmt: skip


def _log_grown(places: Places) -> Planted:
    def has_next(segment: SegmentId) -> bool:
        return places.image.list_segments(segment.path, LOG)[-1] != segment

    segment = places.segment(LOG, has_next)
    size = len(places.image.segments[segment])
    places.image.segments[segment] += bytes(places.choose_between(1, 1000))
    return _make_planted("log-grown", "segment-overlap", segment, size)


# Consume queues


def _set_unit(places: Places, message: StoredAt, field: int, value: int, size: int) -> None:
    at = message.unit_position + field
    data = value.to_bytes(size, "big", signed=True)
    places.image.segments[message.units][at : at + size] = data


def _unit_elsewhere(places: Places) -> Planted:
    message = places.message(lambda one: places.neighbour(one, -1) is not None)
    other = places.neighbour(message, -1)
    assert other is not None
    _set_unit(places, message, 0, other.offset, 8)
    return _of_other("unit-elsewhere", message, other)


def _of_other(kind: str, message: StoredAt, other: StoredAt) -> Planted:
    """Describe damage in which the unit of a message points to another record."""
    is_sized = message.size == other.size or kind == "units-swapped"
    finding, field = ("record-queue-offset", 20) if is_sized else ("record-size", 0)
    at = other.position + field
    return _make_planted(kind, finding, message.log, at, message, also=_OF_UNITS)


def _units_swapped(places: Places) -> Planted:
    message = places.message(lambda one: places.neighbour(one, 1) is not None)
    other = places.neighbour(message, 1)
    assert other is not None
    places.touch(other)
    data, at = places.image.segments[message.units], message.unit_position
    first, second = data[at : at + UNIT_SIZE], data[at + UNIT_SIZE : at + 2 * UNIT_SIZE]
    data[at : at + 2 * UNIT_SIZE] = second + first
    planted = _of_other("units-swapped", message, other)
    return replace(planted, offsets=planted.offsets | {other.queue_offset})


def _unit_size(places: Places) -> Planted:
    message = places.message(lambda one: places.neighbour(one, 1) is not None)
    _set_unit(places, message, 8, message.size + 1, 4)
    return _make_planted("unit-size", "record-size", message.log, message.position, message)


def _unit_tags(places: Places) -> Planted:
    message = places.message()
    places.flip(message.units, message.unit_position + 12 + places.choose_between(0, 8))
    at = message.unit_position + 12
    return _make_planted("unit-tags", "unit-tags-code", message.units, at, message)


def _units_torn(places: Places) -> Planted:
    segment = places.segment(
        UNITS, lambda one: places.image.list_segments(one.path, UNITS)[-1] == one
    )
    data = places.image.segments[segment]
    cut = places.choose_between(len(data) // UNIT_SIZE // 2, len(data) // UNIT_SIZE) * UNIT_SIZE
    del data[cut + places.choose_between(1, UNIT_SIZE) :]
    return _make_planted(
        "units-torn", "unit-torn", segment, cut, also=frozenset({"segment-truncated"})
    )


def _units_missing(places: Places) -> Planted:
    segment = places.segment(UNITS)
    del places.image.segments[segment]
    lost = [one.queue_offset for one in places.messages[segment.path] if one.units == segment]
    also = frozenset({"units-missing"})
    return _make_planted("units-missing", "segment-missing", segment, None, also=also, offsets=lost)


# Index segments


def _index_count(places: Places) -> Planted:
    segment = places.segment(INDEX)
    places.flip(segment, 27, 1)
    return _make_planted("index-count", "index-header", segment, 24)


def _index_used(places: Places) -> Planted:
    segment = places.segment(INDEX)
    places.flip(segment, 23)
    return _make_planted("index-used", "index-header", segment, 20)


def _slot_length(places: Places) -> Planted:
    item = places.item()
    places.flip(item.segment, item.slot_position + 7, 1)
    at = item.slot_position + 4
    return _make_planted("slot-length", "index-slot", item.segment, at, also=_OF_SLOTS)


def _slot_position(places: Places) -> Planted:
    item = places.item()
    places.flip(item.segment, item.slot_position + places.choose_between(0, 4))
    return _make_planted(
        "slot-position", "index-slot", item.segment, item.slot_position, also=_OF_SLOTS
    )


def _item_field(kind: str, field: int, byte: int, at: int) -> Callable[[Places], Planted]:
    def plant(places: Places) -> Planted:
        item = places.item()
        places.flip(item.segment, item.position + field + byte, 1)
        return _make_planted(kind, "index-item", item.segment, item.position + at)

    return plant


def _item_missing(places: Places) -> Planted:
    item = places.item()
    del places.image.segments[item.segment][item.position : item.position + COMPACTED_ITEM_SIZE]
    also = frozenset({"segment-truncated"})
    return _make_planted("item-missing", "index-header", item.segment, 24, also=also)


# Metadata


def _metadata_size(places: Places) -> Planted:
    segment = places.segment(LOG)
    places.image.entries[segment].size += places.choose_between(1, 1 << 20)
    size = len(places.image.segments[segment])
    return _make_planted("metadata-size", "segment-truncated", segment, size)


def _metadata_time(places: Places) -> Planted:
    segment = places.segment(LOG)
    places.image.entries[segment].end_timestamp_ms += places.choose_between(1, 1 << 30)
    return _make_planted("metadata-time", "metadata-time", segment, None)


def _metadata_lacks(places: Places) -> Planted:
    def is_known_from_zero(segment: SegmentId) -> bool:
        # Without the only segment, the end of the expired messages is unknown.
        return places.image.list_segments(segment.path, LOG)[0].base_offset == 0

    segment = places.segment(LOG, is_known_from_zero)
    del places.image.entries[segment]
    lost = [one.queue_offset for one in _in_segment(places, segment)]
    also = _OF_LOST | {"record-expired"}
    return _make_planted(
        "metadata-lacks", "segment-unknown", segment, None, also=also, offsets=lost
    )


def _metadata_invents(places: Places) -> Planted:
    segment = places.segment(LOG)
    last = places.image.list_segments(segment.path, LOG)[-1]
    base = last.base_offset + len(places.image.segments[last])
    invented = replace(last, base_offset=base)
    entry = replace(places.image.entries[last], base_offset=base)
    places.image.entries[invented] = entry
    return _make_planted("metadata-invents", "segment-missing", invented, None)


def _topic_id(places: Places) -> Planted:
    names = sorted(places.image.topics)
    first, second = places.sample(names, 2)
    places.image.topics[first].topic_id = places.image.topics[second].topic_id
    return _make_planted("topic-id", "metadata-topic-id", None, None, also=_OF_ITEMS)


def _stray_segment(places: Places) -> Planted:
    segment = places.segment(LOG)
    last = places.image.list_segments(segment.path, LOG)[-1]
    base = last.base_offset + len(places.image.segments[last]) + places.choose_between(1, 1 << 20)
    stray = replace(last, base_offset=base)
    places.image.segments[stray] = bytearray(places.choose_between(1, 1000))
    return _make_planted("stray-segment", "segment-unknown", stray, None)


KINDS: Final[dict[str, Callable[[Places], Planted]]] = {
    "record-size": _header_field("record-size", "record-size", 0, 4),
    "magic": _header_field("magic", "record-magic", 4, 4),
    "body-crc": _header_field("body-crc", "record-body-crc", 8, 4),
    "queue-id": _header_field("queue-id", "record-queue-id", 12, 4),
    "queue-offset": _header_field("queue-offset", "record-queue-offset", 20, 8),
    "physical-offset": _header_field("physical-offset", "record-physical-offset", 28, 8),
    "body-bit": _body_bit,
    "tags-bit": _tags_bit,
    "key-bit": _key_bit,
    "topic": _topic_bit,
    "body-length": _body_length,
    "record-overwritten": _older_record,
    "log-truncated": _log_truncated,
    "log-missing": _log_missing,
    "zeroed-page": _zeroed_page,
    "log-grown": _log_grown,
    "unit-elsewhere": _unit_elsewhere,
    "units-swapped": _units_swapped,
    "unit-size": _unit_size,
    "unit-tags": _unit_tags,
    "units-torn": _units_torn,
    "units-missing": _units_missing,
    "index-count": _index_count,
    "index-used": _index_used,
    "slot-length": _slot_length,
    "slot-position": _slot_position,
    "item-place": _item_field("item-place", 12, 7, 12),
    "item-hash": _item_field("item-hash", 0, 3, 0),
    "item-time": _item_field("item-time", 24, 2, 24),
    "item-missing": _item_missing,
    "metadata-size": _metadata_size,
    "metadata-time": _metadata_time,
    "metadata-lacks": _metadata_lacks,
    "metadata-invents": _metadata_invents,
    "topic-id": _topic_id,
    "stray-segment": _stray_segment,
}
"""Functions that plant damage, by kind."""
