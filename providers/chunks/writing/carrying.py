"""Writing to a commit log and its consume queue at once: the messages, then their units, in one
object.

Its name says which bytes of both it holds, and the life of either, so each file has it in its chain
as a write of its own. Two names for one position are possible in a life, other than with
`c.<start>`, so the life is left for good whenever such a write was not made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple, TypeAlias

from tieredstore.contracts.segment import Buffer, UnknownWrite, WriteResult, Written
from tieredstore.errors import Busy, Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.providers import checks
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.lives.carried import make_carried_extent
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.names import (
    CarriedUnits,
    find_queue_folder,
    make_carrier_name,
)
from tieredstore.providers.chunks.reading.cache import WriteCache
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState
from tieredstore.providers.chunks.writing.append import ChunkAppender, is_same, stamp

PairResult: TypeAlias = tuple[WriteResult, WriteResult]


class SegmentWrite(NamedTuple):
    """Bytes for the end of a segment."""

    state: SegmentState
    position: int
    buffers: Sequence[Buffer]

    @property
    def length(self) -> int:
        return checks.total_bytes(self.buffers)

    @property
    def end(self) -> int:
        return self.position + self.length


class CarryingAppender:
    """Moves the ends of two segments of a queue. Called with the `write_lock` of both, that of the
    commit log taken first."""

    def __init__(
        self,
        client: ObjectClient,
        settings: ChunkSettings,
        written: WriteCache,
        appender: ChunkAppender,
    ) -> None:
        self._client = client
        self._settings = settings
        self._written = written
        self._appender = appender

    def write(
        self, log: SegmentWrite, units: SegmentWrite, authority: Authority
    ) -> PairResult | None:
        """Write both in one object; None when that cannot be: nothing was sent then.

        Each must end where its bytes begin, and the authority have an epoch: without one others
        share the life, and only the names of single writes decide between them. Raises as
        `ChunkAppender.write`; Unavailable when surely nothing was written.
        """
        if not (authority.number and log.length and units.length):
            return None
        chains = self.find_open_ends(log, units, authority)
        return None if chains is None else self._append(log, units, authority, *chains)

    def find_open_ends(
        self, log: SegmentWrite, units: SegmentWrite, authority: Authority
    ) -> tuple[Chain, Chain] | None:
        """Find the chains, where both can be appended to; None where not. Raises as a write
        does."""
        found = self._appender.load_chain(log.state, authority, log.position)
        try:
            other = self._appender.load_chain(units.state, authority, units.position)
        except Corrupt:
            return None  # the units' own write tells
        is_open = not (found.is_closed or other.is_closed)
        fits = (found.size_bytes, other.size_bytes) == (log.position, units.position)
        return (found, other) if is_open and fits else None

    def _append(
        self,
        log: SegmentWrite,
        units: SegmentWrite,
        authority: Authority,
        log_chain: Chain,
        units_chain: Chain,
    ) -> PairResult:
        units_life = authority.lives.begin(units.state.id, units.position)
        place = CarriedUnits(units.state.id.base_offset, units_life, units.position, units.end)
        life = authority.lives.begin(log.state.id, log.position)
        name = life.name(make_carrier_name(log.position, log.end, place))
        key = log.state.key(name)
        content = [*log.buffers, *units.buffers]
        with ExitStack() as undo:
            undo.callback(_leave, authority, log.state, units.state)
            problem = self._make(key, content, stamp(authority, content), authority)
            if isinstance(problem, Busy):
                raise Unavailable(
                    f"{key}: not written: {problem}", path=key, offset=log.position
                ) from problem
            if problem is not None:
                unknown = UnknownWrite(f"{key}: write at {log.position}: {problem}")
                return unknown, unknown
            undo.pop_all()
        now_ms = self._client.now_ms()
        carrier = key.removeprefix(f"{find_queue_folder(log.state.folder)}/")
        log.state.chain = log_chain.append_extent(Extent(log.position, log.end, name, now_ms))
        units.state.chain = units_chain.append_extent(
            make_carried_extent(place, carrier, log.length, now_ms)
        )
        self._keep(key, log, units)
        return Written(log.end), Written(units.end)

    def _make(
        self,
        key: str,
        content: Sequence[Buffer],
        metadata: Mapping[str, str],
        authority: Authority,
    ) -> TieredStoreError | None:
        """Make the object; the error when it may not be there, Busy when it surely is not."""
        length = checks.total_bytes(content)
        problem: TieredStoreError | None = None
        unsure: TieredStoreError | None = None
        for attempt in self._settings.attempts():
            try:
                if attempt:
                    self._settings.pause(attempt - 1)
                    authority.check()
                if self._client.put_if_absent(key, content, metadata):
                    return None
                unsure = Unavailable(f"{key} holds another write", path=key)
                break
            except Busy as error:
                problem = error
            except Unavailable as error:
                # It may have been applied: the same key again tells, by its condition.
                problem = unsure = error
        if unsure is None:
            return problem
        try:
            authority.check()
            head = self._client.head(key)
        except Fenced:
            raise
        except TieredStoreError:
            return unsure
        return None if head is not None and is_same(head, metadata, length) else unsure

    def _keep(self, key: str, log: SegmentWrite, units: SegmentWrite) -> None:
        """What is merged soon; of a large write the units, which are merged before it is."""
        if log.length < self._settings.policy.part_bytes:
            self._written.put(key, b"".join([*log.buffers, *units.buffers]))
        else:
            self._written.put(key, b"".join(units.buffers), position=log.length)


def _leave(authority: Authority, *states: SegmentState) -> None:
    for state in states:
        authority.lives.leave(state.id, unsure=True)
        state.chain = None
