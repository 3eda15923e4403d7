"""Maintenance of one segment: merge, seal, collect garbage, delete. Only a tombstone changes the
content. All other steps replace objects, so a crash after any request leaves the same content. New
objects are created first. Then the writer epoch is confirmed, and the replaced objects are
deleted."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tieredstore.contracts.objects import ClientLimits, CopiedPart, ObjectClient, Part
from tieredstore.contracts.segment import Buffer, FileSegmentType, SegmentId
from tieredstore.errors import Busy, Corrupt, Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.names import (
    TOMBSTONE_NAME,
    WHOLE_NAME,
    Generation,
    ObjectName,
    find_queue_folder,
    make_carried_name,
    make_merged_name,
    parse_object_name,
)
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.manifests.views import Views
from tieredstore.providers.chunks.reading.reader import ChunkReader, WriteCache
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState, SegmentStates
from tieredstore.providers.chunks.upkeep.garbage import MAX_DELETED_KEYS, GarbageBin
from tieredstore.providers.chunks.writing.append import ChunkAppender, stamp


class Copied(NamedTuple):
    """Part of a new object: bytes [start, end) of the segment, which the server copies from an
    extent."""

    extent: Extent
    start: int
    end: int


class Sent(NamedTuple):
    """Part of a new object: bytes [start, end) of the segment, which are read and uploaded."""

    start: int
    end: int


PlannedPart = Copied | Sent


def plan_parts(run: Sequence[Extent], limits: ClientLimits) -> list[PlannedPart]:
    """Plan the parts of an object made of adjacent extents. Long extents are copied on the server.
    An extent that is too short for a part is sent together with the beginning of the next extent.
    Only the last part may be shorter than the minimum. Raises Invalid if an upload cannot have
    enough parts."""
    least, most = limits.min_part_bytes, limits.max_part_bytes
    parts: list[PlannedPart] = []
    sent_start: int | None = None
    for extent in run:
        start = extent.start
        if sent_start is not None:
            start = min(extent.end, max(start, sent_start + least))
            if start == extent.end and extent is not run[-1]:
                continue  # Still too short.
            if extent.end - start < least:
                start = extent.end  # The rest would be too short for a part of its own.
            parts += _cut_evenly(sent_start, start, most)
            sent_start = None
        if extent.end - start >= least:
            parts += [Copied(extent, *part) for part in _cut_evenly(start, extent.end, most)]
        elif start < extent.end:
            sent_start = start
    if sent_start is not None:
        parts += _cut_evenly(sent_start, run[-1].end, most)
    if len(parts) > limits.max_parts:
        raise Invalid(
            f"bytes {run[0].start} to {run[-1].end} of a segment need {len(parts)} parts, at most "
            f"{limits.max_parts} are possible"
        )
    return parts


def _cut_evenly(start: int, end: int, most: int) -> list[Sent]:
    """Cut [start, end) into pieces of similar length, at most `most` bytes each."""
    count = -(-(end - start) // most)
    return [
        Sent(
            start + (end - start) * number // count,
            start + (end - start) * (number + 1) // count,
        )
        for number in range(count)
    ]


@dataclass(slots=True)
class Work:
    """Result of the maintenance of a segment: numbers of merges and seals. `due_ms`: time of the
    next garbage deletion (server's clock), or None. `touched`: other segments that these merges
    have changed and that may now have garbage."""

    merged_count: int = 0
    sealed_count: int = 0
    due_ms: int | None = None
    touched: list[SegmentState] = field(default_factory=list)


@dataclass(eq=False)
class Compactor:
    """Compactor for all segments of a tier."""

    client: ObjectClient
    settings: ChunkSettings
    reader: ChunkReader
    written: WriteCache
    appender: ChunkAppender
    garbage: GarbageBin
    states: SegmentStates
    views: Views

    def needs_work(self, manifest: SegmentManifest) -> bool:
        """Return whether `work` has anything to do now, except garbage collection."""
        if manifest.holes or manifest.sealed:
            return False
        if manifest.marked:
            return bool(manifest.extents) and not _is_in_groups(manifest)
        return self.settings.policy.next_run(manifest.extents) is not None

    def needs_work_later(self, manifest: SegmentManifest) -> bool:
        """Return whether `work` has anything to do now or later."""
        return bool(manifest.garbage and not manifest.holes) or self.needs_work(manifest)

    def work(self, state: SegmentState, authority: Authority) -> Work:
        """Merge and seal a segment if this is due. Garbage that may be deleted is put into
        `garbage`, which the caller empties. Raises the errors of the client. Merges that were
        finished before an error stay."""
        done = Work()
        with state.work_lock:
            self.appender.prepare(state, authority)
            manifest = state.get_manifest(authority) or state.list_manifest()
            manifest.check_whole(state.folder)
            try:
                while not manifest.sealed and not (manifest.marked and _is_in_groups(manifest)):
                    run = self.settings.policy.next_run(manifest.extents, is_closed=manifest.marked)
                    if run is None or (manifest.marked and self._is_short(manifest)):
                        break
                    manifest = self._merge(state, authority, manifest, run)
                    done.merged_count += 1
                if self.needs_work(manifest) and manifest.marked:
                    manifest = self._make_whole(state, authority, manifest)
                    done.sealed_count += 1
            except TieredStoreError:
                # The creation of that object is uncertain. The listing shows the result.
                with state.write_lock:
                    state.manifest = None
                raise
            self._collect(state, authority, manifest, done)
        return done

    def load_manifest(self, state: SegmentState, authority: Authority) -> SegmentManifest:
        """Return the segment manifest under the authority's epoch manifest. It may have holes. The
        caller holds the `work_lock`. Raises Fenced, Unavailable."""
        self.appender.prepare(state, authority)
        return self._take_manifest(state, authority)

    def store_run(
        self,
        state: SegmentState,
        authority: Authority,
        run: Sequence[Extent],
        content: Buffer,
    ) -> None:
        """Create an object from adjacent extents and their bytes. No-op if the extents are no
        longer in the manifest. Raises the errors of `insist`."""
        with state.work_lock:
            manifest = self.load_manifest(state, authority)
            found = manifest.find_extents(run[0].start, run[-1].end - run[0].start)
            if found != tuple(run):
                return
            try:
                self._merge(state, authority, manifest, run, content)
            except TieredStoreError:
                state.manifest = None  # The creation of that object is uncertain.
                raise

    def delete(self, state: SegmentState, authority: Authority) -> None:
        """Delete the segment. A tombstone invalidates the segment and late writes before its
        objects are deleted. Raises Unavailable if objects may remain."""
        with state.work_lock, state.write_lock, state.leaving():
            state.forget()
            self.appender.prepare(state, authority)
            if not authority.number and authority.view:
                raise Fenced(
                    f"segment {state.id}: epoch {authority.view} has written here. Acquire the "
                    "writer epoch before deleting",
                    path=state.folder,
                )
            for _ in range(self.settings.max_tries):
                found = self._find_objects(state, authority)
                tombstone = _find_tombstone(state, authority, found)
                others = [key for key in found if key != tombstone]
                self._store_units(state, authority, [state.name(key) for key in others])
                if authority.number and (
                    authority.generations.has(state.id)
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
        """Return the keys of all objects of the segment, except those of a later epoch."""
        keys = [info.key for info in self.client.list(f"{state.folder}/")]
        names = [_parse(state, key) for key in keys]
        return [
            key
            for key, name in zip(keys, names, strict=True)
            if name is None or name.generation.epoch <= authority.number
        ]

    def _bury(self, state: SegmentState, authority: Authority) -> str:
        key = state.key(authority.generations.make().name(TOMBSTONE_NAME))
        metadata = stamp(authority, [])
        self.insist(key, authority, lambda: self.client.put_if_absent(key, [], metadata))
        authority.generations.forget(state.id)
        return key

    def _delete(self, authority: Authority, keys: Sequence[str]) -> None:
        for first in range(0, len(keys), MAX_DELETED_KEYS):
            authority.confirm()  # their covers are valid before they go
            batch = keys[first : first + MAX_DELETED_KEYS]
            self.client.delete(batch)
            self.written.drop(batch)

    def _has_carried(self, state: SegmentState, tombstone: str | None) -> bool:
        """Return whether a segment has bytes in objects outside of its folder, although its folder
        has none."""
        if tombstone is None and self.views.find_manifest_entry(state.id).spans:
            return True  # A listing does not show the content of an unreadable group.
        if state.id.type is not FileSegmentType.CONSUME_QUEUE and not self.views.has_groups(
            state.broker_name
        ):
            return False
        is_there = state.list_manifest().is_there
        state.forget()
        return is_there

    def _store_units(
        self, log: SegmentState, authority: Authority, names: Iterable[str]
    ) -> list[SegmentState]:
        """Copy units that exist only in the given commit log objects to objects of the consume
        queue. Call this before those objects are deleted. Returns the segments that received
        units."""
        wanted: dict[SegmentId, set[str]] = {}
        for name in names:
            found = parse_object_name(name)
            if found is not None and found.units is not None:
                units_id = SegmentId(
                    log.id.path, FileSegmentType.CONSUME_QUEUE, found.units.base_offset
                )
                carrier = log.key(name).removeprefix(f"{find_queue_folder(log.folder)}/")
                called = make_carried_name(found.units.generation, carrier)
                wanted.setdefault(units_id, set()).add(called)
        changed = []
        for units_id, carried in wanted.items():
            units = self.states.get_state(units_id)
            with units.work_lock:
                self.appender.prepare(units, authority)
                manifest = self._take_manifest(units, authority)
                before = manifest
                try:
                    while run := self.settings.policy.find_run_of(manifest.extents, carried):
                        manifest = self._merge(units, authority, manifest, run)
                except TieredStoreError:
                    units.manifest = None  # The creation of that object is uncertain.
                    raise
                if manifest is not before:
                    changed.append(units)
        return changed

    def _take_manifest(self, state: SegmentState, authority: Authority) -> SegmentManifest:
        """Return the segment manifest under the authority's epoch manifest. It may have holes.
        Raises Fenced, Unavailable."""
        manifest = state.manifest
        if manifest is None or manifest.epoch != authority.view:
            manifest = self.appender.list_manifest(state, authority)
        return manifest

    def _is_small(self, length: int) -> bool:
        """Return whether a merge reads these bytes instead of copying them on the server."""
        return length < self.settings.policy.part_bytes

    def _is_short(self, manifest: SegmentManifest) -> bool:
        return manifest.size_bytes <= self.settings.policy.target_bytes

    def _merge(
        self,
        state: SegmentState,
        authority: Authority,
        manifest: SegmentManifest,
        run: Sequence[Extent],
        content: Buffer | None = None,
    ) -> SegmentManifest:
        start, end = run[0].start, run[-1].end
        generation = authority.generations.take(state.id)
        self._make(
            state, authority, manifest, run, generation, make_merged_name(start, end), content
        )
        made_ms = self.client.now_ms()
        return self._put_in_manifest(
            state, lambda known: known.with_merged(start, end, made_ms, generation)
        )

    def _put_in_manifest(
        self, state: SegmentState, change: Callable[[SegmentManifest], SegmentManifest | None]
    ) -> SegmentManifest:
        """Replace the manifest by the result of `change`. If that fails, list the segment again."""
        fits = False

        def try_change(known: SegmentManifest) -> SegmentManifest | None:
            nonlocal fits
            changed = change(known)
            fits = changed is not None
            return changed

        with state.write_lock:
            newest = state.change_manifest(try_change)
            if not fits:
                newest = state.manifest = None
        return newest or state.list_manifest()

    def _make_whole(
        self, state: SegmentState, authority: Authority, manifest: SegmentManifest
    ) -> SegmentManifest:
        generation = authority.generations.take(state.id)
        self._make(state, authority, manifest, manifest.extents, generation, WHOLE_NAME)
        authority.generations.leave(state.id)
        with state.write_lock:
            state.manifest = manifest.with_whole(self.client.now_ms(), generation)
            return state.manifest

    def _make(
        self,
        state: SegmentState,
        authority: Authority,
        manifest: SegmentManifest,
        run: Sequence[Extent],
        generation: Generation,
        short_name: str,
        known: Buffer | None = None,
    ) -> None:
        """Create an object from the content of adjacent extents. `known`: this content, or None to
        read it. The object is in the current generation, so listings show the extents before it."""
        start, end = run[0].start, run[-1].end
        name = generation.name(short_name)
        key = state.key(name)
        parts = plan_parts(run, self.client.limits) if known is None else ()
        if any(isinstance(part, Copied) for part in parts):
            sent = self._compose_parts(state, manifest, parts)
            metadata = stamp(authority, [])
            del metadata["crc"]
            is_new = self.insist(key, authority, lambda: self.client.compose(key, sent, metadata))
        else:
            content: Sequence[Buffer] = (
                self.reader.read(state.folder, manifest, [(start, end - start)])
                if known is None
                else [known]
            )
            metadata = stamp(authority, content)
            is_new = self.insist(
                key, authority, lambda: self.client.put_if_absent(key, content, metadata)
            )
            if self._is_small(end - start):
                self.written.put(key, bytes(content[0]))
        for extent in run:
            if extent.name != name:  # The rest of a write with units belongs to the other file.
                self.written.forget(state.key(extent.name), extent.skip, extent.length)
        if not is_new:
            try:
                self._check_size(key, start, end)
            except Corrupt:
                authority.generations.leave(state.id)  # No other object will ever have that name.
                raise

    def _check_size(self, key: str, start: int, end: int) -> None:
        made = self.client.head(key)
        if made is None or made.size_bytes != end - start:
            raise Corrupt(
                f"{key}: expected {end - start} bytes, found "
                + ("no object" if made is None else str(made.size_bytes)),
                path=key,
                offset=start,
            )

    def _compose_parts(
        self, state: SegmentState, manifest: SegmentManifest, parts: Sequence[PlannedPart]
    ) -> list[Part]:
        wanted = [(part.start, part.end - part.start) for part in parts if not _is_copied(part)]
        contents = iter(self.reader.read(state.folder, manifest, wanted))
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
        """Create an object. Returns False if the object existed already. Raises Fenced, and
        Unavailable if the object may be missing."""
        problem: TieredStoreError | None = None
        with self.settings.limit_retries():
            for attempt in self.settings.attempts():
                authority.check()
                try:
                    return make()
                except (Busy, Unavailable) as error:
                    problem = error
                    self.settings.pause(attempt)
        raise Unavailable(f"{key}: not made: {problem}", path=key)

    def _collect(
        self, state: SegmentState, authority: Authority, manifest: SegmentManifest, done: Work
    ) -> None:
        """Delete garbage that was replaced longer ago than the grace time. Readers with an older
        segment manifest, and writes in transit, have then finished."""
        now_ms = self.client.now_ms()
        due = [
            found.name
            for found in manifest.garbage
            if found.covered_ms + self.settings.grace_ms <= now_ms
        ]
        if due:
            done.touched = self._store_units(state, authority, due)
            self.garbage.put(state, authority, due)
        left = [found.covered_ms for found in manifest.garbage if found.name not in set(due)]
        done.due_ms = min(left) + self.settings.grace_ms if left else None


def _is_in_groups(manifest: SegmentManifest) -> bool:
    """Return whether any bytes of a segment are in group objects. They are moved to the segment's
    own folder before the segment becomes one object."""
    return any(extent.is_grouped for extent in manifest.extents)


def _is_copied(part: PlannedPart) -> bool:
    return isinstance(part, Copied)


def _find_tombstone(state: SegmentState, authority: Authority, keys: Sequence[str]) -> str | None:
    """Return the last tombstone that this epoch has written."""
    found = [
        key
        for key in keys
        if (name := _parse(state, key)) is not None
        and name.kind == TOMBSTONE_NAME
        and name.generation.epoch == authority.number
    ]
    return max(found, default=None)


def _has_later(state: SegmentState, keys: Sequence[str], tombstone: str | None) -> bool:
    if tombstone is None:
        return bool(keys)
    return any(key > tombstone for key in keys if _parse(state, key) is not None)


def _parse(state: SegmentState, key: str) -> ObjectName | None:
    return parse_object_name(state.name(key))
