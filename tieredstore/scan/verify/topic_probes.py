"""Keys of a few messages of each queue (probes), for finding topic ids in the index. Without a
state directory, the topic ids of a tier are unknown, and trying each topic for each id would take
quadratic time. If an index item has the key and position of a probe, it has the id of the probe's
topic."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tieredstore.message.columns.records import RecordColumns, keys_to_index
from tieredstore.message.hashes import tiered_key_hash_candidates

Probe = tuple[int, int, int]
"""Probe: hash of a message's key, and commit log offset and size (bytes) of the message."""
_A_BATCH = 4
_ROW = np.dtype(
    [("hash", "<i4"), ("queue_id", "<i4"), ("offset", "<i8"), ("size", "<i4"), ("topic", "<i4")]
)
_PLACE = ("hash", "queue_id", "offset", "size")


def make_probes(
    topic: str, buffer: memoryview, base_offset: int, columns: RecordColumns, rows: range
) -> Iterator[Probe]:
    """Yield probes of some of the messages `rows`, including the first and the last. `base_offset`:
    offset of the buffer in the queue's log."""
    last = len(rows) - 1
    for step in sorted({last * step // (_A_BATCH - 1) for step in range(_A_BATCH)}):
        row = rows[step]
        start, length = columns.properties_offsets[row], columns.properties_lengths[row]
        for key in keys_to_index(bytes(buffer[start : start + length]))[:1]:
            offset, size = base_offset + int(columns.positions[row]), int(columns.sizes[row])
            for key_hash in tiered_key_hash_candidates(topic, key):
                yield key_hash, offset, size


@dataclass(frozen=True, slots=True)
class TopicProbes:
    """Probes of the queues of one broker, picklable. `rows` has the probes, `topics` the names of
    their topics."""

    rows: bytes = b""
    topics: tuple[str, ...] = ()

    @classmethod
    def of(cls, probes: Iterable[tuple[str, int, Probe]]) -> TopicProbes:
        """Create the object from probes with their topics and queue ids."""
        topics: dict[str, int] = {}
        rows = [
            (key_hash, queue_id, offset, size, topics.setdefault(topic, len(topics)))
            for topic, queue_id, (key_hash, offset, size) in probes
        ]
        return cls(np.array(rows, dtype=_ROW).tobytes(), tuple(topics))

    def find_topics(self, items: npt.NDArray[np.void]) -> dict[int, str]:
        """Find the topic of each topic id in these index items. The most frequent id in the items
        of a topic wins. A topic with a tie is omitted."""
        votes = TopicVotes(self)
        votes.add(items)
        ids: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for (topic, topic_id), count in votes.counts.items():
            ids[topic].append((count, topic_id))
        chosen: dict[int, str] = {}
        for topic, counts in sorted(ids.items(), key=lambda pair: max(pair[1]), reverse=True):
            (most, topic_id), *others = sorted(counts, reverse=True)
            if not (others and others[0][0] == most):
                chosen.setdefault(topic_id, topic)
        return chosen


class TopicVotes:
    """Counts the index items that match probes. `counts`: number of items by topic of the probe and
    topic id of the item."""

    def __init__(self, probes: TopicProbes) -> None:
        rows = np.frombuffer(probes.rows, _ROW)
        self._hashes = np.unique(rows["hash"])
        names = (probes.topics[number] for number in rows["topic"].tolist())
        self._topic_of = dict(zip(rows[list(_PLACE)].tolist(), names, strict=True))
        self.counts: Counter[tuple[str, int]] = Counter()

    def add(self, items: npt.NDArray[np.void]) -> None:
        if not len(self._hashes):
            return
        found = items["hash"].astype(np.int32)
        place = np.minimum(np.searchsorted(self._hashes, found), len(self._hashes) - 1)
        hits = items[self._hashes[place] == found]
        places = zip(*(hits[name].tolist() for name in _PLACE), strict=True)
        for named, topic_id in zip(places, hits["topic_id"].tolist(), strict=True):
            if (topic := self._topic_of.get(named)) is not None:
                self.counts[topic, topic_id] += 1
