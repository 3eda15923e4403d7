"""Deletion of the garbage of many segments. A slow queue has only a few garbage objects at a time,
so each request deletes objects of many queues, after one fence check."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from tieredstore.contracts.objects import ObjectClient, ObjectInfo
from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import TieredStoreError
from tieredstore.providers.chunks.manifests.groups import RUNS_LEVEL, GroupName, GroupPiece
from tieredstore.providers.chunks.manifests.names import find_group
from tieredstore.providers.chunks.manifests.segment_manifest import Hole, SegmentManifest, rank_run
from tieredstore.providers.chunks.manifests.views import Views
from tieredstore.providers.chunks.reading.reader import WriteCache
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import Authority, SegmentState
from tieredstore.providers.chunks.writing.gathering import Gatherer

MAX_DELETED_KEYS = 1_000


class _Piece(NamedTuple):
    state: SegmentState
    authority: Authority
    names: tuple[str, ...]


@dataclass(slots=True)
class DeletedGarbage:
    """Result of a garbage deletion. `failures`: segments whose garbage may remain."""

    deleted_count: int = 0
    failures: list[tuple[SegmentState, TieredStoreError]] = field(default_factory=list)


class GarbageBin:
    """Collects the garbage of all segments of a tier. Thread-safe."""

    def __init__(self, client: ObjectClient, written: WriteCache) -> None:
        self._client = client
        self._written = written
        self._pieces: list[_Piece] = []
        self._count = 0
        self._lock = threading.Lock()

    @property
    def is_full(self) -> bool:
        """Return whether there is enough garbage for a request."""
        return self._count >= MAX_DELETED_KEYS

    def put(self, state: SegmentState, authority: Authority, names: Sequence[str]) -> None:
        """Add objects of a segment to delete. Other objects contain the same bytes, so they cannot
        become needed again."""
        with self._lock:
            for first in range(0, len(names), MAX_DELETED_KEYS):
                part = tuple(names[first : first + MAX_DELETED_KEYS])
                self._pieces.append(_Piece(state, authority, part))
            self._count += len(names)

    def empty(self) -> DeletedGarbage:
        """Delete all added objects. Failed deletions stay garbage."""
        with self._lock:
            pieces, self._pieces, self._count = self._pieces, [], 0
        done = DeletedGarbage()
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

    def _delete(self, batch: Sequence[_Piece], done: DeletedGarbage) -> None:
        keys = [piece.state.key(name) for piece in batch for name in piece.names]
        try:
            batch[0].authority.confirm()  # their covers are valid before they go
            self._client.delete(keys)
        except TieredStoreError as error:
            done.failures += [(piece.state, error) for piece in batch]
            return
        self._written.drop(keys)
        done.deleted_count += len(keys)
        for state, _, names in batch:
            gone = frozenset(names)
            with state.write_lock:
                state.change_manifest(lambda manifest, gone=gone: manifest.drop_garbage(gone))  # type: ignore[misc]


_log = logging.getLogger(__name__)
_Listed: TypeAlias = tuple[GroupName, ObjectInfo]
_Holes: TypeAlias = Mapping[SegmentId, Sequence[Hole]]


class GroupGarbage:
    """Deletes groups that no segment needs, for all brokers of a tier. Calls for one broker must
    not overlap."""

    def __init__(
        self, client: ObjectClient, settings: ChunkSettings, gatherer: Gatherer, views: Views
    ) -> None:
        self._client = client
        self._settings = settings
        self._gatherer = gatherer
        self._views = views
        self._unused: dict[str, dict[str, int]] = {}
        self._inherited: dict[str, tuple[int, set[str]]] = {}

    def collect(
        self,
        broker_name: str,
        authority: Authority,
        find_chains: Callable[[], Iterable[tuple[SegmentId, SegmentManifest]]],
    ) -> int:
        """Delete groups that no segment has needed for the grace time, and return their number.
        `find_chains`: returns the segment manifests. Raises Fenced, Unavailable."""
        listed = self._views.groups.list_names(broker_name)
        now_ms = self._settings.monotonic_ms()
        before = self._unused.get(broker_name, {})
        due = {
            name
            for name, since_ms in before.items()
            if now_ms - since_ms >= self._settings.grace_ms
        }
        former, inherited = self._inherited.get(broker_name, (0, set()))
        due |= {
            str(name)
            for name, _ in listed
            if name.generation.epoch < former and str(name) not in inherited
        }
        if not self._settings.grace_ms:
            due |= {str(name) for name, _ in listed}
        self._views.exclude_groups(broker_name, due)
        # The order matters: bytes stored in the meantime are in the first or in the second.
        needed = set(self._gatherer.list_sent(authority))
        manifests = dict(find_chains())
        needed |= _find_needed(manifests.items())
        holes = _find_holes(manifests)
        unused = [
            (name, info)
            for name, info in listed
            if name.generation.epoch <= authority.number and str(name) not in needed
        ]
        self._unused[broker_name] = {str(name): before.get(str(name), now_ms) for name, _ in unused}
        garbage = [
            found
            for found in unused
            if str(found[0]) in due and not self._may_be_seen(*found, manifests, authority)
        ]
        self._views.exclude_groups(broker_name, {str(name) for name, _ in garbage})
        return self._delete(garbage, holes, authority)

    def note_inherited(
        self,
        broker_name: str,
        authority: Authority,
        find_chains: Callable[[], Iterable[tuple[SegmentId, SegmentManifest]]],
    ) -> None:
        """Record the groups of former epochs that a segment needs. Call this before the epoch moves
        any bytes between groups. All other groups of former epochs can be deleted without a grace
        time, so that even short-lived processes delete groups."""
        if broker_name not in self._inherited:
            self._inherited[broker_name] = authority.number, _find_needed(find_chains())

    def reap(self, broker_name: str, authority: Authority) -> int:
        """Delete the groups of former epochs if no segment has bytes in a group. These groups
        contain only bytes of deleted segments or late writes. Returns the number of deletions.
        Raises Fenced, Unavailable."""
        if not self._views.is_prepared(broker_name) or self._views.has_groups(broker_name):
            return 0
        listed = self._views.groups.list_names(broker_name)
        older = [found for found in listed if found[0].generation.epoch < authority.number]
        manifests = self._views.take_snapshot(broker_name).manifests if older else {}
        return self._delete(older, _find_holes(manifests), authority)

    def _may_be_seen(
        self,
        name: GroupName,
        info: ObjectInfo,
        manifests: Mapping[SegmentId, SegmentManifest],
        authority: Authority,
    ) -> bool:
        """Return whether a listing may prefer bytes of this group of runs to those in a segment
        manifest. Such a group must not be deleted, because a later epoch may need it. The manifest
        may lack a group whose creation got no response."""
        if name.level != RUNS_LEVEL:
            return False  # Its writes are not in place of runs.
        group = self._views.groups.read(name, info)
        return group is not None and any(
            self._counts(piece, manifest, authority) and not _is_covered(piece, manifest, str(name))
            for piece in group.pieces
            if (manifest := manifests.get(piece.id)) is not None
        )

    def _counts(self, piece: GroupPiece, manifest: SegmentManifest, authority: Authority) -> bool:
        if piece.generation.epoch == authority.number:
            return manifest.born is not None and piece.generation >= manifest.born
        return any(
            span.generation == piece.generation
            and piece.start < span.end
            and span.start < piece.end
            for span in self._views.find_manifest_entry(piece.id).spans
        )

    def _delete(self, found: Sequence[_Listed], holes: _Holes, authority: Authority) -> int:
        keys = [info.key for name, info in found if not self._is_kept(name, info, holes, authority)]
        for first in range(0, len(keys), MAX_DELETED_KEYS):
            authority.confirm()  # their covers are valid before they go
            self._client.delete(keys[first : first + MAX_DELETED_KEYS])
        return len(keys)

    def _is_kept(
        self, name: GroupName, info: ObjectInfo, holes: _Holes, authority: Authority
    ) -> bool:
        """Return whether a group may contain the last copy of some bytes, because it has bytes that
        a segment lacks. Also True for an unreadable group of another epoch, or if any segment has a
        hole."""
        if name.generation.epoch == authority.number and not holes:
            return False
        group = self._views.groups.read(name, info)
        if group is not None and not group.is_readable:
            _log.error("%s: the group is kept, since its index is damaged", info.key)
            return True
        return group is not None and any(
            piece.start < hole.end and hole.start < piece.end
            for piece in group.pieces
            for hole in holes.get(piece.id, ())
        )


def _is_covered(piece: GroupPiece, manifest: SegmentManifest, group: str) -> bool:
    """Return whether every listing would prefer a merged run of the manifest to this piece of a
    group."""
    return any(
        not run.is_chunk and run.start <= piece.start and rank_run(run) > (piece.end, False, group)
        for run in manifest.find_extents(piece.start, 1)
    )


def _find_holes(manifests: Mapping[SegmentId, SegmentManifest]) -> _Holes:
    return {id: manifest.holes for id, manifest in manifests.items() if manifest.holes}  # noqa: A001


def _find_needed(manifests: Iterable[tuple[SegmentId, SegmentManifest]]) -> set[str]:
    return {
        find_group(extent.name)
        for _, manifest in manifests
        for extent in manifest.extents
        if extent.is_grouped
    }
