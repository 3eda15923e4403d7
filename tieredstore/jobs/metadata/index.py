"""Index segments: whether they are whole, their times, and which topic ids their items have."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.jobs.metadata.queues import FoundQueue
from tieredstore.message.index.tiered import HEADER_SIZE
from tieredstore.scan.catalogue import SegmentExtent
from tieredstore.scan.location import TierLocation
from tieredstore.scan.segments.topic_ids import read_items
from tieredstore.tier.index.uploaded_file import check_whole, header_of

_PROBE = np.dtype([("hash", "<i4"), ("queue_id", "<i4"), ("offset", "<i8"), ("size", "<i4")])
_FIELDS = tuple(_PROBE.names or ())
_MOST_TOPICS = 1 << 24
"""No broker has more topics: an id behind that is of a damaged item."""
Vote = tuple[str, int, int]
"""Topic, an id that items of its messages have, and how many have it."""


@dataclass(frozen=True, slots=True)
class Probes:
    """Keys of messages, to be found in the index. Picklable: rows of hash, queue id, commit log
    offset and size; topic_of: the topic of each, by its number in `topics`."""

    rows: bytes = b""
    topic_of: bytes = b""
    topics: tuple[str, ...] = ()

    @classmethod
    def of(cls, queues: Iterable[FoundQueue]) -> Probes:
        topics: dict[str, int] = {}
        rows: list[tuple[int, int, int, int]] = []
        topic_of: list[int] = []
        for queue in queues:
            number = topics.setdefault(queue.topic, len(topics))
            rows += ((key_hash, queue.queue_id, at, size) for key_hash, at, size in queue.probes)
            topic_of += [number] * len(queue.probes)
        packed = np.array(rows, dtype=_PROBE)
        return cls(packed.tobytes(), np.array(topic_of, dtype="<i4").tobytes(), tuple(topics))

    def places(self) -> tuple[npt.NDArray[np.int32], Mapping[tuple[int, ...], str]]:
        """Return the hashes, sorted, and the topic of each row."""
        rows = np.frombuffer(self.rows, _PROBE)
        numbers = np.frombuffer(self.topic_of, "<i4").tolist()
        topics = (self.topics[number] for number in numbers)
        return np.unique(rows["hash"]), dict(zip(rows.tolist(), topics, strict=True))


@dataclass(frozen=True, slots=True)
class FoundIndex:
    """An index segment. damage: why it is not whole, None if it is. begin and end: of its header,
    epoch ms (0 for an end that Java lost, D6); latest_ms: no message in it is younger; votes: what
    its items say of topics."""

    base_offset: int
    size_bytes: int
    damage: str | None
    begin_ms: int = 0
    end_ms: int = 0
    latest_ms: int = 0
    topic_ids: tuple[int, ...] = ()
    votes: tuple[Vote, ...] = ()


@dataclass(frozen=True, slots=True)
class IndexTask:
    """Index segments to look at, all their items. known_until_ms: no items of those that end before
    that, epoch ms: what they say of topics is known."""

    location: TierLocation
    extents: tuple[SegmentExtent, ...]
    probes: Probes
    known_until_ms: int = 0

    @property
    def key(self) -> str:
        sizes = [(extent.base_offset, extent.size_bytes) for extent in self.extents]
        digest = hashlib.sha256(repr((sizes, self.known_until_ms)).encode())
        for part in (self.probes.rows, self.probes.topic_of, repr(self.probes.topics).encode()):
            digest.update(hashlib.sha256(part).digest())
        return digest.hexdigest()[:24]

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)


class Tally:
    """Counts what items say of the topics of probes."""

    def __init__(self, probes: Probes) -> None:
        self._hashes, self._topics = probes.places()
        self._votes: Counter[tuple[str, int]] = Counter()
        self._topic_ids: set[int] = set()

    def add(self, items: npt.NDArray[np.void]) -> None:
        self._topic_ids.update(np.unique(items["topic_id"]).tolist())
        if not len(self._hashes):
            return
        found = items["hash"].astype(np.int32)
        place = np.minimum(np.searchsorted(self._hashes, found), len(self._hashes) - 1)
        hits = items[self._hashes[place] == found]
        rows = zip(*(hits[name].tolist() for name in _FIELDS), strict=True)
        for row, topic_id in zip(rows, hits["topic_id"].tolist(), strict=True):
            if (topic := self._topics.get(row)) is not None:
                self._votes[topic, topic_id] += 1

    @property
    def topic_ids(self) -> tuple[int, ...]:
        """All that a sound item can have."""
        return tuple(sorted(found for found in self._topic_ids if 0 <= found < _MOST_TOPICS))

    @property
    def votes(self) -> tuple[Vote, ...]:
        return tuple((topic, number, count) for (topic, number), count in self._votes.items())


def find_index(task: IndexTask) -> list[FoundIndex]:
    """Find what the index segments of a task say. Raises Unavailable."""
    provider = task.location.connect()
    try:
        return find_each_index(provider, task.extents, task.probes, task.known_until_ms)
    finally:
        provider.close()


def find_each_index(
    provider: SegmentProvider,
    extents: Iterable[SegmentExtent],
    probes: Probes,
    known_until_ms: int = 0,
) -> list[FoundIndex]:
    """Find what some index segments say of the topics of probes, as `IndexTask` has it. Raises
    Unavailable."""
    return [_find(provider, extent, Tally(probes), known_until_ms) for extent in extents]


def _find(
    provider: SegmentProvider, extent: SegmentExtent, tally: Tally, known_until_ms: int
) -> FoundIndex:
    segment = provider.open(extent.id, extent.listing)
    try:
        if extent.size_bytes <= HEADER_SIZE:
            raise Corrupt(f"{extent.size_bytes} bytes, no more than a header")
        header = header_of(segment, segment.read(0, HEADER_SIZE))
        check_whole(segment, extent.size_bytes, header)
    except Corrupt as error:
        return FoundIndex(extent.base_offset, extent.size_bytes, str(error))
    finally:
        segment.close()
    begin_ms, end_ms = header.begin_timestamp_ms, header.end_timestamp_ms
    if 0 < end_ms < known_until_ms:
        return FoundIndex(extent.base_offset, extent.size_bytes, None, begin_ms, end_ms, end_ms)
    latest_s = 0
    for items in read_items(provider, [extent]):
        tally.add(items)
        latest_s = max(latest_s, int(items["time_diff_seconds"].max()) + 1)
    return FoundIndex(
        extent.base_offset,
        extent.size_bytes,
        None,
        begin_ms,
        end_ms,
        max(end_ms, begin_ms + latest_s * 1000),
        tally.topic_ids,
        tally.votes,
    )


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Topic -> id. assigned: topics that no item of the index names; disputed: topics of which
    items have several ids; highest: of all ids, those of topics that are gone included."""

    ids: Mapping[str, int]
    assigned: tuple[str, ...]
    disputed: tuple[str, ...]
    highest: int


def list_undecided_topics(topics: Iterable[str], found: Sequence[FoundIndex]) -> list[str]:
    """List topics without a vote, while the index has ids that no topic has."""
    voted = {topic for index in found for topic, _, _ in index.votes}
    named = {topic_id for index in found for _, topic_id, _ in index.votes}
    unnamed_ids = {topic_id for index in found for topic_id in index.topic_ids} - named
    return [topic for topic in topics if topic not in voted] if unnamed_ids else []


def topic_ids(
    topics: Iterable[str],
    found: Sequence[FoundIndex],
    former: Mapping[str, int] | None = None,
) -> TopicIds:
    """Choose an id for each topic: the one that most items of its messages have, the younger one of
    two; for the others the one that it had formerly, else ids that no item has, in the order of
    `topics`."""
    former = former or {}
    count: Counter[tuple[str, int]] = Counter()
    for index in found:
        for topic, topic_id, votes in index.votes:
            count[topic, topic_id] += votes
    ids: dict[str, int] = {}
    taken: set[int] = set()
    for topic, topic_id in sorted(count, key=lambda key: (count[key], key[1]), reverse=True):
        if topic not in ids and topic_id not in taken:
            ids[topic] = topic_id
            taken.add(topic_id)
    ballots = Counter(topic for topic, _ in count)
    highest = max((topic_id for index in found for topic_id in index.topic_ids), default=-1)
    highest = max(highest, *former.values()) if former else highest
    topics = list(topics)
    for topic in topics:
        topic_id = former.get(topic, -1)
        if topic not in ids and topic_id >= 0 and topic_id not in taken:
            ids[topic] = topic_id
            taken.add(topic_id)
    assigned = []
    for topic in topics:
        if topic not in ids:
            highest += 1
            ids[topic] = highest
            assigned.append(topic)
    disputed = tuple(topic for topic, several in ballots.items() if several > 1)
    return TopicIds(ids, tuple(assigned), disputed, highest)
