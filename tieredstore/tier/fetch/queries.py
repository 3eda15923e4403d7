"""Queries by key. The messages found by the index are read and compared with the query, because the
index has only hashes and seconds, and may have entries of deleted messages. A message is returned
only if its topic, queue, key, store time and position match (`docs/formats/tiered-index.md`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tieredstore.contracts.metadata_store import MetadataStore
from tieredstore.errors import Corrupt, Invalid, TieredStoreError
from tieredstore.message.record import StoredMessage, decode_record
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.index.index_file import IndexItem
from tieredstore.tier.index.service import IndexStoreService
from tieredstore.tier.reading import Reading, join_readings

MAX_RESULTS = 16_384
"""Maximum number of messages that a query returns, and of index items that it examines at once."""

COALESCE_GAP_BYTES = 64 << 10
"""Maximum gap between two messages that are read in one request."""

COALESCE_LIMIT_BYTES = 4 << 20
"""Maximum size of a `_Piece`, bytes. A single message may be larger."""

_log = logging.getLogger(__name__)


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
    index: IndexStoreService,
    metadata: MetadataStore,
    queues: FlatFileStore,
    topic: str,
    key: str,
    max_count: int,
    begin_ms: int,
    end_ms: int,
) -> Reading[list[StoredMessage]]:
    """Return messages of a topic with a key or UNIQ_KEY and a store time within [begin, end],
    ordered by queue and offset. Returns at most `max_count` messages (and `MAX_RESULTS`). Deleted
    and expired messages are omitted. Raises Unavailable if a read fails."""
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
        # False hits may hide real ones, so request more.
        if len(found) >= max_count or len(items) < ask or ask >= MAX_RESULTS:
            return [found[place] for place in sorted(found)]
        seen.update((item.queue_id, item.offset) for item in fresh)
        ask = min(ask * 4, MAX_RESULTS)


class _Piece(msgspec.Struct):
    """Index items of one queue whose records are read together, from bytes [start, end) of its
    log."""

    file: FlatMessageFile
    start: int
    end: int
    items: list[IndexItem]


def _read_at_hand(
    pieces: list[_Piece], wanted: _Wanted, read: dict[tuple[int, int], StoredMessage]
) -> list[_Piece]:
    """Read the pieces that do not need a blocking call, and add the requested messages to `read`.
    Returns the other pieces."""
    others: list[_Piece] = []
    for piece in pieces:
        try:
            data = piece.file.read_commit_log_nowait(piece.start, piece.end - piece.start)
        except TieredStoreError:
            data = None  # the waiting caller handles it
        if data is None:
            others.append(piece)
        else:
            _accept_messages(piece, data, wanted, read)
    return others


def _read_pieces(
    topic: str, pieces: list[_Piece], wanted: _Wanted, read: dict[tuple[int, int], StoredMessage]
) -> Reading[None]:
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
                again += [
                    _Piece(piece.file, item.offset, item.offset + item.size, [item])
                    for item in piece.items
                ]
            else:
                # Expired or damaged. The other hits are still returned.
                _log.warning("%s: a hit of a key query cannot be read: %s", topic, outcome)
        pieces = again


def _accept_messages(
    piece: _Piece,
    buffer: memoryview,
    wanted: _Wanted,
    read: dict[tuple[int, int], StoredMessage],
) -> None:
    """Add the requested messages of a piece to `read`. Messages with uncommitted units are omitted,
    because readers of the queue do not see them either."""
    end = piece.file.consume_queue_commit_offset
    for item in piece.items:
        try:
            message = decode_record(buffer, item.offset - piece.start)
        except Corrupt:
            continue
        if message.queue_offset < end and wanted.accepts(message, item):
            read[item.queue_id, item.offset] = message


def _find_pieces(queues: FlatFileStore, topic: str, items: Iterable[IndexItem]) -> list[_Piece]:
    """Group the index items of a topic into pieces that are read together. Items that point outside
    the log of their queue are omitted."""
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
