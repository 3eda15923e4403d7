"""Work on one segment besides appending: merge, seal, collect garbage, delete.

Nothing here changes what the segment holds, only in which objects it is, so a crash after any
request leaves a segment that reads the same. The writer epoch is confirmed before each deletion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tieredstore.errors import Busy, Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.providers.chunks.append import ChunkAppender, epoch_number, stamp, writer
from tieredstore.providers.chunks.chain import (
    WHOLE_NAME,
    Chain,
    Extent,
    make_merged_name,
    read_chain,
)
from tieredstore.providers.chunks.client import CopiedPart, ObjectClient, ObjectInfo, Part
from tieredstore.providers.chunks.reading.cache import WriteCache
from tieredstore.providers.chunks.reading.reader import ChunkReader
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState
from tieredstore.providers.chunks.upkeep.parts import Copied, PlannedPart, plan_parts

MAX_DELETED_KEYS = 1_000


@dataclass(slots=True)
class Work:
    """What was done: merged runs, sealed segments, deleted garbage objects. due_ms: when there is
    more garbage to be deleted (server's clock), None for never."""

    merged_count: int = 0
    sealed_count: int = 0
    deleted_count: int = 0
    due_ms: int | None = None


class Compactor:
    """One for all segments of a tier."""

    def __init__(
        self,
        client: ObjectClient,
        settings: ChunkSettings,
        reader: ChunkReader,
        written: WriteCache,
        appender: ChunkAppender,
    ) -> None:
        self._client = client
        self._settings = settings
        self._reader = reader
        self._written = written
        self._appender = appender

    def needs_work(self, chain: Chain) -> bool:
        """Tell whether `work` would do something now, collecting garbage apart."""
        if chain.holes or chain.sealed:
            return False
        if chain.marked:
            return bool(chain.extents)
        return self._settings.policy.next_run(chain.extents) is not None

    def needs_work_later(self, chain: Chain) -> bool:
        """Tell whether `work` would do something now or later."""
        return bool(chain.garbage and not chain.holes) or self.needs_work(chain)

    def work(self, state: SegmentState, authority: Authority) -> Work:
        """Do all work that is due. Raises what the client raises; what was done until then
        stays."""
        done = Work()
        with state.work_lock:
            chain = state.get_trusted_chain(authority) or state.list_chain()
            chain.check_whole(state.folder)
            try:
                while not chain.sealed:
                    run = self._settings.policy.next_run(chain.extents, is_closed=chain.marked)
                    if run is None or (chain.marked and self._is_short(chain)):
                        break
                    chain = self._merge(state, authority, chain, run)
                    done.merged_count += 1
                if chain.marked and not chain.sealed and chain.extents:
                    chain = self._make_whole(state, authority, chain)
                    done.sealed_count += 1
            except TieredStoreError:
                # Whether that object was made is not known: what there is tells the listing.
                with state.write_lock:
                    state.chain = None
                raise
            done.deleted_count, done.due_ms = self._collect(state, authority, chain)
        return done

    def delete(self, state: SegmentState, authority: Authority) -> None:
        """Remove the segment: data first, from the end on, so that what a crash leaves is a
        shorter segment; the marker last, so that a late writer stays out until all is gone.

        Objects that appear meanwhile belong to a late writer, and go, unless they are a later
        epoch's: then Fenced is raised. Unavailable when something may be left.
        """
        with state.work_lock, state.write_lock:
            state.forget()
            found = self._find_objects(state)
            chain = read_chain(found, state.folder)
            if found and not chain.is_closed and not chain.holes:
                self._appender.seal(state, authority)
                found = self._find_objects(state)
            known = {(info.key, info.etag) for info in found}
            for _ in range(self._settings.max_tries):
                data = [info for info in found if info.size_bytes]
                if not data:
                    self._delete(authority, *_split_keys_and_etags(found))
                    state.forget()
                    return
                for info in data:
                    if (info.key, info.etag) not in known:
                        self._check_late(info, authority)
                self._delete(authority, *_split_keys_and_etags(sorted(data, key=_deletion_order)))
                found = self._find_objects(state)
            raise Unavailable(
                f"segment {state.id}: {len(found)} objects are still there", path=state.folder
            )

    def _find_objects(self, state: SegmentState) -> list[ObjectInfo]:
        return list(self._client.list(f"{state.folder}/"))

    def _check_late(self, info: ObjectInfo, authority: Authority) -> None:
        head = self._client.head(info.key)
        if head is not None and epoch_number(head) > authority.number:
            raise Fenced(
                f"{info.key}: made by the later writer {writer(head)} while it was deleted",
                path=info.key,
            )

    def _delete(self, authority: Authority, keys: Sequence[str], etags: Sequence[str] = ()) -> None:
        for first in range(0, len(keys), MAX_DELETED_KEYS):
            authority.confirm()  # what makes these garbage counts before they go
            authority.check()  # looks again when the process stood still over that look
            batch = slice(first, first + MAX_DELETED_KEYS)
            self._client.delete(keys[batch], etags[batch])
            self._written.drop(keys[batch])  # a segment made again has them with other bytes

    def _is_short(self, chain: Chain) -> bool:
        """Whether the whole content fits into one put, so that merging is no help."""
        return chain.size_bytes <= self._settings.policy.target_bytes

    def _merge(
        self, state: SegmentState, authority: Authority, chain: Chain, run: Sequence[Extent]
    ) -> Chain:
        start, end = run[0].start, run[-1].end
        self._make(state, authority, chain, run, make_merged_name(start, end))
        made_ms = self._client.now_ms()
        with state.write_lock:
            newest = state.chain.with_merged(start, end, made_ms) if state.chain else None
            state.chain = newest
        return newest or state.list_chain()

    def _make_whole(self, state: SegmentState, authority: Authority, chain: Chain) -> Chain:
        self._make(state, authority, chain, chain.extents, WHOLE_NAME)
        with state.write_lock:
            state.chain = chain.with_whole(self._client.now_ms())
            return state.chain

    def _make(
        self,
        state: SegmentState,
        authority: Authority,
        chain: Chain,
        run: Sequence[Extent],
        name: str,
    ) -> None:
        """An object of the content of adjacent extents; the same whoever makes it, so it does
        not matter who did."""
        start, end = run[0].start, run[-1].end
        key = state.key(name)
        parts = plan_parts(run, self._client.limits)
        if any(isinstance(part, Copied) for part in parts):
            sent = self._compose_parts(state, chain, parts)
            metadata = stamp(authority, [])
            del metadata["crc"]
            is_ours = self._insist(
                key, authority, lambda: self._client.compose(key, sent, metadata)
            )
        else:
            content = self._reader.read(state.folder, chain, [(start, end - start)])
            metadata = stamp(authority, content)
            is_ours = self._insist(
                key, authority, lambda: self._client.put_if_absent(key, content, metadata)
            )
            if end - start < self._settings.policy.part_bytes:
                self._written.put(key, content[0])
        self._written.drop(state.key(extent.name) for extent in run if extent.name != name)
        if not is_ours:
            self._check_size(key, start, end)
        elif not self._appender.is_recent(authority.confirmed_ms):
            self._withdraw_if_fenced(key, authority)

    def _withdraw_if_fenced(self, key: str, authority: Authority) -> None:
        """After a create that took long: a segment of that name may be another one by now. What
        it covers is not collected before the grace time, so the object may still be taken back.
        """
        try:
            authority.check()
        except Fenced:
            made = self._client.head(key)
            now_ms = self._client.now_ms()
            if made is not None and now_ms - made.modified_ms < self._settings.grace_ms // 2:
                self._client.delete([key])
            raise

    def _check_size(self, key: str, start: int, end: int) -> None:
        made = self._client.head(key)
        if made is None or made.size_bytes != end - start:
            raise Corrupt(
                f"{key}: expected {end - start} bytes, found "
                + ("no object" if made is None else str(made.size_bytes)),
                path=key,
                offset=start,
            )

    def _compose_parts(
        self, state: SegmentState, chain: Chain, parts: Sequence[PlannedPart]
    ) -> list[Part]:
        wanted = [(part.start, part.end - part.start) for part in parts if not _is_copied(part)]
        contents = iter(self._reader.read(state.folder, chain, wanted))
        composed: list[Part] = []
        for part in parts:
            if isinstance(part, Copied):
                extent = part.extent
                position = part.start - extent.start + extent.skip
                composed.append(CopiedPart(state.key(extent.name), position, part.end - part.start))
            else:
                composed.append([next(contents)])
        return composed

    def _insist(self, key: str, authority: Authority, make: Callable[[], bool]) -> bool:
        """Whether it was made now; False when it was there already."""
        problem: TieredStoreError | None = None
        with self._settings.limit_retries():
            for attempt in self._settings.attempts():
                authority.check()
                try:
                    return make()
                except (Busy, Unavailable) as error:
                    problem = error
                    self._settings.pause(attempt)
        raise Unavailable(f"{key}: not made: {problem}", path=key)

    def _collect(
        self, state: SegmentState, authority: Authority, chain: Chain
    ) -> tuple[int, int | None]:
        """Delete garbage whose cover is older than the grace time: readers that know an older
        chain, and writes on their way, have had that long."""
        now_ms = self._client.now_ms()
        due = [
            found.name
            for found in chain.garbage
            if found.covered_ms + self._settings.grace_ms <= now_ms
        ]
        if due:
            self._delete(authority, [state.key(name) for name in due])
            with state.write_lock:
                if state.chain is not None:
                    state.chain = state.chain.drop_garbage(frozenset(due))
        left = [found.covered_ms for found in chain.garbage if found.name not in set(due)]
        return len(due), min(left) + self._settings.grace_ms if left else None


def _split_keys_and_etags(found: Sequence[ObjectInfo]) -> tuple[list[str], list[str]]:
    """Keys and etags: a request that is late meets the objects of a segment made again."""
    return [info.key for info in found], [info.etag for info in found]


def _is_copied(part: PlannedPart) -> bool:
    return isinstance(part, Copied)


def _deletion_order(info: ObjectInfo) -> tuple[bool, int]:
    """Sorts the whole content last, the rest by descending start; what is not a chunk log's
    goes first."""
    name = info.key.rpartition("/")[2]
    start = name.partition(".")[2][:20]
    return name == WHOLE_NAME, -int(start) if start.isdecimal() else -(10**20)
