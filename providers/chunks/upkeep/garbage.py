"""GarbageBin: garbage of many segments, deleted together.

A request deletes as many objects as fit into one, whatever segments they are of, after one look at
the epoch: slow queues have a few each, at different times.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tieredstore.errors import TieredStoreError
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.reading.cache import WriteCache
from tieredstore.providers.chunks.state import Authority, SegmentState

MAX_DELETED_KEYS = 1_000


class _Piece(NamedTuple):
    state: SegmentState
    authority: Authority
    names: tuple[str, ...]


@dataclass(slots=True)
class Emptied:
    """What came of it. failures: the segments whose garbage may be there still."""

    deleted_count: int = 0
    failures: list[tuple[SegmentState, TieredStoreError]] = field(default_factory=list)


class GarbageBin:
    """One for all segments of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, written: WriteCache) -> None:
        self._client = client
        self._written = written
        self._pieces: list[_Piece] = []
        self._count = 0
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a request."""
        return self._count >= MAX_DELETED_KEYS

    def put(self, state: SegmentState, authority: Authority, names: Sequence[str]) -> None:
        """Take objects of a segment that nothing needs, for good: what covers them was made."""
        with self._lock:
            for first in range(0, len(names), MAX_DELETED_KEYS):
                part = tuple(names[first : first + MAX_DELETED_KEYS])
                self._pieces.append(_Piece(state, authority, part))
            self._count += len(names)

    def empty(self) -> Emptied:
        """Delete all that was put so far. What is not deleted stays garbage of its segment."""
        with self._lock:
            pieces, self._pieces, self._count = self._pieces, [], 0
        done = Emptied()
        batch: list[_Piece] = []
        count = 0
        for piece in pieces:
            is_other = batch and batch[0].authority is not piece.authority
            if is_other or count + len(piece.names) > MAX_DELETED_KEYS:
                self._delete(batch, done)
                batch, count = [], 0
            batch.append(piece)
            count += len(piece.names)
        if batch:
            self._delete(batch, done)
        return done

    def _delete(self, batch: Sequence[_Piece], done: Emptied) -> None:
        keys = [piece.state.key(name) for piece in batch for name in piece.names]
        try:
            batch[0].authority.confirm()  # what makes these garbage counts before they go
            self._client.delete(keys)
        except TieredStoreError as error:
            done.failures += [(piece.state, error) for piece in batch]
            return
        self._written.drop(keys)
        done.deleted_count += len(keys)
        for state, _, names in batch:
            gone = frozenset(names)
            with state.write_lock:
                state.change_chain(lambda chain, gone=gone: chain.drop_garbage(gone))  # type: ignore[misc]
