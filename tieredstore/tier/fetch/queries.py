"""Queries by key: what the index finds, read, and held against what was asked for.

The index knows hashes and seconds only, and may outlive the messages that it names: each hit is
read, and counts when topic, queue, key, store time and its own place are the ones asked for
(`docs/formats/tiered-index.md`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from tieredstore.errors import Corrupt, Invalid, TieredStoreError
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
    topic_id = entry.topic_id
    wanted = _Wanted(topic, key, begin_ms, end_ms)
    max_count = min(max_count, MAX_RESULTS)
    found: dict[tuple[int, int], StoredMessage] = {}
    seen: set[tuple[int, int]] = set()
    ask = max_count
    while True:
        items = yield from index.query(topic, key, ask, begin_ms, end_ms, topic_id=topic_id)
        fresh = [
            item
            for item in items
            if item.topic_id == topic_id and (item.queue_id, item.offset) not in seen
        ]
        read: dict[tuple[int, int], StoredMessage] = {}
        others = _read_at_hand(_find_pieces(queues, topic, fresh), wanted, read)
        if others:
            yield from _read_pieces(topic, others, wanted, read)
        for place in sorted(read):
            message = read[place]
            if len(found) < max_count:
                found.setdefault((message.queue_id, message.queue_offset), message)
        # Hits that were none may hide more: ask for more of them.
        if len(found) >= max_count or len(items) < ask or ask >= MAX_RESULTS:
            return [found[place] for place in sorted(found)]
        seen.update((item.queue_id, item.offset) for item in fresh)
        ask = min(ask * 4, MAX_RESULTS)


class _Piece(msgspec.Struct):
    """Items of one queue whose records lie in [start, end) of its commit log."""

    file: FlatMessageFile
    start: int
    end: int
    items: list[IndexItem]


def _read_at_hand(
    pieces: list[_Piece], wanted: _Wanted, read: dict[tuple[int, int], StoredMessage]
) -> list[_Piece]:
    """Add to `read` the messages of what is at hand that are what is wanted; returns the pieces of
    which that cannot be said."""
    others: list[_Piece] = []
    for piece in pieces:
        try:
            data = piece.file.read_commit_log_nowait(piece.start, piece.end - piece.start)
        except TieredStoreError:
            data = None  # who waits for it says what it means
        if data is None:
            others.append(piece)
        else:
            _accept_messages(piece, data, wanted, read)
    return others


def _read_pieces(
    topic: str, pieces: list[_Piece], wanted: _Wanted, read: dict[tuple[int, int], StoredMessage]
) -> Reading[None]:
    """Add to `read` the messages of the pieces that are what is wanted."""
    while pieces:
        outcomes = yield from join_readings(
            [piece.file.read_commit_log(piece.start, piece.end - piece.start) for piece in pieces]
        )
        again: list[_Piece] = []
        for piece, outcome in zip(pieces, outcomes, strict=True):
            if isinstance(outcome, memoryview):
                _accept_messages(piece, outcome, wanted, read)
            elif not isinstance(outcome, (Corrupt, Invalid)):
                raise outcome
            elif len(piece.items) > 1:
                again += _split_piece(piece)
            else:
                # Expired meanwhile, or damaged: no reason to hide the other hits.
                _log.warning("%s: a hit of a key query cannot be read: %s", topic, outcome)
        pieces = again


def _split_piece(piece: _Piece) -> list[_Piece]:
    return [
        _Piece(piece.file, item.offset, item.offset + item.size, [item]) for item in piece.items
    ]


def _accept_messages(
    piece: _Piece,
    buffer: memoryview,
    wanted: _Wanted,
    read: dict[tuple[int, int], StoredMessage],
) -> None:
    """Add to `read` what is wanted, unless readers of the queue may not see it: it is not committed
    whole."""
    end = piece.file.consume_queue_commit_offset
    for item in piece.items:
        try:
            message = decode_record(buffer, item.offset - piece.start)
        except Corrupt:
            continue
        if message.queue_offset < end and wanted.accepts(message, item):
            read[item.queue_id, item.offset] = message


def _find_pieces(queues: Queues, topic: str, items: Iterable[IndexItem]) -> list[_Piece]:
    """The reads that bring all items of a topic, adjacent ones together; items outside of what
    their queue holds are left out."""
    pieces: list[_Piece] = []
    queue_id, file, low, high = -1, None, 0, 0
    for item in sorted(items):
        if item.queue_id != queue_id:
            queue_id = item.queue_id
            file = queues.get(topic, queue_id)
            if file is not None:
                low, high = file.commit_log_min_offset, file.commit_log_commit_offset
        start, end = item.offset, item.offset + item.size
        if file is None or item.size <= 0 or start < low or end > high:
            continue
        last = pieces[-1] if pieces else None
        if (
            last is None
            or last.file is not file
            or start > last.end + COALESCE_GAP_BYTES
            or max(last.end, end) - last.start > COALESCE_LIMIT_BYTES
        ):
            pieces.append(_Piece(file, start, end, [item]))
        else:
            last.end = max(last.end, end)
            last.items.append(item)
    return pieces
