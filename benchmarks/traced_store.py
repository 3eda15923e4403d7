"""Store that records a trace, and the model of `advise` over this trace. Both count object store
requests."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from benchmarks.cost.simulation import HOUR_MS, MeteredMemoryClient
from tieredstore.clock import ManualClock
from tieredstore.config import StorageLevel, StoreConfig
from tieredstore.contracts.request_model import Requests
from tieredstore.contracts.usage import MONTH_MS
from tieredstore.jobs.advising.gathering import gather_workload
from tieredstore.jobs.advising.observing import read_trace
from tieredstore.jobs.advising.queue_uploads import model_uploads
from tieredstore.jobs.advising.read_costs import ReadCosts, WeightedTime
from tieredstore.jobs.advising.timeline import Backend
from tieredstore.jobs.advising.upload_costs import Counted, count_shared
from tieredstore.jobs.advising.workload import classify
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.chunks.modelling.queue import ChunkRequestModel
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.chunks.settings import ChunkSettings
from tieredstore.tier.store import TieredMessageStore

TOPIC = "traced"
_STEP_MS = 5_000
_SCAN_MS = 20_000
_TRACE_MS = 10_000
_MAINTENANCE_MS = 60_000
_BEGIN_MS = 1_700_000_000_000


class SteppedThenRealClock(ManualClock):
    """Clock that advances only on request. After `go`, it also advances with real time."""

    _begun_s: float | None = None

    def go(self) -> None:
        self._begun_s = time.perf_counter()

    def now_ms(self) -> int:
        passed_s = 0.0 if self._begun_s is None else time.perf_counter() - self._begun_s
        return super().now_ms() + int(passed_s * 1000)


@dataclass(frozen=True, slots=True)
class TracedLoad:
    """Load of the traced store. Each queue receives a message of `body_bytes` every five seconds.
    At each time in `bursts` (hours) it receives the messages of an hour at once. One group reads
    close to the end. At the end another group reads all messages."""

    queues: int
    body_bytes: int
    duration_ms: int
    bursts: Sequence[int] = ()


@dataclass(slots=True)
class Run:
    """Figures of a run. `uploads`, `reads`: numbers of requests, without those of the start.
    `times_ms`: durations of the last group's gets, weighted by the number of gets that they
    represent."""

    uploads: int
    reads: int
    times_ms: list[WeightedTime]


class TracedRun:
    """Store in a folder, with its own object store in memory. Instead of the store's background
    loops, this class calls their functions at the same intervals."""

    def __init__(
        self, load: TracedLoad, folder: Path, client_class: type[MeteredMemoryClient]
    ) -> None:
        self.load = load
        self.clock = SteppedThenRealClock(_BEGIN_MS)
        self.client = client_class(self.clock.now_ms)
        self.config = StoreConfig(
            broker_name="broker-a",
            store_path_root_dir=str(folder),
            storage_level=StorageLevel.FORCE,
            message_index_enable=False,
            trace_enable=True,
            dispatch_threads=1,
            read_ahead_cache_size_bytes=256 << 20,
        )
        self.folder = folder
        self._open()
        self._put: Counter[int] = Counter()
        self._read: Counter[int] = Counter()

    def _open(self) -> None:
        clock = self.clock
        settings = ChunkSettings(clock=clock, monotonic_ms=clock.now_ms, maintenance_threads=0)
        self.provider = ChunkProvider(self.client, settings=settings)
        self.local = DefaultMessageStore(self.config, clock)
        self.store = TieredMessageStore(
            self.local,
            self.config,
            self.provider,
            DefaultMetadataStore(self.folder / "metadata.json", "broker-a", clock),
            self.folder,
            clock,
        )
        self.store.load()
        self.local.start()
        self.store.trace._source = self.local.dispatch_source
        self.store.trace.run_round()

    def restart(self) -> None:
        """Restart with empty caches."""
        self.store.trace.stop()
        self.store.shutdown()
        self._open()

    def live(self) -> None:
        """Put and upload messages, and read each one soon after its put, for the duration of the
        load."""
        store, load, clock = self.store, self.load, self.clock
        for passed_ms in range(0, load.duration_ms, _STEP_MS):
            is_burst = passed_ms in {hour * HOUR_MS for hour in load.bursts}
            self._step(HOUR_MS // _STEP_MS if is_burst else 1)
            if passed_ms % _SCAN_MS == 0:
                self.local.flush()
                for outcome in store.dispatcher.scan():
                    if outcome.error is not None:
                        raise outcome.error
            if passed_ms % _MAINTENANCE_MS == 0:
                self.provider.run_maintenance(sweep=False)
            if passed_ms % _TRACE_MS == 0:
                store.trace.run_round()
            clock.advance(_STEP_MS)
            store.flat_files.check_writer()

    def _step(self, count: int) -> None:
        for queue_id in range(self.load.queues):
            for _ in range(count):
                message = Message.create(TOPIC, b"x" * self.load.body_bytes, queue_id=queue_id)
                assert self.store.put_message(message).ok
            self._put[queue_id] += count
        self.local.wait_until_dispatched()
        for queue_id in range(self.load.queues):
            while self._read[queue_id] < self._put[queue_id]:
                found = self.store.get_message("close", TOPIC, queue_id, self._read[queue_id], 32)
                self._read[queue_id] = found.next_begin_offset

    def read_all(self) -> list[float]:
        """Read all messages with one group, one queue after the other. Return the durations of its
        gets, ms."""
        self.clock.go()
        times_ms = []
        for queue_id in range(self.load.queues):
            offset = 0
            while offset < self._put[queue_id]:
                begin = time.perf_counter()
                found = self.store.get_message("late", TOPIC, queue_id, offset, 32)
                times_ms.append((time.perf_counter() - begin) * 1000)
                assert found.next_begin_offset > offset
                offset = found.next_begin_offset
        self.store.trace.run_round()
        return times_ms

    def count(self) -> Requests:
        """Return the number of requests so far, without the requests of the start."""
        rows = self.client.meter.usage().rows
        found: Requests = Counter()
        for row in rows:
            if row.file_type != "OTHER" and (
                row.file_type != "EPOCH" or row.operation == "HeadObject"
            ):
                found[row.operation, row.file_type] += row.requests
        return found

    def close(self) -> None:
        self.store.shutdown()

    def predict(self, backend: Backend) -> Run:
        """Replay the trace over the model, with the settings of the store. Return the predicted
        requests."""
        model = ChunkRequestModel()
        observed = read_trace(self.folder)
        workload = gather_workload(
            self.local.dispatch_source, [], observed, lambda topic: topic == TOPIC, 72
        )
        end_ms = _BEGIN_MS + self.load.duration_ms
        scans = range(_BEGIN_MS, end_ms, _SCAN_MS)
        classes = classify(workload)
        made = [
            model_uploads(
                one.arrivals, self.config, model.capabilities, model.make_queue(1 / len(classes)),
                scans,
            )
            for one in classes
        ]  # fmt: skip
        uploads = sum(count_shared([Counted(queue) for queue in made], model, scans).values())
        uploads += sum(sum(queue.requests.values()) for queue in made)
        stored = {
            member.key: (queue.written, int(queue.log_bytes))
            for one, queue in zip(classes, made, strict=True)
            for member in one.members
        }
        longest_ms = max(queue.loss_ms for queue in made)
        reads = ReadCosts(workload, cast("dict", stored), self.config, model, backend)  # type: ignore[type-arg]
        measured = reads.measure(
            ("trace",),
            lambda stored_ms: stored_ms + longest_ms,
            self.config.read_ahead_cache_size_bytes,
        ).whole
        share = workload.span_ms / MONTH_MS
        return Run(uploads, round(sum(measured.requests.values()) * share), list(measured.times))
