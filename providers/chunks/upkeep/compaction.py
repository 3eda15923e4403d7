"""Work on one segment besides appending: merge, seal, collect garbage, delete.

Nothing here but a tombstone changes what the segment holds, only in which objects it is, so a crash
after any request leaves a segment that reads the same. Before each deletion the writer epoch is
confirmed, after what makes its targets garbage was made: whoever comes later calls them so, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tieredstore.contracts.segment import Buffer, FileSegmentType, SegmentId
from tieredstore.errors import Busy, Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.providers.chunks.client import CopiedPart, ObjectClient, Part
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.names import (
    TOMBSTONE_NAME,
    WHOLE_NAME,
    Life,
    ObjectName,
    find_queue_folder,
    make_carried_name,
    make_merged_name,
    parse_object_name,
)
from tieredstore.providers.chunks.lives.views import Views
from tieredstore.providers.chunks.reading.cache import WriteCache
from tieredstore.providers.chunks.reading.reader import ChunkReader
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState, SegmentStates
from tieredstore.providers.chunks.upkeep.garbage import MAX_DELETED_KEYS, GarbageBin
from tieredstore.providers.chunks.upkeep.parts import Copied, PlannedPart, plan_parts
from tieredstore.providers.chunks.writing.append import ChunkAppender, stamp


@dataclass(slots=True)
class Work:
    """What was done: merged runs, sealed segments. due_ms: when there is more garbage to be deleted
    (server's clock), None for never. touched: other segments that were worked on with it, which may
    have garbage now."""

    merged_count: int = 0
    sealed_count: int = 0
    due_ms: int | None = None
    touched: list[SegmentState] = field(default_factory=list)


class Compactor:
    """One for all segments of a tier."""

    def __init__(
        self,
        client: ObjectClient,
        settings: ChunkSettings,
        reader: ChunkReader,
        written: WriteCache,
        appender: ChunkAppender,
        garbage: GarbageBin,
        states: SegmentStates,
        views: Views,
    ) -> None:
        self._views = views
        self._client = client
        self._settings = settings
        self._reader = reader
        self._written = written
        self._appender = appender
        self._garbage = garbage
        self._states = states

    def needs_work(self, chain: Chain) -> bool:
        """Tell whether `work` would do something now, collecting garbage apart."""
        if chain.holes or chain.sealed:
            return False
        if chain.marked:
            return bool(chain.extents) and not _is_in_groups(chain)
        return self._settings.policy.next_run(chain.extents) is not None

    def needs_work_later(self, chain: Chain) -> bool:
        """Tell whether `work` would do something now or later."""
        return bool(chain.garbage and not chain.holes) or self.needs_work(chain)

    def work(self, state: SegmentState, authority: Authority) -> Work:
        """Do all work that is due; garbage that is goes to the bin, for the caller to empty. Raises
        what the client raises; what was done until then stays."""
        done = Work()
        with state.work_lock:
            self._appender.prepare(state, authority)
            chain = state.get_chain(authority) or state.list_chain()
            chain.check_whole(state.folder)
            try:
                while not chain.sealed and not (chain.marked and _is_in_groups(chain)):
                    run = self._settings.policy.next_run(chain.extents, is_closed=chain.marked)
                    if run is None or (chain.marked and self._is_short(chain)):
                        break
                    chain = self._merge(state, authority, chain, run)
                    done.merged_count += 1
                if self.needs_work(chain) and chain.marked:
                    chain = self._make_whole(state, authority, chain)
                    done.sealed_count += 1
            except TieredStoreError:
                # Whether that object was made is not known: what there is tells the listing.
                with state.write_lock:
                    state.chain = None
                raise
            self._collect(state, authority, chain, done)
        return done

    def load_chain(self, state: SegmentState, authority: Authority) -> Chain:
        """Return the chain by the inheritance that the authority goes by, holes and all. Called
        with the `work_lock`. Raises Fenced, Unavailable."""
        self._appender.prepare(state, authority)
        return self._take_chain(state, authority)

    def store_run(
        self,
        state: SegmentState,
        authority: Authority,
        run: Sequence[Extent],
        content: Buffer,
    ) -> None:
        """Make an object of the segment of these adjacent extents of its chain, whose bytes are
        known. Nothing where they are not in the chain any more. Raises as `insist`."""
        with state.work_lock:
            chain = self.load_chain(state, authority)
            found = chain.find_extents(run[0].start, run[-1].end - run[0].start)
            if found != tuple(run):
                return
            try:
                self._merge(state, authority, chain, run, content)
            except TieredStoreError:
                state.chain = None  # whether that object was made is not known
                raise

    def delete(self, state: SegmentState, authority: Authority) -> None:
        """Remove the segment: a tombstone first, with which it is gone, and whatever comes late for
        it; then its objects. Raises Unavailable when something may be left."""
        with state.work_lock, state.write_lock, state.leaving():
            state.forget()
            self._appender.prepare(state, authority)
            if not authority.number and authority.view:
                raise Fenced(
                    f"segment {state.id}: epoch {authority.view} has written here; acquire the "
                    "writer epoch before deleting",
                    path=state.folder,
                )
            for _ in range(self._settings.max_tries):
                found = self._find_objects(state, authority)
                tombstone = _find_tombstone(state, authority, found)
                others = [key for key in found if key != tombstone]
                self._store_units(state, authority, [state.name(key) for key in others])
                if authority.number and (
                    authority.lives.has(state.id)
                    or _has_later(state, others, tombstone)
                    or self._has_carried(state, tombstone)
                ):
                    tombstone = self._bury(state, authority)
                    others = found
                if others:
                    self._delete(authority, others)
                elif tombstone is not None:
                    authority.confirm()
                state.forget()
                if authority.number or not found:
                    return
            raise Unavailable(
                f"segment {state.id}: {len(found)} objects are still there", path=state.folder
            )

    def _find_objects(self, state: SegmentState, authority: Authority) -> list[str]:
        """The keys of all that is there, but of what a later epoch made."""
        keys = [info.key for info in self._client.list(f"{state.folder}/")]
        names = [_parse(state, key) for key in keys]
        return [
            key
            for key, name in zip(keys, names, strict=True)
            if name is None or name.life.epoch <= authority.number
        ]

    def _bury(self, state: SegmentState, authority: Authority) -> str:
        """Make a tombstone in a life of its own."""
        key = state.key(authority.lives.make().name(TOMBSTONE_NAME))
        metadata = stamp(authority, [])
        self.insist(key, authority, lambda: self._client.put_if_absent(key, [], metadata))
        authority.lives.forget(state.id)
        return key

    def _delete(self, authority: Authority, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), MAX_DELETED_KEYS):
            authority.confirm()  # what makes these garbage counts before they go
            batch = keys[first : first + MAX_DELETED_KEYS]
            self._client.delete(batch)
            self._written.drop(batch)

    def _has_carried(self, state: SegmentState, tombstone: str | None) -> bool:
        """Whether a segment is there of which its own folder has nothing."""
        if tombstone is None and self._views.find_inherited(state.id).spans:
            return True  # a listing does not show what is in a group that cannot be read now
        if state.id.type is not FileSegmentType.CONSUME_QUEUE and not self._views.has_groups(
            state.broker_name
        ):
            return False
        is_there = state.list_chain().is_there
        state.forget()
        return is_there

    def _store_units(
        self, log: SegmentState, authority: Authority, names: Iterable[str]
    ) -> list[SegmentState]:
        """Make objects of the consume queue of the units that are in these objects of a commit log
        alone, before they go. Returns the segments that got such."""
        wanted: dict[SegmentId, set[str]] = {}
        for name in names:
            found = parse_object_name(name)
            if found is not None and found.units is not None:
                units_id = SegmentId(
                    log.id.path, FileSegmentType.CONSUME_QUEUE, found.units.base_offset
                )
                carrier = log.key(name).removeprefix(f"{find_queue_folder(log.folder)}/")
                called = make_carried_name(found.units.life, carrier)
                wanted.setdefault(units_id, set()).add(called)
        changed = []
        for units_id, carried in wanted.items():
            units = self._states.get_state(units_id)
            with units.work_lock:
                self._appender.prepare(units, authority)
                chain = self._take_chain(units, authority)
                before = chain
                try:
                    while run := self._settings.policy.find_run_of(chain.extents, carried):
                        chain = self._merge(units, authority, chain, run)
                except TieredStoreError:
                    units.chain = None  # whether that object was made is not known
                    raise
                if chain is not before:
                    changed.append(units)
        return changed

    def _take_chain(self, state: SegmentState, authority: Authority) -> Chain:
        """The chain by the inheritance that the authority goes by, holes and all. Raises Fenced,
        Unavailable."""
        chain = state.chain
        if chain is None or chain.epoch != authority.view:
            chain = self._appender.list_chain(state, authority)
        return chain

    def _is_small(self, length: int) -> bool:
        """Whether so many bytes are read to be merged, rather than copied on the server."""
        return length < self._settings.policy.part_bytes

    def _is_short(self, chain: Chain) -> bool:
        """Whether the whole content fits into one put, so that merging is no help."""
        return chain.size_bytes <= self._settings.policy.target_bytes

    def _merge(
        self,
        state: SegmentState,
        authority: Authority,
        chain: Chain,
        run: Sequence[Extent],
        content: Buffer | None = None,
    ) -> Chain:
        start, end = run[0].start, run[-1].end
        life = authority.lives.take(state.id)
        self._make(state, authority, chain, run, life, make_merged_name(start, end), content)
        made_ms = self._client.now_ms()
        return self._put_in_chain(state, lambda known: known.with_merged(start, end, made_ms, life))

    def _put_in_chain(self, state: SegmentState, change: Callable[[Chain], Chain | None]) -> Chain:
        """Let the chain have an object that was made; listed where it changed meanwhile."""
        fits = False

        def try_change(known: Chain) -> Chain | None:
            nonlocal fits
            changed = change(known)
            fits = changed is not None
            return changed

        with state.write_lock:
            newest = state.change_chain(try_change)
            if not fits:
                newest = state.chain = None
        return newest or state.list_chain()

    def _make_whole(self, state: SegmentState, authority: Authority, chain: Chain) -> Chain:
        life = authority.lives.take(state.id)
        self._make(state, authority, chain, chain.extents, life, WHOLE_NAME)
        authority.lives.leave(state.id)
        with state.write_lock:
            state.chain = chain.with_whole(self._client.now_ms(), life)
            return state.chain

    def _make(
        self,
        state: SegmentState,
        authority: Authority,
        chain: Chain,
        run: Sequence[Extent],
        life: Life,
        short_name: str,
        known: Buffer | None = None,
    ) -> None:
        """An object of the content of adjacent extents, read where it is not known. It lies in the
        life that is written now, so that a listing shows sources before what covers them."""
        start, end = run[0].start, run[-1].end
        name = life.name(short_name)
        key = state.key(name)
        parts = plan_parts(run, self._client.limits) if known is None else ()
        if any(isinstance(part, Copied) for part in parts):
            sent = self._compose_parts(state, chain, parts)
            metadata = stamp(authority, [])
            del metadata["crc"]
            is_new = self.insist(key, authority, lambda: self._client.compose(key, sent, metadata))
        else:
            content: Sequence[Buffer] = (
                self._reader.read(state.folder, chain, [(start, end - start)])
                if known is None
                else [known]
            )
            metadata = stamp(authority, content)
            is_new = self.insist(
                key, authority, lambda: self._client.put_if_absent(key, content, metadata)
            )
            if self._is_small(end - start):
                self._written.put(key, bytes(content[0]))
        for extent in run:
            if extent.name != name:  # the rest of a write with units is for the other file
                self._written.forget(state.key(extent.name), extent.skip, extent.length)
        if not is_new:
            try:
                self._check_size(key, start, end)
            except Corrupt:
                authority.lives.leave(state.id)  # under that name there never will be another one
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

    def insist(self, key: str, authority: Authority, make: Callable[[], bool]) -> bool:
        """Make an object; tells whether it was made now, False when it was there already. Raises
        Fenced, and Unavailable when it may not be there."""
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

    def _collect(self, state: SegmentState, authority: Authority, chain: Chain, done: Work) -> None:
        """Throw away garbage whose cover is older than the grace time: readers that know an older
        chain, and writes on their way, have had that long."""
        now_ms = self._client.now_ms()
        due = [
            found.name
            for found in chain.garbage
            if found.covered_ms + self._settings.grace_ms <= now_ms
        ]
        if due:
            done.touched = self._store_units(state, authority, due)
            self._garbage.put(state, authority, due)
        left = [found.covered_ms for found in chain.garbage if found.name not in set(due)]
        done.due_ms = min(left) + self._settings.grace_ms if left else None


def _is_in_groups(chain: Chain) -> bool:
    """Whether bytes are in group objects: they are moved to the segment's own folder before it
    becomes one object, with those of its queue's other file."""
    return any(extent.is_grouped for extent in chain.extents)


def _is_copied(part: PlannedPart) -> bool:
    return isinstance(part, Copied)


def _find_tombstone(state: SegmentState, authority: Authority, keys: Sequence[str]) -> str | None:
    """The last tombstone of this very epoch."""
    found = [
        key
        for key in keys
        if (name := _parse(state, key)) is not None
        and name.kind == TOMBSTONE_NAME
        and name.life.epoch == authority.number
    ]
    return max(found, default=None)


def _has_later(state: SegmentState, keys: Sequence[str], tombstone: str | None) -> bool:
    """Whether there are objects that no tombstone deletes."""
    if tombstone is None:
        return bool(keys)
    return any(key > tombstone for key in keys if _parse(state, key) is not None)


def _parse(state: SegmentState, key: str) -> ObjectName | None:
    return parse_object_name(state.name(key))
