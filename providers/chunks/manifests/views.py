"""Views: the segments of a broker that are visible under its newest epoch manifest. A reader takes
the newest manifest, lists the segments, and checks that the manifest is still the newest. The owner
of an epoch uses its own manifest, which it creates before its first write. It also runs a fence
check, because a later owner deletes garbage that an earlier view still shows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from tieredstore.contracts.backups import BackupName
from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.segment import SegmentId
from tieredstore.errors import Busy, Corrupt, Fenced, TieredStoreError, Unavailable
from tieredstore.providers import naming
from tieredstore.providers.chunks.manifests.epoch_manifest import (
    EpochManifest,
    encode_epoch_manifest,
    epoch_manifest_name,
    parse_epoch_manifest_name,
)
from tieredstore.providers.chunks.manifests.generations import Generations
from tieredstore.providers.chunks.manifests.group_listing import GroupListings
from tieredstore.providers.chunks.manifests.listing import Changes, SegmentListings
from tieredstore.providers.chunks.manifests.names import Generation, find_group
from tieredstore.providers.chunks.manifests.newest_manifests import (
    MAX_STARTS,
    NewestManifests,
    Superseded,
)
from tieredstore.providers.chunks.manifests.segment_manifest import (
    NOTHING_BEGUN,
    NOTHING_INHERITED,
    ManifestEntry,
    SegmentManifest,
)
from tieredstore.providers.chunks.manifests.shutdown_snapshot import (
    ShutdownSnapshot,
    decode_snapshot,
    encode_snapshot,
)
from tieredstore.providers.chunks.settings import ChunkSettings


class KnownSegment(Protocol):
    """A segment and its manifest. `manifest` is None if the segment must be listed first."""

    @property
    def id(self) -> SegmentId: ...

    @property
    def manifest(self) -> SegmentManifest | None: ...


class KnownManifests:
    """The segment manifests that epoch `number` has inherited, and the segments that it may have
    changed. They equal those of a listing, because no other process changes segments while the
    epoch is held. Thread-safe."""

    def __init__(self, number: int, inherited: Mapping[SegmentId, SegmentManifest]) -> None:
        self._number = number
        self._inherited = dict(inherited)
        self._changed: dict[SegmentId, KnownSegment] = {}
        self._lock = threading.Lock()

    def note_change(self, segment: KnownSegment) -> None:
        """Use the manifest of this `KnownSegment` from now on, instead of the inherited one. Call
        this method before a request that changes the segment."""
        if segment.id in self._changed:
            return
        with self._lock:
            self._changed[segment.id] = segment
            self._inherited.pop(segment.id, None)

    def note_deletion(self, id: SegmentId) -> None:
        """Remove a segment that is certainly deleted."""
        with self._lock:
            self._changed.pop(id, None)
            self._inherited.pop(id, None)

    def take_snapshot(self, *, with_holes: bool = False) -> ShutdownSnapshot:
        """Return a shutdown snapshot of all known segments. Call this method after the last
        acknowledgement of the epoch. `with_holes`: include manifests of segments with a hole, which
        are otherwise `unsure`."""
        with self._lock:
            manifests, changed = dict(self._inherited), dict(self._changed)
        for id, segment in changed.items():  # noqa: A001 - the contract's name
            manifest = segment.manifest
            if manifest is not None:
                manifests[id] = manifest
        sure = {
            id: manifest
            for id, manifest in manifests.items()  # noqa: A001
            # The hole may be only in the listing.
            if manifest.epoch == self._number and (with_holes or not manifest.holes)
        }
        return ShutdownSnapshot(
            sure, tuple(found for found in {**manifests, **changed} if found not in sure)
        )


_log = logging.getLogger(__name__)


class HeldEpoch(Protocol):
    """The methods of a writer epoch that `Views` calls."""

    @property
    def number(self) -> int: ...

    @property
    def stamp(self) -> str: ...

    @property
    def is_lost(self) -> bool: ...

    @property
    def generations(self) -> Generations: ...

    @property
    def has_helpers(self) -> bool: ...

    def check(self) -> None: ...

    def confirm(self) -> None: ...


@dataclass(slots=True)
class _Own:
    """Epoch that this process has acquired.

    `known`: its known segments. `planned_manifest`: its epoch manifest before the objects exist.
    `objects`: the encoded epoch manifest, which never changes after it was sent. `epoch_manifest`:
    the epoch manifest, once its objects exist. `is_listed`: whether a caller has received all known
    segments.
    """

    epoch: HeldEpoch
    known: KnownManifests | None = None
    planned_manifest: EpochManifest | None = None
    objects: list[tuple[str, bytes]] | None = None
    epoch_manifest: EpochManifest | None = None
    is_listed: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)


class Views:
    """Segments of all brokers of a tier, as this process sees them: under its own epoch, or else
    under the newest epoch manifest. Thread-safe."""

    def __init__(self, client: ObjectClient, cluster_folder: str, settings: ChunkSettings) -> None:
        self._client = client
        self._cluster_folder = cluster_folder
        self._settings = settings
        self._lock = threading.Lock()
        self._own: dict[str, _Own] = {}
        self._excluded_groups: dict[str, frozenset[str]] = {}
        self._changes = Changes()
        self.last_deletion = 0
        self._newest = NewestManifests(client, cluster_folder, settings)
        self.groups = GroupListings(client, cluster_folder, settings)
        self._listings = SegmentListings(
            client, cluster_folder, self._changes, self._get_begun, self.groups
        )

    def begin(self, broker_name: str, epoch: HeldEpoch) -> None:
        """Read and write a broker's segments under this epoch from now on."""
        with self._lock:
            self._own[broker_name] = _Own(epoch)

    def expect_queues(self, broker_name: str, paths: Sequence[str]) -> None:
        """Add queues at which a listing of the broker is split into parallel parts."""
        self._listings.expected[broker_name] = tuple(paths)

    def prepare(self, broker_name: str) -> EpochManifest:
        """Return the manifest of the held epoch, and create it if it is missing. Without an epoch,
        return the newest one. Raises Unavailable, Fenced."""
        own = self._find_own(broker_name)
        if own is None:
            return self._newest.take(broker_name)
        if own.epoch_manifest is None:
            self._inherit(broker_name, own)
        assert own.epoch_manifest is not None
        return own.epoch_manifest

    def is_prepared(self, broker_name: str) -> bool:
        """Return whether this process owns an epoch whose manifest exists."""
        own = self._find_own(broker_name)
        return own is not None and own.epoch_manifest is not None

    def has_groups(self, broker_name: str) -> bool:
        """Return whether the epoch that this process owns may have bytes in group objects."""
        own = self._find_own(broker_name)
        return own is not None and own.epoch_manifest is not None and own.epoch_manifest.has_groups

    def knows_absent(self, id: SegmentId) -> bool:
        """Return, without a request, whether a segment certainly does not exist. The held epoch has
        then neither inherited nor written it."""
        own = self._find_own(id.path.partition("/")[0])
        if own is None or own.epoch_manifest is None:
            return False
        return own.epoch_manifest.find(id) == NOTHING_INHERITED and not own.epoch.generations.has(
            id
        )

    def find_manifest_entry(self, id: SegmentId) -> ManifestEntry:
        """Return, without a request, the bytes of a segment that the held epoch inherits. The bytes
        may be unreadable."""
        own = self._find_own(id.path.partition("/")[0])
        if own is None or own.epoch_manifest is None:
            return NOTHING_INHERITED
        return own.epoch_manifest.find(id)

    # Changes of this process

    def count_change(self) -> int:
        """Return the next change sequence number."""
        return self._changes.add()

    def note_change(self, segment: KnownSegment) -> None:
        """Use the manifest of this `KnownSegment` from now on, because the segment may change."""
        own = self._find_own(segment.id.path.partition("/")[0])
        if own is not None and own.known is not None:
            own.known.note_change(segment)

    def take_snapshot(self, broker_name: str) -> ShutdownSnapshot:
        """Return a snapshot of the known segments of the held epoch, including segments with holes.
        It is empty without a held epoch."""
        own = self._find_own(broker_name)
        if own is None or own.known is None:
            return ShutdownSnapshot({})
        return own.known.take_snapshot(with_holes=True)

    def exclude_groups(self, broker_name: str, groups: AbstractSet[str]) -> None:
        """Replace the set of a broker's group objects that will be deleted. Segment manifests that
        need one of them are not cached."""
        self._excluded_groups[broker_name] = frozenset(groups)

    def needs_excluded_group(self, id: SegmentId, manifest: SegmentManifest) -> bool:
        """Return whether a segment manifest needs a group that will be deleted."""
        doomed = self._excluded_groups and self._excluded_groups.get(id.path.partition("/")[0])
        if not doomed:
            return False
        return any(
            extent.is_grouped and find_group(extent.name) in doomed for extent in manifest.extents
        )

    def note_deletion(self, id: SegmentId) -> None:
        """Record that this process has deleted a segment."""
        self.last_deletion = self.count_change()
        own = self._own.get(id.path.partition("/")[0])
        if own is not None and own.known is not None:
            own.known.note_deletion(id)

    def leave(self, broker_name: str, epoch: HeldEpoch) -> None:
        """Write the shutdown snapshot of an epoch after its last acknowledgement. No-op if that
        would save no requests. Raises the errors of the client."""
        own = self._own.get(broker_name)
        if own is None or own.epoch is not epoch or own.known is None or own.epoch_manifest is None:
            return
        snapshot, own.known = own.known.take_snapshot(), None
        if not snapshot.saves_listing:
            _log.info("%s: %d segments are to be listed again", broker_name, len(snapshot.unsure))
            return
        has_groups = own.epoch_manifest.has_groups
        for name, content in encode_snapshot(epoch.number, snapshot, has_groups=has_groups):
            key = f"{self._newest.folder(broker_name)}/{name}"
            self._client.put_if_absent(key, [content], {"w": epoch.stamp})

    # Listings

    def list_manifest(self, id: SegmentId, folder: str) -> SegmentManifest:
        """List the manifest of one segment. Raises Unavailable."""
        broker_name = id.path.partition("/")[0]
        for _ in range(MAX_STARTS):
            epoch_manifest = self._take(broker_name)
            try:
                manifest = self._listings.read_segment(id, folder, epoch_manifest)
            except Superseded as gone:
                self._newest.start_over(broker_name, epoch_manifest.number, gone)
                continue
            if self._holds_still(broker_name, epoch_manifest):
                self._check_manifest_exists(broker_name, epoch_manifest, [manifest])
                return manifest
        raise self._newest.make_restless_error(broker_name)

    def list_manifests(
        self, prefix: str, *, may_be_known: bool = False
    ) -> dict[SegmentId, SegmentManifest]:
        """List the manifests of all segments below a prefix, including segments with only garbage.
        `may_be_known`: reuse the first listing of the held epoch if possible. The result may then
        lack garbage, but no segment. Raises Unavailable, Invalid."""
        parts = naming.parse_prefix(prefix)
        if len(parts) > 1:
            return self._list_broker(parts[0], "/".join(parts))
        found: dict[SegmentId, SegmentManifest] = {}
        for broker_name in parts or self._listings.list_brokers():
            known = self._list_known(broker_name) if may_be_known else None
            found |= self._list_broker(broker_name, broker_name) if known is None else known
        return found

    def list_brokers(self) -> Iterator[str]:
        """Yield the brokers of the tier. See `SegmentListings.list_brokers`."""
        return self._listings.list_brokers()

    def find_listed_backups(self, broker_name: str) -> Sequence[BackupName] | None:
        """Return the backups in the last listing of a whole broker prefix, or None without one."""
        return self._listings.backups.get(broker_name)

    def keep(self, broker_name: str) -> list[str]:
        """Restore lost objects of the held epoch's manifest, and return the keys of former epoch
        manifests. Raises Fenced, Unavailable."""
        own = self._find_own(broker_name)
        if own is None or own.epoch_manifest is None or own.objects is None:
            return []
        folder = self._newest.folder(broker_name)
        names = {info.key.removeprefix(f"{folder}/") for info in self._client.list(f"{folder}/")}
        for name, content in own.objects:
            if name not in names:
                own.epoch.confirm()  # Otherwise its successor has deleted it.
                _log.error("%s/%s: it was gone, and is put back", folder, name)
                self._make(f"{folder}/{name}", content, own.epoch)
        parsed = [(name, parse_epoch_manifest_name(name)) for name in sorted(names)]
        number = own.epoch.number
        return [f"{folder}/{name}" for name, found in parsed if found and found.number < number]

    # Valid epoch manifest

    def _get_begun(self, id: SegmentId, epoch_manifest: EpochManifest) -> Mapping[Generation, int]:
        own = self._find_own(id.path.partition("/")[0])
        is_own = own is not None and own.epoch_manifest is epoch_manifest
        return own.epoch.generations.get_begun(id) if own is not None and is_own else NOTHING_BEGUN

    def _find_own(self, broker_name: str) -> _Own | None:
        own = self._own.get(broker_name)
        return own if own is not None and not own.epoch.is_lost else None

    def _take(self, broker_name: str) -> EpochManifest:
        """Return the held epoch's manifest, and create it if it is missing. Without an epoch,
        return the newest one."""
        with suppress(Fenced):  # It was taken over in the meantime.
            return self.prepare(broker_name)
        return self._newest.take(broker_name)

    def _holds_still(self, broker_name: str, epoch_manifest: EpochManifest | None) -> bool:
        own = self._find_own(broker_name)
        if own is not None and own.epoch_manifest is epoch_manifest:
            with suppress(Fenced):
                own.epoch.confirm()
            return not own.epoch.is_lost
        return epoch_manifest is not None and self._newest.is_newest(broker_name, epoch_manifest)

    def _check_manifest_exists(
        self, broker_name: str, epoch_manifest: EpochManifest, manifests: Iterable[SegmentManifest]
    ) -> None:
        """Raise Corrupt if an epoch has written but its manifest is missing. The manifest is
        created before the first write, so it was lost. Without it, valid objects would count as
        garbage."""
        later = max((manifest.later for manifest in manifests), default=0)
        later = max(later, epoch_manifest.latest_grouped)
        if later > epoch_manifest.number:
            key = f"{self._newest.folder(broker_name)}/{epoch_manifest_name(later)}"
            raise Corrupt(
                f"{key}: epoch {later} has written, and its manifest is missing, so the valid "
                "objects of the broker are unknown. Restore this object",
                path=key,
            )

    # Listing

    def _list_broker(self, broker_name: str, prefix: str) -> dict[SegmentId, SegmentManifest]:
        for _ in range(MAX_STARTS):
            epoch_manifest = self._take(broker_name)
            try:
                found = self._listings.read_segments(
                    f"{self._cluster_folder}/{prefix}/", epoch_manifest
                )
            except Superseded as gone:
                self._newest.start_over(broker_name, epoch_manifest.number, gone)
                continue
            if self._holds_still(broker_name, epoch_manifest):
                self._check_manifest_exists(broker_name, epoch_manifest, found.values())
                return found
        raise self._newest.make_restless_error(broker_name)

    def _list_known(self, broker_name: str) -> dict[SegmentId, SegmentManifest] | None:
        own = self._find_own(broker_name)
        if own is None or own.is_listed:
            return None
        is_new = own.epoch_manifest is None
        self._inherit(broker_name, own)
        own.is_listed = True
        if own.epoch.has_helpers:
            return None
        as_of = self._changes.count
        snapshot = own.known.take_snapshot() if own.known is not None else None
        if (
            snapshot is None
            or snapshot.unsure
            or not (is_new or self._holds_still(broker_name, own.planned_manifest))
        ):
            return None
        if is_new:
            return dict(snapshot.manifests)
        return {id: replace(manifest, as_of=as_of) for id, manifest in snapshot.manifests.items()}  # noqa: A001

    # Inheritance

    def _inherit(self, broker_name: str, own: _Own) -> None:
        """List the tier after this process has claimed the epoch, and create its manifest."""
        number = own.epoch.number
        with own.lock:
            if own.epoch_manifest is not None:
                return
            if own.objects is None or own.known is None:
                as_of = self._changes.count
                found = self._find_predecessor_manifests(broker_name, number)
                manifests = {
                    found_id: manifest.carry_over(number, as_of)
                    for found_id, manifest in found.items()
                }
                own.known = KnownManifests(number, manifests)
                inherited = {
                    found: manifest.make_entry()
                    for found, manifest in manifests.items()
                    if manifest.is_there
                }
                has_groups = bool(self._settings.group_bytes) or _has_groups(manifests.values())
                own.planned_manifest = EpochManifest(number, inherited, has_groups=has_groups)
                own.planned_manifest.is_searched = True  # A successor claims an epoch first.
                own.objects = encode_epoch_manifest(number, inherited, has_groups=has_groups)
            for name, content in own.objects:
                self._make(f"{self._newest.folder(broker_name)}/{name}", content, own.epoch)
            own.epoch_manifest = own.planned_manifest

    def _find_predecessor_manifests(
        self, broker_name: str, number: int
    ) -> dict[SegmentId, SegmentManifest]:
        self._newest.forget(broker_name)  # earlier ones may be outdated
        self.groups.look_again()  # unreadable data is now lost for good
        for _ in range(MAX_STARTS):
            last = self._newest.find_number(broker_name)
            if last >= number:
                raise Fenced(
                    f"{self._newest.folder(broker_name)}: epoch {number} was taken over: epoch "
                    f"{last} has written"
                )
            try:
                # Not if an epoch was claimed in between, since its manifest may have been lost.
                found = self._read_snapshot(broker_name, last) if 0 < last == number - 1 else None
                epoch_manifest = EpochManifest(last)
                if found is None:
                    epoch_manifest = self._newest.load(broker_name, last)
                    prefix = f"{self._cluster_folder}/{broker_name}/"
                    found = self._listings.read_segments(prefix, epoch_manifest)
            except Superseded as gone:
                self._newest.start_over(broker_name, last, gone)
                continue
            if self._newest.find_number(broker_name) == last:
                self._check_manifest_exists(broker_name, epoch_manifest, found.values())
                return found
        raise self._newest.make_restless_error(broker_name)

    def _read_snapshot(
        self, broker_name: str, last: int
    ) -> dict[SegmentId, SegmentManifest] | None:
        """Return the segment manifests of the shutdown snapshot of epoch `last`, or None. No later
        epoch has written, because none has a manifest."""
        snapshot = decode_snapshot(last, lambda name: self._newest.read(broker_name, name))
        if snapshot is None:
            return None
        found = dict(snapshot.manifests)
        epoch_manifest = (
            self._newest.load(broker_name, last) if snapshot.unsure else EpochManifest(last)
        )
        for id in snapshot.unsure:  # noqa: A001 - the contract's name
            folder = f"{self._cluster_folder}/{naming.relative_segment_path(id)}"
            found[id] = self._listings.read_segment(id, folder, epoch_manifest)
        return found

    def _make(self, key: str, content: bytes, epoch: HeldEpoch) -> None:
        problem: TieredStoreError | None = None
        with self._settings.limit_retries():
            for attempt in self._settings.attempts():
                epoch.check()
                try:
                    self._client.put_if_absent(key, [content], {"w": epoch.stamp})
                except (Busy, Unavailable) as error:
                    problem = error
                    self._settings.pause(attempt)
                else:
                    return
        raise Unavailable(f"{key}: the epoch manifest was not written: {problem}", path=key)


def _has_groups(manifests: Iterable[SegmentManifest]) -> bool:
    return any(extent.is_grouped for manifest in manifests for extent in manifest.extents)
