"""State shared by all handles of one segment in this process."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from tieredstore.contracts.segment import SegmentId
from tieredstore.providers import naming
from tieredstore.providers.chunks.manifests.extents import Extent
from tieredstore.providers.chunks.manifests.generations import Generations
from tieredstore.providers.chunks.manifests.names import make_key
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.manifests.views import Views

_incarnations = itertools.count(1)


class Authority(Protocol):
    """Writer of a segment: a writer epoch, or a process without an epoch."""

    @property
    def number(self) -> int:
        """Number of the epoch, 0 without one."""

    @property
    def stamp(self) -> str: ...

    @property
    def view(self) -> int | None:
        """Epoch whose manifest applies to reads and writes. None before the first `join`."""

    @property
    def generations(self) -> Generations: ...

    def join(self, epoch_manifest: int) -> None:
        """Follow the newest epoch manifest without owning an epoch. Raises Fenced."""

    def check(self) -> None:
        """Raise Fenced, naming the successor, if ownership is known to be lost."""

    def confirm(self) -> None:
        """Confirm all writes that were stored before this call. See `WriterEpoch.confirm`."""


class SegmentState:
    """State of one segment. `write_lock` serialises changes of the segment's end. `work_lock`
    serialises merging, sealing and deletion, and is taken first. `manifest` is always replaced as a
    whole. Setting it records a change by this process. A listing that overlaps a change or a
    deletion is not cached, so the cached manifest is exact under a held epoch."""

    __slots__ = (
        "__weakref__",
        "_changed_at",
        "_is_leaving",
        "_manifest",
        "_manifest_lock",
        "_views",
        "broker_name",
        "folder",
        "id",
        "incarnation",
        "work_lock",
        "write_lock",
    )

    def __init__(self, id: SegmentId, folder: str, views: Views) -> None:
        self._views = views
        self.id = id
        self.folder = folder
        self.broker_name = naming.parse_logical_path(id.path).broker_name
        self._manifest: SegmentManifest | None = None
        self._changed_at = views.last_deletion
        self._is_leaving = False
        self.incarnation = next(_incarnations)
        self._manifest_lock = threading.Lock()
        self.work_lock = threading.RLock()
        self.write_lock = threading.RLock()

    def key(self, name: str) -> str:
        """Return the key of an object that has bytes of the segment, see `make_key`."""
        return make_key(self.folder, name)

    def name(self, key: str) -> str:
        """Return the name of the object with this key, relative to the segment's folder."""
        return key.removeprefix(f"{self.folder}/")

    @property
    def manifest(self) -> SegmentManifest | None:
        """Current segment manifest. None if unknown."""
        return self._manifest

    @manifest.setter
    def manifest(self, manifest: SegmentManifest | None) -> None:
        with self._manifest_lock:
            needs_excluded_group = manifest is not None and self._views.needs_excluded_group(
                self.id, manifest
            )
            self._manifest = None if needs_excluded_group else manifest
            self._changed_at = self._views.count_change()

    def change_manifest(
        self, change: Callable[[SegmentManifest], SegmentManifest | None]
    ) -> SegmentManifest | None:
        """Replace a known manifest by the result of `change`, unless the result is None. Return the
        current manifest. Other threads cannot change it during the call."""
        with self._manifest_lock:
            changed = change(self._manifest) if self._manifest is not None else None
            if changed is not None:
                self._manifest = changed
                self._changed_at = self._views.count_change()
            return self._manifest

    def note_write(self, extent: Extent) -> None:
        """Add a stored write to the end of the manifest. If the manifest does not end where the
        write begins, discard it, so that the next use lists the segment."""
        with self._manifest_lock:
            manifest = self._manifest
            if manifest is not None:
                shown = manifest.find_extents(extent.start, 1)
                if shown and shown[0].name == extent.name:
                    return  # Set by a listing in the meantime.
                fits = manifest.size_bytes == extent.start and not manifest.is_closed
                self._manifest = manifest.append_extent(extent) if fits else None
            self._changed_at = self._views.count_change()

    def list_manifest(self) -> SegmentManifest:
        """List the segment manifest, and cache it unless a newer one was cached during the listing.
        Raises Unavailable."""
        former = self._manifest
        manifest = self._views.list_manifest(self.id, self.folder)
        with self._manifest_lock:
            if self._manifest is former and self._is_fresh(manifest):
                self._replace(manifest)
        return manifest

    def adopt(self, manifest: SegmentManifest) -> None:
        """Adopt the manifest from a listing of many segments, unless a newer manifest is known."""
        with self._manifest_lock:
            known = self._manifest
            is_newer = known is None or known.epoch < manifest.epoch or _is_later(manifest, known)
            if is_newer and self._is_fresh(manifest):
                self._replace(manifest)

    def announce_change(self) -> None:
        """Make this object the source of the segment's manifest in the view of the tier. Call this
        method before a request that may change the segment."""
        self._views.note_change(self)

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Keep the segment out of the cache while it is deleted. On success it is gone."""
        self._is_leaving = True
        try:
            yield
            self._views.note_deletion(self.id)
        finally:
            self._is_leaving = False
            self.manifest = None

    def look_again_for_garbage(self, listed: SegmentManifest) -> None:
        """Discard the manifest if another listing shows a late writer's garbage that it lacks. The
        next use lists the segment again."""
        with self.write_lock:
            known = {found.name for found in self.manifest.garbage} if self.manifest else set()
            if self.manifest is not None and any(f.name not in known for f in listed.garbage):
                self.manifest = None

    def get_manifest(self, authority: Authority) -> SegmentManifest | None:
        """Return the segment manifest if the given authority may append to it, else None."""
        manifest = self.manifest
        if manifest is None or manifest.holes or manifest.epoch != authority.view:
            return None
        return manifest

    def forget(self) -> None:
        """Discard the manifest, and change the incarnation number so that cached blocks are not
        used any longer."""
        self.manifest = None
        self.incarnation = next(_incarnations)

    def _is_fresh(self, manifest: SegmentManifest) -> bool:
        is_current = manifest.as_of >= self._changed_at and not self._is_leaving
        return is_current and not self._views.needs_excluded_group(self.id, manifest)

    def _replace(self, manifest: SegmentManifest) -> None:
        former = self._manifest
        # The segment was recreated, or another writer has replaced the bytes of one that had lost
        # ownership. Writers without an epoch reuse a generation, but no segment shrinks.
        if former is not None and not manifest.continues(former):
            self.incarnation = next(_incarnations)
        self._manifest = manifest


class SegmentStates:
    """States in use, by segment folder."""

    def __init__(self, cluster_folder: str, views: Views) -> None:
        self._cluster_folder = cluster_folder
        self._views = views
        self._lock = threading.Lock()
        self._states: weakref.WeakValueDictionary[SegmentId, SegmentState] = (
            weakref.WeakValueDictionary()
        )

    def get_state(self, id: SegmentId) -> SegmentState:
        """Return the state of a segment. Raises Invalid for an invalid name."""
        with self._lock:
            state = self._states.get(id)
            if state is None:
                folder = f"{self._cluster_folder}/{naming.relative_segment_path(id)}"
                state = SegmentState(id, folder, self._views)
                self._states[id] = state
            return state


def _is_later(manifest: SegmentManifest, known: SegmentManifest) -> bool:
    if manifest.epoch != known.epoch or manifest.born is None:
        return False
    return known.born is None or manifest.born > known.born
