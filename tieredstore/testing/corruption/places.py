"""Positions and descriptions of planted damage (see `corruption`)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Invalid
from tieredstore.message.index import tiered
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.testing.corruption.image import INDEX, StoredAt, TierImage


@dataclass(frozen=True, slots=True)
class ItemAt:
    """Item of an index segment, with its message if the tier has it."""

    segment: SegmentId
    position: int
    slot_position: int
    message: StoredAt | None


@dataclass(frozen=True, slots=True)
class Planted:
    """Planted damage and the finding that must report it. `finding`: kind of the finding.
    `segment`, `position`, `queue_offset`: location of the damage, or None if not applicable.
    `also`: kinds of other findings that the damage may cause, about the messages at `offsets` of
    the queue `path`."""

    kind: str
    finding: str
    segment: SegmentId | None
    position: int | None
    queue_offset: int | None = None
    path: str | None = None
    offsets: frozenset[int] = frozenset()
    also: frozenset[str] = frozenset()


@dataclass(slots=True)
class Places:
    """Chooses positions for damage in an intact image. The same seed gives the same positions. Each
    message is damaged at most once. A queue or index segment with damage to a whole segment gets no
    other damage."""

    image: TierImage
    seed: int
    _random: random.Random = field(init=False)
    _sound: dict[SegmentId, memoryview] = field(init=False)
    messages: dict[str, list[StoredAt]] = field(init=False)
    items: list[ItemAt] = field(init=False)
    _whole: set[str | SegmentId] = field(default_factory=set)
    """Queues and index segments that have damage to a whole segment, and so get no other damage."""
    _needed: set[SegmentId] = field(default_factory=set)
    """Index segments that must stay intact, because the detection of other planted damage needs
    them."""
    _touched: set[tuple[str, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311 places, no secrets
        self._sound = {
            one: memoryview(bytes(data))
            for one, data in self.image.segments.items()
            if one.type is not INDEX
        }
        paths = sorted({one.path for one in self.image.segments if one.type is not INDEX})
        self.messages = {path: self.image.messages(path) for path in paths}
        self.items = list(self._find_items())

    def _find_items(self) -> Iterator[ItemAt]:
        topics = {topic.topic_id: name for name, topic in self.image.topics.items()}
        places = {
            (path, message.offset): message
            for path, messages in self.messages.items()
            for message in messages
        }
        for one in sorted(self.image.segments, key=lambda one: (one.path, one.base_offset)):
            data = bytes(self.image.segments[one])
            if one.type is not INDEX or not data:
                continue
            broker = one.path.split("/", 1)[0]
            header = tiered.unpack_header(data)
            slots = tiered.infer_slots(len(data), header.items) or 0
            start = tiered.HEADER_SIZE + slots * tiered.SLOT_SIZE
            for number, item in enumerate(np.frombuffer(data[start:], tiered.COMPACTED_ITEM_DTYPE)):
                path = f"{broker}/{topics.get(int(item['topic_id']))}/{int(item['queue_id'])}"
                message = places.get((path, int(item["offset"])))
                position = start + number * tiered.COMPACTED_ITEM_SIZE
                slot = tiered.HEADER_SIZE + int(item["hash"]) % slots * tiered.SLOT_SIZE
                yield ItemAt(one, position, slot, message)

    # Places

    def message(self, wanted: Callable[[StoredAt], bool] = lambda _: True) -> StoredAt:
        """Choose an undamaged message whose neighbours are undamaged too."""
        found = [
            one
            for path, messages in self.messages.items()
            if path not in self._whole
            for one in messages
            if not any((path, one.queue_offset + d) in self._touched for d in (-1, 0, 1))
            and wanted(one)
        ]
        if not found:
            raise Invalid("no message is left for this damage")
        chosen = self._random.choice(found)
        self.touch(chosen)
        return chosen

    def record(self, message: StoredAt) -> StoredMessage:
        """Return the original record of a message."""
        return decode_record(self._sound[message.log], message.position)

    def need(self, one: SegmentId) -> None:
        """Protect an index segment from later damage."""
        self._needed.add(one)

    def touch(self, message: StoredAt) -> None:
        self._touched.add((message.path, message.queue_offset))

    def segment(
        self, type: FileSegmentType, wanted: Callable[[SegmentId], bool] = lambda _: True
    ) -> SegmentId:
        """Choose a segment in a queue without damage. An index segment only has to be undamaged
        itself."""
        used = {path for path, _ in self._touched} | self._whole | self._needed
        found = [
            one
            for one in sorted(self.image.segments, key=lambda one: (one.path, one.base_offset))
            if one.type is type
            and self.image.segments[one]
            and (one if type is INDEX else one.path) not in used
            and wanted(one)
        ]
        if not found:
            raise Invalid(f"no {type.name} segment is left for this damage")
        chosen = self._random.choice(found)
        self._whole.add(chosen if type is INDEX else chosen.path)
        return chosen

    def item(self, wanted: Callable[[ItemAt], bool] = lambda _: True) -> ItemAt:
        """Choose an item of an undamaged message, in an undamaged index segment."""
        found = [
            item
            for item in self.items
            if item.segment not in self._whole | self._needed
            and item.message is not None
            and item.message.path not in self._whole
            and (item.message.path, item.message.queue_offset) not in self._touched
            and wanted(item)
        ]
        if not found:
            raise Invalid("no index item is left for this damage")
        chosen = self._random.choice(found)
        self._whole.add(chosen.segment)
        if chosen.message is not None:
            self.touch(chosen.message)
        return chosen

    def flip(self, one: SegmentId, position: int, mask: int = 0) -> None:
        """Invert the bits of `mask` in the byte at `position`. Without a mask, invert a random
        bit."""
        self.image.segments[one][position] ^= mask or 1 << self._random.randrange(8)

    def is_whole(self, place: str | SegmentId) -> bool:
        """Return whether a queue or index segment has damage to a whole segment."""
        return place in self._whole

    def sample(self, names: list[str], count: int) -> list[str]:
        return self._random.sample(names, count)

    def choose_between(self, low: int, high: int) -> int:
        return self._random.randrange(low, high)

    def neighbour(self, message: StoredAt, distance: int) -> StoredAt | None:
        """Find another message of the same queue, in the same commit log segment."""
        for other in self.messages[message.path]:
            if other.queue_offset == message.queue_offset + distance:
                return other if other.log == message.log else None
        return None
