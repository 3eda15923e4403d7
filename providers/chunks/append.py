"""Appending to a chunk log: one conditional create, and what its answers mean.

The key of a write is its position, so the store's own condition decides between writers. A key is
free again once merging has deleted what it held; so a create that succeeded counts only while
nobody can have merged and deleted since the segment was last seen, and is looked at otherwise.
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
from tieredstore.providers.chunks.chain import Chain, chunk_name
from tieredstore.providers.chunks.client import ObjectClient, ObjectInfo
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
    ) -> None:
        self._client = client
        self._settings = settings
        self._reader = reader
        self._written = written

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
        authority.check()
        chain = self._load_chain(state, authority, position)
        if position > chain.size_bytes:
            authority.check()  # it may have been lost, and the segment made again, only now
            raise checks.make_hole_error(state.id, position, chain.size_bytes)
        if not length:
            return Written(position)
        if position == chain.size_bytes and not chain.is_closed:
            return self._append(state, authority, chain, buffers, length)
        return self._resolve_taken_position(state, authority, position, buffers, length)

    def seal(self, state: SegmentState, authority: Authority) -> Chain:
        """Put the marker: from then on no append succeeds. Returns the marked chain."""
        authority.check()
        chain = state.get_trusted_chain(authority) or state.list_chain()
        for attempt in range(_MAX_SEAL_TRIES):
            chain.check_whole(state.folder)
            if chain.is_closed:
                return chain
            key = state.key(chunk_name(chain.size_bytes))
            seen_ms = max(chain.seen_ms, authority.confirmed_ms)
            try:
                made = self._client.put_if_absent(key, [], stamp(authority, []))
            except (Busy, Unavailable):
                if attempt + 1 >= self._settings.max_tries:
                    break
                self._settings.pause(attempt)
                authority.check()
            else:
                if made and self.is_recent(seen_ms):
                    state.chain = replace(chain, marked=True)
                    return state.chain
            # Whatever the answer was, the listing tells whose object stands at the end now.
            chain = state.list_chain()
        raise Unavailable(
            f"segment {state.id}: not sealed at {chain.size_bytes}: other writers were faster, or "
            "the store did not answer",
            path=state.folder,
        )

    def _load_chain(self, state: SegmentState, authority: Authority, position: int) -> Chain:
        """The chain as far as it can be trusted to write behind it."""
        chain = state.get_trusted_chain(authority)
        if chain is None or chain.size_bytes != position:
            chain = state.list_chain()
            chain.check_whole(state.folder)
        return chain

    def is_recent(self, seen_ms: int) -> bool:
        """Tell whether nothing that was there at `seen_ms` can have been merged and deleted
        since."""
        return self._settings.monotonic_ms() - seen_ms <= self._settings.grace_ms // 2

    def _append(
        self,
        state: SegmentState,
        authority: Authority,
        chain: Chain,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        position = chain.size_bytes
        key = state.key(chunk_name(position))
        metadata = stamp(authority, buffers)
        begin_ms = self._settings.monotonic_ms()
        seen_ms = max(chain.seen_ms, authority.confirmed_ms)
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
            else:
                if not self.is_recent(seen_ms):
                    return self._verify_create(state, authority, position, buffers, length)
                longer = chain.append(length, self._client.now_ms())
                state.chain = replace(longer, seen_ms=max(seen_ms, begin_ms))
                self._keep(key, buffers, length)
                return Written(position + length)
        if not is_unsure:
            raise Unavailable(f"{key}: not written: {problem}", path=key, offset=position)
        # After attempts without an answer, a last look. What is not there may still come.
        state.chain = None
        try:
            authority.check()
            head = self._client.head(key)
        except Fenced:
            raise
        except TieredStoreError:
            head = None
        if head is not None and _is_same(head, metadata, length) and self.is_recent(seen_ms):
            return Written(position + length)
        return UnknownWrite(f"{key}: write at {position}: {problem}")

    def _verify_create(
        self,
        state: SegmentState,
        authority: Authority,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        """After a create that took long: only bytes that the chain shows are in the segment. An
        object that no listing reaches is behind the end of one that was made again: it goes."""
        try:
            chain = state.list_chain()
            if chain.holes:
                self._client.delete([state.key(chunk_name(position))])
            authority.check()
            return self._find_in_chain(state, authority, chain, position, buffers, length)
        except (Unavailable, ObjectGone) as error:
            state.chain = None
            return UnknownWrite(f"segment {state.id}: write at {position}: {error}")

    def _find_in_chain(
        self,
        state: SegmentState,
        authority: Authority,
        chain: Chain,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        """Of an object of ours: written if the chain has it, or its bytes in a merged run."""
        if not chain.holes and chain.size_bytes >= position + length:
            own = chain.find_extents(position, length)[0]
            is_own = (own.start, own.end, own.is_chunk) == (position, position + length, True)
            if is_own or self._holds(state, chain, position, buffers, length):
                return Written(position + length)
        is_stale = authority.number > 0  # nobody else has the right
        return FencedWrite(chain.size_bytes, "a writer whose objects were merged since", is_stale)

    def _resolve_taken_position(
        self,
        state: SegmentState,
        authority: Authority,
        position: int,
        buffers: Sequence[Buffer],
        length: int,
    ) -> WriteResult:
        """What a write at a position that is taken, or behind a seal, means. The key itself says
        whose it is, as long as it is there."""
        state.chain = None
        try:
            head = self._client.head(state.key(chunk_name(position)))
            chain = state.list_chain()
            if head is not None and head.size_bytes:
                if _is_same(head, stamp(authority, buffers), length):
                    return self._find_in_chain(state, authority, chain, position, buffers, length)
                # A store that keeps no metadata: the bytes themselves tell.
                is_like = head.metadata is None and head.size_bytes == length
                if is_like and self._holds(state, chain, position, buffers, length):
                    return Written(position + length)
                return self._judge_other_bytes(state, authority, chain, head, position)
            if chain.size_bytes > position:
                return self._judge_other_bytes(state, authority, chain, None, position)
        except (Unavailable, ObjectGone) as error:
            return UnknownWrite(f"segment {state.id}: write at {position}: {error}")
        if not chain.is_closed:
            return UnknownWrite(f"segment {state.id}: what held position {position} went away")
        is_stale = epoch_number(head) < authority.number or writer(head) == authority.stamp
        return FencedWrite(chain.size_bytes, _SEAL, is_stale)

    def _judge_other_bytes(
        self,
        state: SegmentState,
        authority: Authority,
        chain: Chain,
        head: ObjectInfo | None,
        position: int,
    ) -> WriteResult:
        """Other bytes than the ones to be written, or the same in other objects."""
        if head is not None and writer(head) == authority.stamp:
            return UnknownWrite(
                f"segment {state.id}: {position} holds another write of this writer"
            )
        if head is None:
            if not authority.number:
                return UnknownWrite(f"segment {state.id}: {position} is inside a larger object")
            chain.check_whole(state.folder, position, 1)
            extent = chain.find_extents(position, 1)[0]
            head = self._client.head(state.key(extent.name))
        is_stale = epoch_number(head) < authority.number or writer(head) == authority.stamp
        return FencedWrite(chain.size_bytes, writer(head), is_stale)

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


def _is_same(head: ObjectInfo, metadata: Mapping[str, str], length: int) -> bool:
    """Whether an object is this very write."""
    theirs = head.metadata or {}
    return head.size_bytes == length and all(
        theirs.get(name) == value for name, value in metadata.items()
    )


def writer(head: ObjectInfo | None) -> str:
    return ((head.metadata if head is not None else None) or {}).get("w", "unknown")


def epoch_number(head: ObjectInfo | None) -> int:
    """Return the epoch in whose name an object was made; 0 when the object does not say."""
    number = writer(head).partition(":")[0]
    return int(number) if number.isdecimal() else 0
