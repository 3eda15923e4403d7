"""ChunkProvider: a tier as logs of immutable objects, over any ObjectClient.

Layout and algorithms: `docs/formats/chunk-log.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from tieredstore.contracts.epoch_record import EpochRecord
from tieredstore.contracts.probing import ProbeOptions, ProbeResult
from tieredstore.contracts.segment import Capabilities, SegmentId, SegmentListing
from tieredstore.providers import naming
from tieredstore.providers.chunks.append import ChunkAppender
from tieredstore.providers.chunks.chain import Chain, read_chain
from tieredstore.providers.chunks.client import ObjectClient, ObjectInfo
from tieredstore.providers.chunks.epoch import WRITER_FOLDER, ChunkWriterEpoch
from tieredstore.providers.chunks.fencing import check_fencing
from tieredstore.providers.chunks.probes import probe_objects
from tieredstore.providers.chunks.reading.blocks import BlockReader
from tieredstore.providers.chunks.reading.cache import ByteCache, WriteCache
from tieredstore.providers.chunks.reading.reader import ChunkReader
from tieredstore.providers.chunks.segment import ChunkFileSegment, SegmentServices
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.chunks.state import SegmentState, SegmentStates
from tieredstore.providers.chunks.stopping import StopLimit
from tieredstore.providers.chunks.upkeep.compaction import Compactor
from tieredstore.providers.chunks.upkeep.maintenance import Maintenance, MaintenanceReport
from tieredstore.providers.chunks.writers import Writers
from tieredstore.service_thread import ServiceHealth

_log = logging.getLogger(__name__)


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
        self._settings = settings = settings if settings is not None else ChunkSettings()
        self._fencing_checked = not settings.fencing
        self._stop_limit = StopLimit(settings, client.close)
        self._cluster_folder = naming.cluster_directory_name(cluster)
        self._states = SegmentStates(client, self._cluster_folder, settings.monotonic_ms)
        self._writers = Writers(client, self._cluster_folder, settings, owner)
        written = WriteCache(
            settings.write_cache_bytes, settings.write_cache_age_ms, settings.monotonic_ms
        )
        blocks = ByteCache(settings.block_cache_bytes)
        self._reader = ChunkReader(client, settings, written)
        appender = ChunkAppender(client, settings, self._reader, written)
        compactor = Compactor(maintained, settings, self._reader, written, appender)
        self._maintenance = Maintenance(
            maintained,
            self._cluster_folder,
            settings,
            compactor,
            self._states,
            self._writers,
            self._list_segments,
            self._stop_limit,
        )
        self._services = SegmentServices(
            settings,
            self._reader,
            BlockReader(blocks, settings.block_bytes, settings.read_gap_bytes),
            appender,
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
        )

    @property
    def url(self) -> str:
        return self._client.url

    def list(self, prefix: str = "") -> Iterable[SegmentListing]:
        """List the segments in one paged listing; `token` is the Chain. A segment with a hole has
        the size up to its last object: reading the hole raises Corrupt, with its offsets."""
        listings = tuple(self._list_segments(prefix))
        for listing in listings:
            if isinstance(listing.token, Chain):
                self._maintenance.notice_listed(listing.id, listing.token)
        return listings

    def open(self, id: SegmentId, listing: SegmentListing | None = None) -> ChunkFileSegment:
        """Open a segment. A listing of size 0 without a token says that the segment is known to be
        absent."""
        state = self._states.get_state(id)
        if listing is not None:
            if isinstance(listing.token, Chain):
                state.adopt(listing.token)
            elif listing.size_bytes == 0 and not listing.sealed and listing.token is None:
                state.adopt(Chain(seen_ms=self._settings.monotonic_ms()))
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
            lambda _: self._maintenance.drain(),
            take_over=take_over,
            record=record,
        )
        if self._settings.maintenance_threads:
            self._stop_limit.prepare()
        self._maintenance.start(broker_name)
        return epoch

    def find_last_writer(self, broker_name: str) -> str | None:
        """Describe the last writer below a broker prefix; None when there was none."""
        return self._writers.describe_last(broker_name)

    def run_maintenance(self, *, sweep: bool = True) -> MaintenanceReport:
        """Merge, seal and collect what is due below the brokers whose epoch is held, now and in
        this thread; with `sweep` also what former processes left, and old multipart uploads."""
        return self._maintenance.run(sweep=sweep)

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

    def _list_segments(self, prefix: str) -> Iterator[SegmentListing]:
        parts = naming.parse_prefix(prefix)
        begin_ms = self._settings.monotonic_ms()
        start = "".join(f"{part}/" for part in (self._cluster_folder, *parts))
        seen: set[SegmentId] = set()
        again: dict[SegmentId, str] = {}
        held: dict[SegmentId, SegmentListing] = {}
        for folder, objects in groupby(self._client.list(start), _folder):
            id = self._segment_id(folder)  # noqa: A001 - the contract's name
            if id is None:
                continue
            chain = read_chain(objects, folder, begin_ms)
            if id in seen or chain.holes:
                again[id] = folder  # its objects were not listed in one run
            seen.add(id)
            held[id] = _listing(id, chain)
        for id, folder in again.items():  # noqa: A001
            chain = read_chain(self._client.list(f"{folder}/"), folder, begin_ms)
            for hole in chain.holes:
                _log.error("%s: bytes %d to %d are in no object", folder, *hole)
            held[id] = _listing(id, chain)
        return iter([found for found in held.values() if found.token != _NOTHING])

    def _segment_id(self, folder: str) -> SegmentId | None:
        """The segment that has this folder; None for one that is not a segment's."""
        parts = folder.removeprefix(f"{self._cluster_folder}/").split("/")
        if len(parts) != 5:
            return None
        segment_type = naming.parse_type_name(parts[3])
        base_offset = naming.parse_segment_file_name(parts[4])
        if segment_type is None or base_offset is None or not naming.is_queue_id(parts[2]):
            return None
        return SegmentId("/".join(parts[:3]), segment_type, base_offset)


_NOTHING = Chain()


def _folder(info: ObjectInfo) -> str:
    return info.key.rpartition("/")[0]


def _listing(id: SegmentId, chain: Chain) -> SegmentListing:
    return SegmentListing(id, chain.size_bytes, chain.is_closed, chain, len(chain.extents))
