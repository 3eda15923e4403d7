"""ChunkProvider: a tier as logs of immutable objects, over any ObjectClient.

Layout and algorithms: `docs/formats/chunk-log.md`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tieredstore.contracts.backups import BackupName
from tieredstore.contracts.block_checksums import BlockCoverage
from tieredstore.contracts.epoch_record import EpochRecord
from tieredstore.contracts.gathering import LocalCopy
from tieredstore.contracts.probing import ProbeOptions, ProbeResult
from tieredstore.contracts.segment import Capabilities, SegmentId, SegmentListing
from tieredstore.providers import naming
from tieredstore.providers.chunks.backups import ObjectBackups
from tieredstore.providers.chunks.client import ObjectClient
from tieredstore.providers.chunks.epochs.epoch import WRITER_FOLDER, ChunkWriterEpoch
from tieredstore.providers.chunks.epochs.fencing import check_fencing
from tieredstore.providers.chunks.epochs.writers import Writers
from tieredstore.providers.chunks.lives.chain import Chain
from tieredstore.providers.chunks.lives.views import Views
from tieredstore.providers.chunks.probes import probe_objects
from tieredstore.providers.chunks.reading.blocks import BlockReader
from tieredstore.providers.chunks.reading.cache import ByteCache, WriteCache
from tieredstore.providers.chunks.reading.checking import ObjectChecker
from tieredstore.providers.chunks.reading.reader import ChunkReader
from tieredstore.providers.chunks.segment import ChunkFileSegment, SegmentServices
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import SegmentState, SegmentStates
from tieredstore.providers.chunks.stopping import StopLimit
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.garbage import GarbageBin
from tieredstore.providers.chunks.upkeep.group_garbage import GroupGarbage
from tieredstore.providers.chunks.upkeep.grouping import GroupUpkeep
from tieredstore.providers.chunks.upkeep.maintenance import Maintenance, MaintenanceReport
from tieredstore.providers.chunks.upkeep.sorting import GroupSorting
from tieredstore.providers.chunks.writing.append import ChunkAppender
from tieredstore.providers.chunks.writing.carrying import CarryingAppender
from tieredstore.providers.chunks.writing.gathering import Gatherer
from tieredstore.service_thread import ServiceHealth

if TYPE_CHECKING:
    from tieredstore.providers.chunks.modelling.model import ChunkRequestModel


class ChunkProvider:
    """The tier of one cluster. owner: names this writer in epochs and on objects (default: host,
    process, time and a random part); ASCII, no line breaks. maintenance_client: the same objects,
    where merges and deletions have limits of their own."""

    def __init__(
        self,
        client: ObjectClient,
        cluster: str = "DefaultCluster",
        *,
        settings: ChunkSettings | None = None,
        owner: str | None = None,
        maintenance_client: ObjectClient | None = None,
    ) -> None:
        self._client = client
        maintained = maintenance_client if maintenance_client is not None else client
        settings = settings if settings is not None else ChunkSettings()
        if not client.limits.conditional:  # each write is by itself, and nobody shares a look
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
        """Make a handle, of the class that the backend's segments have."""
        return ChunkFileSegment(state, services)

    @property
    def client(self) -> ObjectClient:
        return self._client

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            rewritable=False,
            conditional=self._client.limits.conditional,
            durable=self._settings.durable,
            preferred_batch_bytes=self._settings.preferred_batch_bytes,
            concurrent_reads=self._client.limits.concurrent_requests,
            paired=True,
            gathered_bytes=self._settings.group_bytes,
        )

    @property
    def url(self) -> str:
        return self._client.url

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """List the segments; `token` is the Chain. A segment with a hole has the size up to its
        last object: reading the hole raises Corrupt, with its offsets. Whoever holds the epoch of a
        broker, and lists that for the first time, asks for nothing that the epoch has found out."""
        chains = self._views.list_chains(prefix, may_be_known=True)
        for id, chain in chains.items():  # noqa: A001 - the contract's name
            self._maintenance.notice_listed(id, chain)
        there = ((found, chain) for found, chain in chains.items() if chain.is_there)
        return tuple(_listing(found, chain) for found, chain in there)

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> ChunkFileSegment:
        """Open a segment. A listing of size 0 without a token says that the segment is known to be
        absent."""
        state = self._states.get_state(id)
        if listing is not None:
            if isinstance(listing.token, Chain):
                state.adopt(listing.token)
            elif listing.size_bytes == 0 and not listing.sealed and listing.token is None:
                self._adopt_absent(state)
        return self.make_segment(state, self._services)

    def acquire_writer(
        self, broker_name: str, *, take_over: bool = False, record: EpochRecord | None = None
    ) -> ChunkWriterEpoch:
        """Acquire the epoch and start maintenance. One that was claimed with this state directory,
        and one whose process surely ended, is taken over without being asked to.

        Once, a probe makes sure that the endpoint refuses to make an object twice: without that
        nothing fences (Invalid).
        """
        if self._client.limits.conditional and not self._fencing_checked:
            check_fencing(self._client, f"{self._cluster_folder}/{broker_name}/{WRITER_FOLDER}")
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
        """Cut the next long listings of a broker at folders of these queues, too."""
        self._views.expect_queues(broker_name, paths)

    def use_local_copy(self, broker_name: str, read: LocalCopy) -> None:
        """Move what queues have in groups by what this machine has of it."""
        self._groups.use_local_copy(broker_name, read)

    def help_writer(self, broker_name: str, number: int) -> None:
        """Write beside that epoch alone, which another process holds and has listed the tier with:
        its inheritance is there."""
        self._writers.help(broker_name, number)

    def find_last_writer(self, broker_name: str) -> str | None:
        """Describe the last writer below a broker prefix; None when there was none."""
        return self._writers.describe_last(broker_name)

    def list_backups(self, broker_name: str) -> Sequence[BackupName]:
        return self._backups(broker_name).list()

    def read_backup(self, broker_name: str, name: BackupName) -> bytes | None:
        return self._backups(broker_name).read(name)

    def write_backup(self, broker_name: str, name: BackupName, data: bytes) -> None:
        self._backups(broker_name).write(name, data)

    def delete_backups(self, broker_name: str, names: Iterable[BackupName]) -> None:
        self._backups(broker_name).delete(names)

    def _backups(self, broker_name: str) -> ObjectBackups:
        naming.check_name(broker_name, "broker name")
        return ObjectBackups(self._client, f"{self._cluster_folder}/{broker_name}")

    def run_maintenance(self, *, sweep: bool = True) -> MaintenanceReport:
        """Merge, seal and collect what is due below the brokers whose epoch is held, now and in
        this thread; with `sweep` also what former processes left, and old multipart uploads."""
        return self._maintenance.run(sweep=sweep)

    def make_request_model(self) -> ChunkRequestModel:
        """Make the rules of what the object store is asked for."""
        from tieredstore.providers.chunks.modelling.model import ChunkRequestModel

        return ChunkRequestModel(self._settings, self._client.limits, self.capabilities)

    def check_blocks(self, id: SegmentId, listing: SegmentListing | None = None) -> BlockCoverage:
        """Read the objects of a segment that have a CRC, and compare. Raises Corrupt, Unavailable,
        see `BlockChecked`."""
        return self.open(id, listing).check()

    def probes(self, options: ProbeOptions) -> Iterator[ProbeResult]:
        """Run the probes of `tieredstore doctor` on the object store, below the tier's prefix."""
        return probe_objects(self._client, options)

    def health(self) -> Sequence[ServiceHealth]:
        """Return how the loops of the maintenance are; none before an epoch is held."""
        return self._maintenance.health()

    def begin_stop(self) -> None:
        """Let the time begin that a stop may take: after half of `close_timeout_ms` what is under
        way ends, and nothing more is asked for."""
        self._stop_limit.begin()

    def close(self) -> None:
        """End maintenance, signs of life and reads. Epochs are for their holders to release,
        before. Ends within the time that a stop may take; nothing goes on after it."""
        self._stop_limit.prepare()
        self._stop_limit.begin()
        self._maintenance.close()
        self._writers.close()
        self._reader.close(self._stop_limit.left_to_wait_ms())
        self._client.close()
        self._stop_limit.finish()

    def _adopt_absent(self, state: SegmentState) -> None:
        """Take a segment for absent, as the caller says, where nothing is known to the contrary."""
        epoch = self._writers.get_held_epochs().get(state.broker_name)
        if epoch is None:
            state.adopt(Chain())
        elif self._views.knows_absent(state.id):
            state.adopt(Chain(epoch=epoch.number))


def _listing(id: SegmentId, chain: Chain) -> SegmentListing:
    return SegmentListing(id, chain.size_bytes, chain.is_closed, chain, len(chain.extents))
