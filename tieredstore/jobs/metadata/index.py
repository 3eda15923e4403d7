"""Examination of index segments: completeness, store times, and topic ids."""

from __future__ import annotations

import hashlib
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import FileSegment, SegmentProvider
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.errors import Corrupt
from tieredstore.jobs.metadata.queues import FoundQueue, find_each_queue
from tieredstore.jobs.restoring.backups import find_former_metadata
from tieredstore.message.index import tiered
from tieredstore.message.index.first_design import first_design_size, view_first_design_items
from tieredstore.scan.catalogue import QueueFiles, SegmentExtent
from tieredstore.scan.location import TierLocation
from tieredstore.scan.verify.topic_probes import TopicProbes, TopicVotes
from tieredstore.tier.deleted.records import DeletedTopic, find_known_records
from tieredstore.tier.index.uploaded_file import check_whole, header_of
from tieredstore.tier.index.watermarks import find_capacity, load_file_states
from tieredstore.tier.lite.runs import load_runs

_ITEMS_AT_ONCE = 1 << 16
SPREAD = 32
"""Number of messages of a queue to look up if the messages at its ends are not in the index."""
_MOST_TOPICS = 1 << 24
"""Maximum number of topics of a broker. An item with a higher id is damaged."""
Vote = tuple[str, int, int]
"""Topic, topic id, and number of items of this topic's messages with this id in an index file."""


@dataclass(frozen=True, slots=True)
class FoundIndex:
    """Index segment. `damage`: reason why it is incomplete, or None. `begin_ms`, `end_ms`: times in
    the header, epoch ms (0 for an end that Java lost, D6). `latest_ms`: upper bound of the store
    times of the items. `votes`: topic ids in the items."""

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
    """Task that searches index segments. `known_until_ms`: epoch ms. Only the headers of segments
    that end earlier are read, because they have no messages of new topics."""

    location: TierLocation
    extents: tuple[SegmentExtent, ...]
    probes: TopicProbes
    known_until_ms: int = 0

    @property
    def key(self) -> str:
        sizes = [(extent.base_offset, extent.size_bytes) for extent in self.extents]
        digest = hashlib.sha256(repr((sizes, self.known_until_ms, self.probes.topics)).encode())
        digest.update(self.probes.rows)
        return digest.hexdigest()[:24]

    @property
    def size_bytes(self) -> int:
        return sum(extent.size_bytes for extent in self.extents)


class Tally:
    """Counts of the topic ids in the items of an index file, and votes for the topics of probes."""

    def __init__(self, probes: TopicProbes) -> None:
        self._votes = TopicVotes(probes)
        self._topic_ids: set[int] = set()

    def add(self, items: npt.NDArray[np.void]) -> None:
        self._topic_ids.update(np.unique(items["topic_id"]).tolist())
        self._votes.add(items)

    @property
    def topic_ids(self) -> tuple[int, ...]:
        """Return the topic ids in the items, without impossible ones from damaged items."""
        return tuple(sorted(found for found in self._topic_ids if 0 <= found < _MOST_TOPICS))

    @property
    def votes(self) -> tuple[Vote, ...]:
        counts = self._votes.counts.items()
        return tuple((topic, number, count) for (topic, number), count in counts)


def pack_probes(queues: Iterable[FoundQueue]) -> TopicProbes:
    """Return the keys of the queues' probes, for searching the index for topic ids."""
    return TopicProbes.of((q.topic, q.queue_id, probe) for q in queues for probe in q.probes)


def find_index(task: IndexTask) -> list[FoundIndex]:
    """Search the index segments of a task. Raises Unavailable."""
    with closing(task.location.connect()) as provider:
        return find_each_index(provider, task.extents, task.probes, task.known_until_ms)


def find_each_index(
    provider: SegmentProvider,
    extents: Iterable[SegmentExtent],
    probes: TopicProbes,
    known_until_ms: int = 0,
) -> list[FoundIndex]:
    """Search index segments for the topics of probes. Raises Unavailable."""
    return [_find(provider, extent, Tally(probes), known_until_ms) for extent in extents]


def _find(
    provider: SegmentProvider, extent: SegmentExtent, tally: Tally, known_until_ms: int
) -> FoundIndex:
    base, size = extent.base_offset, extent.size_bytes
    with closing(provider.open(extent.id, extent.listing)) as segment:
        try:
            if size <= tiered.HEADER_SIZE:
                raise Corrupt(f"{size} bytes, no more than a header")
            header = header_of(segment, segment.read(0, tiered.HEADER_SIZE))
            check_whole(segment, size, header)
        except Corrupt as error:
            return FoundIndex(base, size, str(error))
        begin_ms, end_ms = header.begin_timestamp_ms, header.end_timestamp_ms
        if 0 < end_ms < known_until_ms:
            return FoundIndex(base, size, None, begin_ms, end_ms, end_ms)
        latest_s = 0
        with suppress(Corrupt):
            for items in read_items(segment, size, header.items):
                tally.add(items)
                latest_s = max(latest_s, int(items["time_diff_seconds"].max()) + 1)
    latest_ms = max(end_ms, begin_ms + latest_s * 1000)
    found = (tally.topic_ids, tally.votes)
    return FoundIndex(base, size, None, begin_ms, end_ms, latest_ms, *found)


def read_items(segment: FileSegment, size_bytes: int, count: int) -> Iterator[npt.NDArray[np.void]]:
    slots = tiered.infer_slots(tiered.find_content_end(size_bytes, count, segment.read), count)
    for first in range(0, 0 if slots is None else count, _ITEMS_AT_ONCE):
        length = min(_ITEMS_AT_ONCE, count - first) * tiered.COMPACTED_ITEM_SIZE
        data = segment.read(tiered.compacted_size(slots or 0, first), length)
        yield np.frombuffer(data, tiered.COMPACTED_ITEM_DTYPE)


@dataclass(frozen=True, slots=True)
class TopicIds:
    """Topic ids by topic. `assigned`: topics without an item in the index. `disputed`: topics whose
    items have several ids. `highest`: highest id, including deleted topics."""

    ids: Mapping[str, int]
    assigned: tuple[str, ...]
    disputed: tuple[str, ...]
    highest: int


def list_undecided_topics(topics: Iterable[str], found: Sequence[FoundIndex]) -> list[str]:
    """Return the topics whose messages were not found in the index. Return none if every id in the
    index belongs to a known topic."""
    voted = {topic for index in found for topic, _, _ in index.votes}
    named = {topic_id for index in found for _, topic_id, _ in index.votes}
    unnamed_ids = {topic_id for index in found for topic_id in index.topic_ids} - named
    return [topic for topic in topics if topic not in voted] if unnamed_ids else []


def topic_ids(
    topics: Iterable[str],
    found: Sequence[FoundIndex],
    former: Mapping[str, int] | None = None,
    deleted: Mapping[str, DeletedTopic] | None = None,
) -> TopicIds:
    """Choose an id for each topic: the most frequent id in the items of its messages, or the newer
    one after a tie. Other topics keep their former id or get unused ids, in the order of `topics`.
    `deleted`: topics whose former ids do not count."""
    deleted = deleted or {}
    least = {topic: record.next_id for topic, record in deleted.items()}
    former = {
        topic: topic_id
        for topic, topic_id in (former or {}).items()
        if topic_id >= least.get(topic, 0)
    }
    count: Counter[tuple[str, int]] = Counter()
    for index in found:
        for topic, topic_id, votes in index.votes:
            if topic_id >= least.get(topic, 0):
                count[topic, topic_id] += votes
    ids: dict[str, int] = {}
    taken: set[int] = set()
    for topic, topic_id in sorted(count, key=lambda key: (count[key], key[1]), reverse=True):
        if topic not in ids and topic_id not in taken:
            ids[topic] = topic_id
            taken.add(topic_id)
    ballots = Counter(topic for topic, _ in count)
    highest = max((topic_id for index in found for topic_id in index.topic_ids), default=-1)
    highest = max([highest, *former.values(), *least.values()])
    topics = list(topics)
    former = least | former
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


_FOLDER = "tiered_index_file"


def find_unsealed(state: Path, config: StoreConfig, probes: TopicProbes) -> Iterator[FoundIndex]:
    """Yield the topic ids in each unsealed index file. A file is skipped if its capacity is
    unknown: its size fits neither the recorded capacity, nor the configuration, nor Java's
    defaults. Raises Unavailable."""
    configured = config.index_file_max_hash_slot_num, config.index_file_max_index_num
    states = load_file_states(state / _FOLDER)
    for path in sorted((state / _FOLDER).glob("[0-9]*")):
        if not path.name.isdecimal():
            continue
        try:
            size = path.stat().st_size
            is_old = size == first_design_size(*configured)
            known = states.get(int(path.name))
            capacity = configured if is_old else find_capacity(size, known, configured)
            if capacity is None:
                continue
            slots, max_items = capacity
            with path.open("rb") as file:
                data = file.read(tiered.HEADER_SIZE)
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise translate_os_error(error, "read", path, invalid=RETRY_LATER) from error
        try:
            header = tiered.unpack_header(data)
        except Corrupt:
            continue
        tally = Tally(probes)
        if is_old:
            count = min(header.items, max_items)
            items = view_first_design_items(memoryview(mapped), slots, count)
        else:
            count = min(header.items + 1, max_items)
            items = tiered.items_view(memoryview(mapped), slots, count)[1:]
        for first in range(0, len(items), _ITEMS_AT_ONCE):
            tally.add(items[first : first + _ITEMS_AT_ONCE])
        yield FoundIndex(0, 0, None, topic_ids=tally.topic_ids, votes=tally.votes)


def find_run_votes(provider: SegmentProvider, broker: str) -> FoundIndex:
    """Return votes for the parents of lite topics, by their runs in the tier. A parent with another
    id would lose the deletions of its lite topics. Raises Unavailable, Invalid."""
    runs = load_runs(provider, broker).directory.runs
    covered = [one for run in runs for one in run.notes.covered]
    votes = tuple((one.topic, one.topic_id, one.end - one.begin) for one in covered)
    return FoundIndex(0, 0, None, topic_ids=tuple({vote[1] for vote in votes}), votes=votes)


def find_topic_ids(
    provider: SegmentProvider,
    broker: str,
    queues: Sequence[QueueFiles],
    index: Sequence[SegmentExtent],
) -> Mapping[str, int]:
    """Find the ids of the topics of a broker's queues, from its index and the newest backup of the
    metadata (see `topic_ids`). Raises Unavailable."""
    topics = sorted({queue.topic for queue in queues})
    votes = [find_run_votes(provider, broker)]
    for spread in (0, SPREAD) if index else ():
        chosen = [queue for queue in queues if queue.topic in topics]
        probes = pack_probes(find_each_queue(provider, chosen, spread=spread))
        votes += find_each_index(provider, index, probes)
        topics = list_undecided_topics(topics, votes)
        if not topics:
            break
    former, _, _ = find_former_metadata(provider, StoreConfig(broker_name=broker))
    deleted = find_known_records(provider, broker)
    topics = sorted({queue.topic for queue in queues})
    return topic_ids(topics, votes, former.topic_ids, deleted).ids
