"""Cost of a tier's requests, by running the store itself over a simulated clock.

The dispatcher, the flat files, the expiry and the chunk log with its maintenance are the real ones.
The local store (queues that grow at a steady rate), the object store (in memory) and time are
simulated. A sample of queues represents many queues. Costs per queue are multiplied, and costs per
broker (writer epoch, sweeps) are not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tieredstore.clock import ManualClock
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey, QueueRange
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.contracts.usage import LIST_KEYS, MONTH_MS, Usage
from tieredstore.message import layout
from tieredstore.message.consume_queue import UNIT_DTYPE
from tieredstore.message.encoding import Message, encode_record
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.chunks.manifests.groups import parse_group_name
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.providers.s3.meter import Meter, find_file_type
from tieredstore.tier.expiry import TierExpiry
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.policy.topic_filter import TopicFilter
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher
from tieredstore.tier.writing import TierWriter

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
PIECES = "GROUP PIECES"
"""File type under which reads of one queue's bytes in group objects are counted. The simulation has
fewer queues than the real broker, but as many group objects. The count is therefore not
multiplied."""

_T0_MS = 1_700_000_000_000
_TOPIC = "Simulated"
_BROKER = "broker-a"
_HEARTBEAT_MS = 5_000
_MAINTENANCE_MS = 60_000
_UNIT_BYTES = 20
_READ_BYTES = 8 << 20
_STORE_TIME_POSITION = 56
"""Position of the store time in a record with an IPv4 born host."""

_OPERATIONS = {
    "PUT": "PutObject",
    "GET": "GetObject",
    "HEAD": "HeadObject",
    "LIST": "ListObjectsV2",
    "DELETE": "DeleteObjects",
    "CREATE_UPLOAD": "CreateMultipartUpload",
    "PUT_PART": "UploadPart",
    "COPY_PART": "UploadPartCopy",
    "COMPLETE_UPLOAD": "CompleteMultipartUpload",
    "LIST_UPLOADS": "ListMultipartUploads",
    "ABORT_UPLOAD": "AbortMultipartUpload",
}


@dataclass(frozen=True, slots=True)
class Scheme:
    """Upload schedule. `scan_ms`: interval of the dispatcher's scans. `keys`: fields of StoreConfig
    that differ from their defaults. `group_bytes`: maximum size of writes that share a group
    object, 0 for none."""

    name: str
    scan_ms: int = 20_000
    keys: Mapping[str, object] = field(default_factory=dict)
    group_bytes: int = 0


PLAIN = Scheme("plain 30 s", 30_000, {"group_commit": False})
"""Schedule that commits each queue every 30 s, the default of `tieredStoreGroupCommitTimeout`."""
FIXED = Scheme("30 s timeout, scan every 20 s", keys={"adaptive_commit_max_interval_ms": 0})
"""Schedule that RocketMQ's dispatcher would need to upload within 30 s."""
ADAPTIVE = Scheme("adaptive, 30 to 600 s")
"""Schedule of the default settings."""
GROUPED = Scheme("groups, 40 to 60 s", group_bytes=16 << 20)
"""Schedule with group objects. A message waits for 40 s, and then for the next scan."""


@dataclass(frozen=True, slots=True)
class Load:
    """Steadily growing queues. `queues`: number of simulated queues. `stands_for`: number of queues
    that they represent. `record_bytes`: size of a stored message. `interval_ms`: time between two
    messages of a queue. `duration_ms`: simulated time."""

    queues: int
    stands_for: int
    record_bytes: int
    interval_ms: float
    duration_ms: int
    retention_hours: int = 72


@dataclass(slots=True)
class Outcome:
    """Result, scaled to the queues that the sample represents.

    `requests`: number of requests, by operation and file type.
    `cost_usd`: by the default prices of the meter.
    `uploaded_bytes`: commit log bytes.
    `keys_left`, `bytes_left`: objects at the end, and their bytes.
    """

    scheme: str
    load: Load
    requests: Counter[tuple[str, str]]
    cost_usd: float
    uploaded_bytes: int
    keys_left: int
    bytes_left: int

    @property
    def request_count(self) -> int:
        return sum(self.requests.values())

    @property
    def cost_per_gib_usd(self) -> float:
        return self.cost_usd / (self.uploaded_bytes / (1 << 30))

    def a_month(self) -> Outcome:
        """Return the outcome scaled to a month."""
        factor = MONTH_MS / self.load.duration_ms
        counts = {row: round(count * factor) for row, count in self.requests.items()}
        return replace(
            self,
            requests=Counter(counts),
            cost_usd=self.cost_usd * factor,
            uploaded_bytes=round(self.uploaded_bytes * factor),
        )

    def by_operation(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for (operation, _), count in self.requests.items():
            found[operation] += count
        return dict(found.most_common())


class MeteredMemoryClient(MemoryObjectClient):
    """Object store in memory, whose requests are counted and priced like those of S3."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        super().__init__(now_ms=now_ms, page_keys=LIST_KEYS)
        self.meter = Meter()
        self._reads_pieces = False

    def get_range(self, key: str, position: int, length: int) -> bytes | None:
        name = parse_group_name(key.rpartition("/")[2])
        self._reads_pieces = name is not None and length != name.index_bytes
        return super().get_range(key, position, length)

    def request(self, operation: str, key: str) -> None:
        file_type = find_file_type(key)
        if operation == "GET" and file_type == "GROUP" and self._reads_pieces:
            file_type = PIECES
        self.meter.count(
            _OPERATIONS[operation],
            file_type,
            "200",
            sent_bytes=0,
            received_bytes=0,
            elapsed_ms=0,
        )


class SteadySource:
    """Local store whose queues receive a message of one size every `interval_ms`. Queues begin one
    after the other, because the queues of a real broker are not in phase."""

    def __init__(self, load: Load, clock: ManualClock) -> None:
        self._interval_ms = load.interval_ms
        self._clock = clock
        self._keys = [QueueKey(_TOPIC, number) for number in range(load.queues)]
        self._begin_ms = {
            key: _T0_MS + int(load.interval_ms * number / load.queues)
            for number, key in enumerate(self._keys)
        }
        bare = len(self._record(b"", 0))
        body = b"x" * max(load.record_bytes - bare, 0)
        self._templates = [
            np.frombuffer(self._record(body, key.queue_id), np.uint8).copy() for key in self._keys
        ]

    def _record(self, body: bytes, queue_id: int) -> bytes:
        message = Message.create(_TOPIC, body, queue_id=queue_id, born_timestamp_ms=_T0_MS)
        return bytes(encode_record(message, 0, 0, _T0_MS))

    @property
    def record_bytes(self) -> int:
        return len(self._templates[0])

    def queues(self) -> Iterable[QueueKey]:
        return self._keys

    def flush(self) -> None:
        pass

    def queue_range(self, key: QueueKey) -> QueueRange | None:
        passed_ms = self._clock.now_ms() - self._begin_ms[key]
        return QueueRange(0, max(int(passed_ms / self._interval_ms) + 1, 0))

    def read_units(self, key: QueueKey, offset: int, count: int) -> npt.NDArray[np.void]:
        units = np.zeros(count, UNIT_DTYPE)
        units["physical_offset"] = np.arange(offset, offset + count) + (key.queue_id << 48)
        units["size"] = self.record_bytes
        return units

    def read_records(self, units: npt.NDArray[np.void]) -> Sequence[memoryview]:
        places = units["physical_offset"].astype(np.int64)
        queue = int(places[0]) >> 48
        offsets = places & ((1 << 48) - 1)
        times = self._begin_ms[self._keys[queue]] + (offsets * self._interval_ms).astype(np.int64)
        records = np.tile(self._templates[queue], (len(units), 1))
        for position, values in (
            (layout.QUEUE_OFFSET_POSITION, offsets),
            (_STORE_TIME_POSITION, times),
        ):
            big_endian = np.ascontiguousarray(values.astype(">i8"))
            records[:, position : position + 8] = big_endian.view(np.uint8).reshape(-1, 8)
        return [memoryview(records.tobytes())]

    def is_in_store(self, key: QueueKey, offset: int) -> bool:
        del key, offset
        return True

    def is_in_memory(self, key: QueueKey, offset: int, count: int) -> bool:
        del key, offset, count
        return False

    def offset_by_time(self, key: QueueKey, timestamp_ms: int) -> int:
        return max(int((timestamp_ms - self._begin_ms[key]) / self._interval_ms), 0)

    def earliest_message_time(self, key: QueueKey | None = None) -> int:
        del key
        return _T0_MS

    def topic_reserve_hours(self) -> dict[str, int]:
        return {}

    def topic_storage_levels(self) -> dict[str, StorageLevel]:
        return {}

    def find_excluded_topics(self) -> Mapping[str, str]:
        return {}

    def set_retention_guard(self, guard: Callable[[QueueKey], int | None]) -> None:
        del guard


class Process:
    """The store of one process, over the simulated clock."""

    def __init__(
        self,
        scheme: Scheme,
        load: Load,
        folder: Path,
        client: type[MeteredMemoryClient] = MeteredMemoryClient,
    ) -> None:
        self.clock = ManualClock(_T0_MS)
        self.client = client(self.clock.now_ms)
        defaults = ChunkSettings()
        share = load.queues / load.stands_for
        self.provider = ChunkProvider(
            self.client,
            settings=ChunkSettings(
                clock=self.clock,
                monotonic_ms=self.clock.now_ms,
                maintenance_threads=0,
                # The sample's share, since the memory of many queues would be exceeded and merging
                # would read.
                write_cache_bytes=int(defaults.write_cache_bytes * share),
                block_cache_bytes=0,
                # To fill as many objects as many queues would.
                group_bytes=int(scheme.group_bytes * share),
                regrouped_bytes=int(defaults.regrouped_bytes * share),
            ),
        )
        config = StoreConfig(
            broker_name=_BROKER,
            dispatch_threads=1,
            file_reserved_time_hours=load.retention_hours,
            message_index_enable=False,
            **scheme.keys,  # type: ignore[arg-type]
        )
        self.metadata = DefaultMetadataStore(folder / "metadata.json", _BROKER, self.clock)
        self.source = SteadySource(load, self.clock)
        self.store = FlatFileStore(config, self.provider, self.metadata, self.clock)
        self.writer = TierWriter.acquire(self.provider, self.metadata, config.broker_name)
        self.store.become_writer(self.writer)
        self.store.load()
        self.dispatcher = MessageStoreDispatcher(
            config, self.source, self.store, None, TopicFilter(config), self.clock
        )
        self.expiry = TierExpiry(config, self.store, self.clock)

    def run(self, scan_ms: int, duration_ms: int) -> None:
        """Run scans, maintenance and expiry as the threads of a broker do."""
        begin_ms = self.clock.now_ms()
        due = dict.fromkeys(("maintenance", "sweep", "expiry"), begin_ms)
        while (now_ms := self.clock.now_ms()) < begin_ms + duration_ms:
            for outcome in self.dispatcher.scan():
                if outcome.error is not None:
                    raise outcome.error
            if now_ms >= due["maintenance"]:
                due["maintenance"] += _MAINTENANCE_MS
                sweep = now_ms >= due["sweep"]
                if sweep:
                    due["sweep"] += DAY_MS
                self.provider.run_maintenance(sweep=sweep)
            if now_ms >= due["expiry"]:
                due["expiry"] += HOUR_MS
                self.expiry.run_once()
            for _ in range(scan_ms // _HEARTBEAT_MS):  # The provider's housekeeper.
                self.clock.wait(_NEVER, _HEARTBEAT_MS)
                self.store.check_writer()

    def close(self) -> None:
        self.store.close()
        self.writer.release()
        self.provider.close()
        self.metadata.close()


_NEVER = threading.Event()


def simulate(scheme: Scheme, load: Load, folder: Path) -> Outcome:
    """Simulate a load under an upload schedule. `folder`: empty folder for the metadata file."""
    process = Process(scheme, load, folder)
    try:
        process.run(scheme.scan_ms, load.duration_ms)
        usage = process.client.meter.usage()
        sizes = [info.size_bytes for info in process.client.list("")]
        messages = sum(file.consume_queue_commit_offset for file in process.store.files())
        uploaded = messages * process.source.record_bytes
    finally:
        process.close()
    return _outcome(scheme, load, usage, sizes, uploaded)


def simulate_reading(scheme: Scheme, load: Load, folder: Path) -> int:
    """Run a load, then count the requests of a reader without state for the last day of one queue:
    messages and units."""
    process = Process(scheme, load, folder)
    try:
        process.run(scheme.scan_ms, load.duration_ms)
        meter = process.client.meter
        before = _count_requests(meter)
        reader = ChunkProvider(process.client, settings=ChunkSettings(maintenance_threads=0))
        for found in reader.list(f"{_BROKER}/{_TOPIC}/0"):
            segment = reader.open(found.id, found)
            day_bytes = DAY_MS / load.interval_ms * _UNIT_BYTES
            if found.id.type is FileSegmentType.COMMIT_LOG:
                day_bytes *= load.record_bytes / _UNIT_BYTES
            position = max(found.size_bytes - int(day_bytes), 0)
            while position < found.size_bytes:
                length = min(_READ_BYTES, found.size_bytes - position)
                position += len(segment.read(position, length))
        count = _count_requests(meter) - before
        reader.close()
        return count
    finally:
        process.close()


def _count_requests(meter: Meter) -> int:
    return sum(row.requests for row in meter.usage().rows)


def _outcome(
    scheme: Scheme, load: Load, usage: Usage, sizes: Sequence[int], uploaded: int
) -> Outcome:
    """Scale the figures of the simulated queues to all queues that they represent. `sizes`: sizes
    of the objects at the end."""
    scale = load.stands_for / load.queues
    keys_left = round(len(sizes) * scale)
    requests: Counter[tuple[str, str]] = Counter()
    cost = 0.0
    for row in usage.rows:
        factor = scale
        if row.file_type in {"EPOCH", "GROUP"}:
            factor = 1.0
        elif row.file_type == "OTHER" and row.operation == "ListObjectsV2":
            # A sweep or an opening takes one page here, and more with all these keys.
            factor = max(-(-keys_left // LIST_KEYS), 1)
        elif row.file_type == "OTHER":
            factor = 1.0
        requests[row.operation, row.file_type] += round(row.requests * factor)
        cost += row.cost_usd * factor
    uploaded_bytes, bytes_left = round(uploaded * scale), round(sum(sizes) * scale)
    return Outcome(scheme.name, load, requests, cost, uploaded_bytes, keys_left, bytes_left)
