"""Appending to a chunk log: one conditional create, and what its answers mean.

The key of a write is its life and its position. A life belongs to one epoch, so nobody else makes
that key; a request without an answer leaves the life, and the next write goes into a new one.
Without an epoch all share one life, and the store's own condition decides between writers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tieredstore.contracts.segment import (
    Buffer,
    FencedWrite,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Busy, Fenced, TieredStoreError, Unavailable
from tieredstore.message.crc import CRC_MASK, raw_crc32
from tieredstore.providers import checks
from tieredstore.providers.chunks.client import ObjectClient, ObjectInfo
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.names import chunk_name
from tieredstore.providers.chunks.lives.views import Views
from tieredstore.providers.chunks.reading.cache import WriteCache
from tieredstore.providers.chunks.reading.reader import ChunkReader, ObjectGone
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState

_SEAL = "the seal"
_MAX_SEAL_TRIES = 64  # each lost one is a write of somebody else


def stamp(authority: Authority, buffers: Sequence[Buffer]) -> dict[str, str]:
    """Return the metadata of an object to be made: writer epoch and CRC-32."""
    crc = 0
    for buffer in buffers:
        crc = raw_crc32(buffer, crc)
    return {"w": authority.stamp, "crc": f"{crc & CRC_MASK:08x}"}


class ChunkAppender:
    """Moves the ends of segments. All methods are called with the state's `write_lock`."""

    def __init__(
        self,
        client: ObjectClient,
        settings: ChunkSettings,
        reader: ChunkReader,
        written: WriteCache,
        views: Views,
    ) -> None:
        self._client = client
        self._settings = settings
        self._reader = reader
        self._written = written
        self._views = views

    def write(
        self,
        state: SegmentState,
        authority: Authority,
        position: int,
        buffers: Sequence[Buffer],
    ) -> WriteResult:
        """Write as `FileSegment.write` does, to an append-only segment. Raises Fenced when the
        writer epoch is known to be lost, Corrupt for a segment with a hole."""
        length = checks.total_bytes(buffers)
        chain = self.load_chain(state, authority, position)
        if position > chain.size_bytes:
            authority.confirm()  # a later writer may have collected what is missing
            raise checks.make_hole_error(state.id, position, chain.size_bytes)
        if not length:
            return Written(position)
        if position == chain.size_bytes and not chain.is_closed:
            return self._append(state, authority, chain, buffers, length)
        return self._resolve_taken_position(state, authority, position, buffers, length)

    def seal(self, state: SegmentState, authority: Authority) -> None:
        """Put the marker: from then on no append succeeds."""
        chain = self.load_chain(state, authority)
        if not chain.size_bytes:  # it may have been known for absent, and written by a helper
            chain = self.list_chain(state, authority)
        for attempt in range(_MAX_SEAL_TRIES):
            chain.check_whole(state.folder)
            if chain.is_closed:
                authority.lives.leave(state.id)
                return
            life = authority.lives.begin(state.id, chain.size_bytes)
            key = state.key(life.name(chunk_name(chain.size_bytes)))
            try:
                made = self._client.put_if_absent(key, [], stamp(authority, []))
            except (Busy, Unavailable) as error:
                if isinstance(error, Unavailable):
                    authority.lives.leave(state.id, unsure=True)
                if attempt + 1 >= self._settings.max_tries:
                    break
                self._settings.pause(attempt)
                authority.check()
            else:
                if made:
                    authority.lives.leave(state.id)
                    state.chain = replace(chain, marked=True)
                    return
            # Whatever the answer was, the listing tells whose object stands at the end now.
            chain = self.list_chain(state, authority)
        raise Unavailable(
            f"segment {state.id}: not sealed at {chain.size_bytes}: other writers were faster, or "
            "the store did not answer",
            path=state.folder,
        )

    def prepare(self, state: SegmentState, authority: Authority) -> None:
        """Make sure that what an authority writes counts: its epoch has said what it inherits.
        Raises Fenced, Unavailable."""
        authority.check()
        authority.join(self._views.prepare(state.broker_name).number)
        state.announce_change()

    def load_chain(
        self, state: SegmentState, authority: Authority, position: int | None = None
    ) -> Chain:
        """Return the chain as far as it can be trusted to write behind it, listed anew where it
        does not end at `position`. Raises Corrupt for one with a hole, Fenced, Unavailable."""
        self.prepare(state, authority)
        chain = state.get_chain(authority)
        if chain is None or position not in {None, chain.size_bytes}:
            chain = self.list_chain(state, authority)
            chain.check_whole(state.folder)
        return chain

    def list_chain(self, state: SegmentState, authority: Authority) -> Chain:
        """List the chain by the inheritance that the authority goes by. Raises Fenced when there is
        a later one, Unavailable."""
        chain = state.list_chain()
        if chain.epoch != authority.view:
            self.prepare(state, authority)
            raise Unavailable(f"segment {state.id}: writers change", path=state.folder)
        return chain

    def _append(
        self,
        state: SegmentState,
        authority: Authority,
        chain: Chain,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        position = chain.size_bytes
        life = authority.lives.begin(state.id, position)
        key = state.key(life.name(chunk_name(position)))
        metadata = stamp(authority, buffers)
        problem: TieredStoreError | None = None
        is_unsure = False
        for attempt in self._settings.attempts():
            try:
                if attempt:
                    self._settings.pause(attempt - 1)
                    authority.check()
                if not self._client.put_if_absent(key, buffers, metadata):
                    return self._resolve_taken_position(state, authority, position, buffers, length)
            except Busy as error:
                problem = error
            except Unavailable as error:
                # It may have been applied: the same key again tells, by its condition.
                problem, is_unsure = error, True
                state.chain = None
            except BaseException:
                state.chain = None
                authority.lives.leave(state.id, unsure=True)
                raise
            else:
                state.chain = chain.append(length, self._client.now_ms(), life)
                self._keep(key, buffers, length)
                return Written(position + length)
        if not is_unsure:
            raise Unavailable(f"{key}: not written: {problem}", path=key, offset=position)
        # After attempts without an answer, a last look. What is not there may still come.
        authority.lives.leave(state.id, unsure=True)
        try:
            authority.check()
            head = self._client.head(key)
        except Fenced:
            raise
        except TieredStoreError:
            head = None
        if head is not None and is_same(head, metadata, length):
            return Written(position + length)
        return UnknownWrite(f"{key}: write at {position}: {problem}")

    def _resolve_taken_position(
        self,
        state: SegmentState,
        authority: Authority,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        """What a write at a position that is taken, or behind a seal, means. The object that is
        there says whose it is."""
        state.chain = None
        try:
            chain = state.list_chain()
            if position < chain.size_bytes:
                chain.check_whole(state.folder, position, 1)
                return self._judge_bytes(state, authority, chain, position, buffers, length)
        except (Unavailable, ObjectGone) as error:
            return UnknownWrite(f"segment {state.id}: write at {position}: {error}")
        if not chain.is_closed:
            return UnknownWrite(f"segment {state.id}: what held position {position} went away")
        return FencedWrite(chain.size_bytes, _SEAL, stale=authority.number > 0)

    def _judge_bytes(
        self,
        state: SegmentState,
        authority: Authority,
        chain: Chain,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        """This very write, another one, or the same bytes in another object."""
        extent = chain.find_extents(position, 1)[0]
        is_write = extent.is_chunk and extent.start == position
        if not is_write and not authority.number:
            return UnknownWrite(f"segment {state.id}: {position} is inside a larger object")
        head = self._client.head(state.key(extent.name))
        if head is not None and is_write:
            if is_same(head, stamp(authority, buffers), length):
                return Written(position + length)
            # A store that keeps no metadata: the bytes themselves tell.
            is_like = head.metadata is None and head.size_bytes == length
            if is_like and self._holds(state, chain, position, buffers, length):
                return Written(position + length)
            if writer(head) == authority.stamp:
                return UnknownWrite(
                    f"segment {state.id}: {position} holds another write of this writer"
                )
        # Whose the bytes are, no other epoch has the right to write behind them.
        return FencedWrite(chain.size_bytes, writer(head), stale=authority.number > 0)

    def _holds(
        self,
        state: SegmentState,
        chain: Chain,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> bool:
        """Whether the segment's bytes from `position` on are the first `length` of these."""
        # A commit is thousands of small buffers: they are compared by the part, not one by one
        own = memoryview(b"".join(buffers))[:length]
        for start in range(0, length, self._settings.read_part_bytes):
            part = own[start : start + self._settings.read_part_bytes]
            found = self._reader.read(state.folder, chain, [(position + start, part.nbytes)])[0]
            if found != part:
                return False
        return True

    def _keep(self, key: str, buffers: Sequence[Buffer], length: int) -> None:
        """Small writes are merged soon, without being asked for."""
        if length < self._settings.policy.part_bytes:
            self._written.put(key, b"".join(buffers))


def is_same(head: ObjectInfo, metadata: Mapping[str, str], length: int) -> bool:
    """Tell whether an object is this very write."""
    theirs = head.metadata or {}
    return head.size_bytes == length and all(
        theirs.get(name) == value for name, value in metadata.items()
    )


def writer(head: ObjectInfo | None) -> str:
    return ((head.metadata if head is not None else None) or {}).get("w", "unknown")
