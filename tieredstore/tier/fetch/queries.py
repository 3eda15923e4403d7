"""Queries by key: what the index finds, read, and held against what was asked for.

The index knows hashes and seconds only, and may outlive the messages that it names: each hit is
read, and counts when topic, queue, key, store time and its own place are the ones asked for
(`docs/formats/tiered-index.md`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.tier.joined_reading import join_readings

if TYPE_CHECKING:
    from tieredstore.contracts.metadata_store import MetadataStore
    from tieredstore.tier.flat.message_file import FlatMessageFile
    from tieredstore.tier.index.item import IndexItem
    from tieredstore.tier.reading import Reading

MAX_RESULTS = 16_384
"""Most messages of one query, and most index items that it looks at in a round."""

COALESCE_GAP_BYTES = 64 << 10
"""Messages no further apart than this are read in one piece."""

COALESCE_LIMIT_BYTES = 4 << 20
"""A piece ends before it becomes larger than this (a single message may be)."""

_log = logging.getLogger(__name__)


class KeyIndex(Protocol):
    """What a query asks of the index."""

    def query(
        self,
        topic: str,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        topic_id: int | None = None,
    ) -> Reading[list[IndexItem]]: ...


class Queues(Protocol):
    """What a query asks of the flat files."""

    def get(self, topic: str, queue_id: int) -> FlatMessageFile | None: ...


class _Wanted(NamedTuple):
    topic: str
    key: str
    begin_ms: int
    end_ms: int

    def accepts(self, message: StoredMessage, item: IndexItem) -> bool:
        return (
            message.queue_id == item.queue_id
            and message.physical_offset == item.offset
            and self.begin_ms <= message.store_timestamp_ms <= self.end_ms
            and message.topic == self.topic
            and (self.key in message.keys or message.uniq_key == self.key)
        )


def query_message(
    index: KeyIndex,
    metadata: MetadataStore,
    queues: Queues,
    topic: str,
    key: str,
    max_count: int,
    begin_ms: int,
    end_ms: int,
) -> Reading[list[StoredMessage]]:
    """Find messages of a topic with a key or UNIQ_KEY, store time within [begin, end], at most
    `max_count` (and `MAX_RESULTS`), ordered by queue and offset.

    Raises Unavailable when a read fails; what is gone, expired or not the key's is left out.
    """
    entry = metadata.topic(topic)
    if entry is None or max_count < 1 or begin_ms > end_ms:
        return []
    wanted = _Wanted(topic, key, begin_ms, end_ms)
    max_count = min(max_count, MAX_RESULTS)
    found: dict[tuple[int, int], StoredMessage] = {}
    seen: set[tuple[int, int]] = set()
    ask = max_count
    while True:
        items = yield from index.query(topic, key, ask, begin_ms, end_ms, topic_id=entry.topic_id)
        fresh = [
            item
            for item in items
            if item.topic_id == entry.topic_id and (item.queue_id, item.offset) not in seen
        ]
        for message in (yield from _read_items(queues, topic, fresh, wanted)):
            if len(found) < max_count:
                found.setdefault((message.queue_id, message.queue_offset), message)
        # Hits that were none may hide more: ask for more of them.
        if len(found) >= max_count or len(items) < ask or ask >= MAX_RESULTS:
            return [found[place] for place in sorted(found)]
        seen.update((item.queue_id, item.offset) for item in fresh)
        ask = min(ask * 4, MAX_RESULTS)


class _Piece(NamedTuple):
    """Items of one queue whose records lie in [start, end) of its commit log."""

    file: FlatMessageFile
    start: int
    end: int
    items: tuple[IndexItem, ...]


def _read_items(
    queues: Queues, topic: str, items: Sequence[IndexItem], wanted: _Wanted
) -> Reading[list[StoredMessage]]:
    """The messages of those items that are what is wanted, in the order of the items."""
    pieces = list(_pieces(queues, topic, items))
    read: dict[tuple[int, int], StoredMessage] = {}
    while pieces:
        outcomes = yield from join_readings(
            [piece.file.read_commit_log(piece.start, piece.end - piece.start) for piece in pieces]
        )
        again: list[_Piece] = []
        for piece, outcome in zip(pieces, outcomes, strict=True):
            if isinstance(outcome, memoryview):
                read.update(_accept_messages(piece, outcome, wanted))
            elif not isinstance(outcome, (Corrupt, Invalid)):
                raise outcome
            elif len(piece.items) > 1:
                again += _split_piece(piece)
            else:
                # Expired meanwhile, or damaged: no reason to hide the other hits.
                _log.warning("%s: a hit of a key query cannot be read: %s", topic, outcome)
        pieces = again
    places = ((item.queue_id, item.offset) for item in items)
    return [read[place] for place in places if place in read]


def _split_piece(piece: _Piece) -> list[_Piece]:
    return [
        _Piece(piece.file, item.offset, item.offset + item.size, (item,)) for item in piece.items
    ]


def _accept_messages(
    piece: _Piece, buffer: memoryview, wanted: _Wanted
) -> Iterator[tuple[tuple[int, int], StoredMessage]]:
    for item in piece.items:
        try:
            message = decode_record(buffer, item.offset - piece.start)
        except Corrupt:
            continue
        if wanted.accepts(message, item) and _is_in_queue(piece.file, message):
            yield (item.queue_id, item.offset), message


def _is_in_queue(file: FlatMessageFile, message: StoredMessage) -> bool:
    """Whether readers of the queue may see it: not expired, and committed whole."""
    return message.queue_offset < file.consume_queue_commit_offset


def _pieces(queues: Queues, topic: str, items: Iterable[IndexItem]) -> Iterator[_Piece]:
    """The reads that bring all items, adjacent ones together; items outside of what their queue
    holds are left out."""
    by_queue: dict[int, list[IndexItem]] = {}
    for item in items:
        by_queue.setdefault(item.queue_id, []).append(item)
    for queue_id, group in by_queue.items():
        file = queues.get(topic, queue_id)
        if file is None:
            continue
        low, high = file.commit_log_min_offset, file.commit_log_commit_offset
        held = [i for i in group if i.size > 0 and low <= i.offset <= high - i.size]
        if len(held) == 1:  # as nearly always
            yield _Piece(file, held[0].offset, held[0].offset + held[0].size, (held[0],))
        else:
            yield from _coalesce(file, sorted(held, key=lambda item: item.offset))


def _coalesce(file: FlatMessageFile, items: Iterable[IndexItem]) -> Iterator[_Piece]:
    near: list[IndexItem] = []
    start = end = 0
    for item in items:
        item_end = item.offset + item.size
        if near and (
            item.offset > end + COALESCE_GAP_BYTES
            or max(end, item_end) - start > COALESCE_LIMIT_BYTES
        ):
            yield _Piece(file, start, end, tuple(near))
            near = []
        if not near:
            start = end = item.offset
        near.append(item)
        end = max(end, item_end)
    if near:
        yield _Piece(file, start, end, tuple(near))
