"""ChunkProvider: a tier as logs of immutable objects, over any ObjectClient. Layout and algorithms:
`docs/formats/chunk-log.md`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tieredstore.contracts.backups import BackupName
from tieredstore.contracts.block_checksums import BlockCoverage
from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.probing import ProbeOptions, ProbeResult
from tieredstore.contracts.segment import Capabilities, LocalCopy, SegmentId, SegmentListing
from tieredstore.contracts.tier_identity import EpochRecord, TierMark
from tieredstore.providers import naming
from tieredstore.providers.chunks.epochs.epoch import WRITER_FOLDER, ChunkWriterEpoch
from tieredstore.providers.chunks.epochs.fencing import check_fencing
from tieredstore.providers.chunks.epochs.writers import Writers
from tieredstore.providers.chunks.manifests.segment_manifest import SegmentManifest
from tieredstore.providers.chunks.manifests.views import Views
from tieredstore.providers.chunks.probes import probe_objects
from tieredstore.providers.chunks.reading.blocks import BlockReader, ObjectChecker
from tieredstore.providers.chunks.reading.reader import ByteCache, ChunkReader, WriteCache
from tieredstore.providers.chunks.record_objects import ObjectFolder
from tieredstore.providers.chunks.segment import ChunkFileSegment, SegmentServices
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import SegmentState, SegmentStates
from tieredstore.providers.chunks.stopping import StopLimit
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.garbage import GarbageBin, GroupGarbage
from tieredstore.providers.chunks.upkeep.grouping import GroupUpkeep
from tieredstore.providers.chunks.upkeep.maintenance import (
    GroupSorting,
    Maintenance,
    MaintenanceReport,
)
from tieredstore.providers.chunks.writing.append import CarryingAppender, ChunkAppender
from tieredstore.providers.chunks.writing.gathering import Gatherer
from tieredstore.providers.records import RecordingProvider
from tieredstore.service_thread import ServiceHealth

if TYPE_CHECKING:
    from tieredstore.providers.chunks.modelling.queue import ChunkRequestModel


class ChunkProvider(RecordingProvider):
    """The tier of one cluster.

    `owner`: name of this writer in epochs and on objects, ASCII without line breaks (default: host,
    process, time and a random part).
    `maintenance_client`: client of the same objects with separate limits, for merges and deletions.
    """

    def __init__(
        self,
        client: ObjectClient,
        cluster: str = "DefaultCluster",
        *,
        settings: ChunkSettings | None = None,
        owner: str | None = None,
        maintenance_client: ObjectClient | None = None,
    ) -> None:
        self.client = client
        maintained = maintenance_client if maintenance_client is not None else client
        settings = settings if settings is not None else ChunkSettings()
        if not client.limits.conditional:  # no shared fence checks
            settings = replace(settings, group_bytes=0)
        self._settings = settings
        self._fencing_checked = not settings.fencing
        self._stop_limit = StopLimit(settings, client.close)
        self._cluster_folder = naming.cluster_directory_name(cluster)
        self._views = Views(client, self._cluster_folder, settings)
        self._states = SegmentStates(self._cluster_folder, self._views)
        self._writers = Writers(client, self._cluster_folder, settings, owner)
        written = WriteCache(
            settings.write_cache_bytes, settings.write_cache_age_ms, settings.monotonic_ms
        )
        blocks = ByteCache(settings.block_cache_bytes)
        self._reader = ChunkReader(client, settings, written)
        appender = ChunkAppender(client, settings, self._reader, written, self._views)
        garbage = GarbageBin(maintained, written)
        compactor = Compactor(
            maintained,
            settings,
            self._reader,
            written,
            appender,
            garbage,
            self._states,
            self._views,
        )
        carrying = CarryingAppender(client, settings, written, appender)
        self._gatherer = Gatherer(client, self._cluster_folder, settings, carrying)
        group_garbage = GroupGarbage(maintained, settings, self._gatherer, self._views)
        self._groups = GroupUpkeep(
            maintained,
            settings,
            self._reader,
            compactor,
            group_garbage,
            self._states,
            self._views,
        )
        self._maintenance = Maintenance(
            maintained,
            self._cluster_folder,
            settings,
            compactor,
            garbage,
            GroupSorting(maintained, settings, self._groups, self._views, self._stop_limit),
            group_garbage,
            self._states,
            self._writers,
            self._views,
            self._stop_limit,
        )
        self._services = SegmentServices(
            settings,
            self._reader,
            BlockReader(blocks, settings.block_bytes, settings.read_gap_bytes),
            ObjectChecker(client, self._reader),
            appender,
            carrying,
            self._gatherer,
            compactor,
            self._writers,
            self._maintenance,
        )

    def make_segment(self, state: SegmentState, services: SegmentServices) -> ChunkFileSegment:
        """Create a handle of the backend's segment class."""
        return ChunkFileSegment(state, services)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            rewritable=False,
            conditional=self.client.limits.conditional,
            durable=self._settings.durable,
            preferred_batch_bytes=self._settings.preferred_batch_bytes,
            concurrent_reads=self.client.limits.concurrent_requests,
            paired=True,
            gathered_bytes=self._settings.group_bytes,
        )

    @property
    def url(self) -> str:
        return self.client.url

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """List the segments. `token` is the segment manifest (`SegmentManifest`). A segment with a
        hole has the size up to its last object. Reading the hole raises Corrupt with its offsets.
        The first call after an epoch was acquired reuses the listing of that broker."""
        manifests = self._views.list_manifests(prefix, may_be_known=True)
        for id, manifest in manifests.items():  # noqa: A001 - the contract's name
            self._maintenance.notice_listed(id, manifest)
        there = ((found, manifest) for found, manifest in manifests.items() if manifest.is_there)
        return tuple(_listing(found, manifest) for found, manifest in there)

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> ChunkFileSegment:
        """Open a segment. A `listing` with size 0 and without a token means that the segment does
        not exist."""
        state = self._states.get_state(id)
        if listing is not None:
            if isinstance(listing.token, SegmentManifest):
                state.adopt(listing.token)
            elif listing.size_bytes == 0 and not listing.sealed and listing.token is None:
                self._adopt_absent(state)
        return self.make_segment(state, self._services)

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> ChunkWriterEpoch:
        """Acquire the epoch and start maintenance. An epoch of the same state directory, or of a
        process that has certainly ended, is taken over even without `take_over`. The first call
        checks that the endpoint refuses to create an object twice. Raises Invalid if it does not,
        because a second writer could not be fenced."""
        if self.client.limits.conditional and not self._fencing_checked:
            check_fencing(self.client, f"{self._cluster_folder}/{broker_name}/{WRITER_FOLDER}")
            self._fencing_checked = True
        epoch = self._writers.acquire(
            broker_name,
            lambda epoch: self._maintenance.leave(broker_name, epoch),
            lambda epoch: self._views.leave(broker_name, epoch),
            take_over=take_over,
            record=record,
        )
        epoch.gather(lambda: self._gatherer.flush(epoch))
        if self._settings.maintenance_threads:
            self._stop_limit.prepare()
        self._views.begin(broker_name, epoch)
        self._maintenance.start(broker_name)
        return epoch

    def expect_queues(self, broker_name: str, paths: Sequence[str]) -> None:
        """Set queues at which a long listing of a broker may be split into parallel parts."""
        self._views.expect_queues(broker_name, paths)

    def use_local_copy(self, broker_name: str, read: LocalCopy) -> None:
        """Set the function that reads a broker's queues from the local disk. Bytes in groups are
        read from there when they are moved."""
        self._groups.use_local_copy(broker_name, read)

    def help_writer(self, broker_name: str, number: int) -> None:
        """Write only under the given epoch, which another process holds. Its epoch manifest already
        exists."""
        self._writers.help(broker_name, number)

    def find_last_writer(self, broker_name: str) -> str | None:
        """Return a description of the last writer below a broker prefix, or None."""
        return self._writers.describe_last(broker_name)

    def read_mark(self, broker_name: str, since: int) -> TierMark:
        """Read the identity of a broker's part, and its writers. See `IdentifiedTier`."""
        return self._writers.read_mark(broker_name, since)

    def list_brokers(self) -> Iterator[str]:
        """Yield the names of the brokers of the tier. Costs one LIST per broker."""
        return self._views.list_brokers()

    def find_listed_backups(self, broker_name: str) -> Sequence[BackupName] | None:
        return self._views.find_listed_backups(broker_name)

    def open_records(self, *names: str, is_secret: bool = False) -> ObjectFolder:
        """Return a folder of records, see `RecordingProvider`."""
        del is_secret  # Permissions are those of the bucket.
        return ObjectFolder(self.client, "/".join((self._cluster_folder, *names)))

    def run_maintenance(self, *, sweep: bool = True) -> MaintenanceReport:
        """Run all due maintenance in this thread, for the brokers whose epoch is held. `sweep`:
        also clean up after former processes, and abort old multipart uploads."""
        return self._maintenance.run(sweep=sweep)

    def make_request_model(self) -> ChunkRequestModel:
        """Return the model of the requests to the object store."""
        from tieredstore.providers.chunks.modelling.queue import ChunkRequestModel

        return ChunkRequestModel(self._settings, self.client.limits, self.capabilities)

    def check_blocks(self, id: SegmentId, listing: SegmentListing | None = None) -> BlockCoverage:
        """Compare the objects of a segment with their CRCs. Objects without a CRC are skipped.
        Raises Corrupt, Unavailable, see `BlockChecked`."""
        return self.open(id, listing).check()

    def probes(self, options: ProbeOptions) -> Iterator[ProbeResult]:
        """Run the probes of `tieredstore doctor` on the object store, below the tier's prefix."""
        return probe_objects(self.client, options)

    def health(self) -> Sequence[ServiceHealth]:
        """Return the health of the maintenance loops. Empty before an epoch is held."""
        return self._maintenance.health()

    def begin_stop(self) -> None:
        """Start the time limit of a stop. After half of `close_timeout_ms`, running requests are
        aborted, and no further requests are sent."""
        self._stop_limit.begin()

    def close(self) -> None:
        """Stop maintenance, renewals and reads within the time limit of a stop. Call this method
        after all epochs are released."""
        self._stop_limit.prepare()
        self._stop_limit.begin()
        self._maintenance.close()
        self._writers.close()
        self._reader.close(self._stop_limit.left_to_wait_ms())
        self.client.close()
        self._stop_limit.finish()

    def _adopt_absent(self, state: SegmentState) -> None:
        epoch = self._writers.get_held_epochs().get(state.broker_name)
        if epoch is None:
            state.adopt(SegmentManifest())
        elif self._views.knows_absent(state.id):
            state.adopt(SegmentManifest(epoch=epoch.number))


def _listing(id: SegmentId, manifest: SegmentManifest) -> SegmentListing:
    return SegmentListing(
        id, manifest.size_bytes, manifest.is_closed, manifest, len(manifest.extents)
    )
