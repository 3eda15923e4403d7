"""Small commits of many queues, stored together in one group object. A write that may wait is
accepted, and stored at the latest before the fence check of the next confirmation. If the create of
a group gets no response, it is sent again with the same bytes and name until the store answers.
Until then, the queues in the group write nothing else, and groups are added in order."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.segment import Buffer, SegmentId, Written
from tieredstore.errors import Busy, Fenced, TieredStoreError, Unavailable
from tieredstore.message.crc import raw_crc32
from tieredstore.providers.chunks.manifests.groups import (
    WRITES_LEVEL,
    Group,
    GroupPiece,
    make_group,
    sort_key,
)
from tieredstore.providers.chunks.manifests.names import GROUPS_FOLDER
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState
from tieredstore.providers.chunks.writing.append import (
    CarryingAppender,
    PairResult,
    SegmentWrite,
    is_same,
    stamp,
)

_MOST_TIMES = 2
"""Maximum size of the accepted writes that are not stored yet, in multiples of `group_bytes`.
Before a write that would exceed this size, the accepted writes are stored."""


class _Sent(NamedTuple):
    """Group object that was sent or will be sent. `number`: number of its last write. `states`:
    segment states of its pieces, in order."""

    number: int
    key: str
    group: Group
    content: list[Buffer]
    states: list[SegmentState]


@dataclass(slots=True)
class _Gathered:
    """Gathered writes of one writer epoch. Writes are numbered.

    `taken`: accepted writes that are not in a group yet, by path of the queue. `sent`: the group
    object that is not known to be stored yet, or None. `taken_number`: number of the last accepted
    write. `stored_number`: all writes up to this one are stored.
    """

    flush_lock: threading.Lock
    taken: dict[str, tuple[SegmentWrite, SegmentWrite]] = field(default_factory=dict)
    taken_bytes: int = 0
    taken_number: int = 0
    stored_number: int = 0
    sent: _Sent | None = None


@dataclass(eq=False)
class Gatherer:
    """Gathers small writes for all segments of a tier. Thread-safe."""

    client: ObjectClient
    cluster_folder: str
    settings: ChunkSettings
    carrying: CarryingAppender

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._gathered: dict[Authority, _Gathered] = {}
        self._waiting: set[SegmentId] = set()

    def take(
        self, log: SegmentWrite, units: SegmentWrite, authority: Authority
    ) -> PairResult | None:
        """Accept a write of messages and units of a queue, or return None if it cannot be gathered.
        The next confirmation of the epoch stores it. The caller holds the `write_lock` of both
        segments. Nothing is accepted if an error is raised."""
        if not (self.settings.group_bytes and authority.number and log.length and units.length):
            return None
        if log.length + units.length > self.settings.group_bytes:
            return None
        if self.carrying.find_open_ends(log, units, authority) is None:
            return None
        gathered = self._get_gathered(authority)
        length = log.length + units.length
        is_much = gathered.taken_bytes + length > _MOST_TIMES * self.settings.group_bytes
        # A queue that continues in other segments than those of its gathered writes.
        if is_much or log.state.id.path in gathered.taken:
            self.flush(authority)
        with self._lock:
            gathered.taken[log.state.id.path] = log, units
            gathered.taken_bytes += length
            gathered.taken_number += 1
            self._waiting |= {log.state.id, units.state.id}
        return Written(log.end), Written(units.end)

    def settle(self, state: SegmentState, authority: Authority) -> None:
        """Store the gathered writes of a segment, before anything else is written to it. Raises the
        errors of `flush`."""
        if state.id in self._waiting:
            self.flush(authority)

    def list_sent(self, authority: Authority) -> list[str]:
        """Return the names of groups that may exist, but are not in any segment manifest yet."""
        sent = self._get_gathered(authority).sent
        return [str(sent.group.name)] if sent is not None else []

    def flush(self, authority: Authority) -> None:
        """Store all writes that were accepted before this call. They are kept on Unavailable, and
        discarded on Fenced."""
        gathered = self._get_gathered(authority)
        wanted = gathered.taken_number
        if gathered.stored_number >= wanted:
            return
        with gathered.flush_lock, self.settings.limit_retries():
            while gathered.stored_number < wanted:
                if gathered.sent is None:
                    self._make_group(gathered, authority)
                assert gathered.sent is not None
                try:
                    self._store(gathered.sent, authority)
                except Fenced:
                    self._forget(gathered)
                    raise
                self._count(gathered)

    def _get_gathered(self, authority: Authority) -> _Gathered:
        with self._lock:
            return self._gathered.setdefault(authority, _Gathered(threading.Lock()))

    def _make_group(self, gathered: _Gathered, authority: Authority) -> None:
        with self._lock:
            writes = [write for pair in gathered.taken.values() for write in pair]
            writes.sort(key=lambda write: sort_key(write.state.id))
            pieces = [
                GroupPiece(
                    write.state.id,
                    authority.generations.begin(write.state.id, write.position),
                    write.position,
                    write.end,
                    find_crc(write.buffers),
                )
                for write in writes
            ]
            group = make_group(WRITES_LEVEL, authority.generations.make(), pieces)
            content = [buffer for write in writes for buffer in write.buffers]
            key = f"{self.cluster_folder}/{writes[0].state.broker_name}/{GROUPS_FOLDER}/"
            gathered.sent = _Sent(
                gathered.taken_number,
                f"{key}{group.name}",
                group,
                [*content, group.packed_index],
                [write.state for write in writes],
            )
            # Only now: after an earlier failure, such as a lack of memory, they would stay
            # accepted.
            gathered.taken, gathered.taken_bytes = {}, 0

    def _store(self, sent: _Sent, authority: Authority) -> None:
        """Create the object of a group. No other process creates an object with the same name."""
        metadata = stamp(authority, sent.content)
        problem: TieredStoreError | None = None
        for attempt in self.settings.attempts():
            if attempt:
                self.settings.pause(attempt - 1)
            authority.check()
            try:
                if self.client.put_if_absent(sent.key, sent.content, metadata):
                    return
                head = self.client.head(sent.key)
                if head is not None and is_same(head, metadata, sent.group.size_bytes):
                    return
                problem = Unavailable(f"{sent.key} holds another write", path=sent.key)
            except (Busy, Unavailable) as error:
                problem = error
        raise Unavailable(f"{sent.key}: not written: {problem}", path=sent.key)

    def _count(self, gathered: _Gathered) -> None:
        sent = gathered.sent
        assert sent is not None
        extents = sent.group.make_extents(self.client.now_ms())
        for state, (_, extent) in zip(sent.states, extents, strict=True):
            state.note_write(extent)
        self._end(gathered, sent)

    def _forget(self, gathered: _Gathered) -> None:
        sent = gathered.sent
        assert sent is not None
        for state in sent.states:
            state.manifest = None
        self._end(gathered, sent)
        with self._lock:
            for pair in gathered.taken.values():
                self._waiting -= {write.state.id for write in pair}
            gathered.taken, gathered.taken_bytes = {}, 0
            gathered.stored_number = gathered.taken_number

    def _end(self, gathered: _Gathered, sent: _Sent) -> None:
        with self._lock:
            gathered.sent = None
            gathered.stored_number = sent.number
            self._waiting -= {state.id for state in sent.states}


def find_crc(buffers: Sequence[Buffer]) -> int:
    """Return the CRC-32 of the concatenation of buffers."""
    crc = 0
    for buffer in buffers:
        crc = raw_crc32(buffer, crc)
    return crc
