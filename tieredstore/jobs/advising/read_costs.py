"""Monthly reads of the tier, by topic."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tieredstore.config import StoreConfig
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.request_model import ModelledQueue, RequestModel
from tieredstore.contracts.usage import MONTH_MS
from tieredstore.jobs.advising.replay import WAITING_MS, ColdReader, ReadFigures, model_reads
from tieredstore.jobs.advising.timeline import Backend
from tieredstore.jobs.advising.upload_costs import Monthly, add_requests
from tieredstore.jobs.advising.workload import ColdRun, LeavesAt, Workload, find_cold_runs

READ_SAMPLE_BYTES: Final = 24 << 20
READ_SAMPLE_GETS: Final = 2_000


class WeightedTime(NamedTuple):
    """Time of a modelled get, ms, and the number of monthly gets that it represents."""

    time_ms: float
    weight: float


@dataclass(slots=True)
class TopicReads:
    """Monthly reads of one topic, or of all topics."""

    requests: Monthly = field(default_factory=dict)
    read_bytes: float = 0.0
    messages: float = 0.0
    times: list[WeightedTime] = field(default_factory=list)
    _percentiles: dict[tuple[float, bool], float | None] = field(default_factory=dict, repr=False)

    def add(self, other: TopicReads) -> None:
        """Add the figures of other reads."""
        add_requests(self.requests, other.requests, 1.0)
        self.read_bytes += other.read_bytes
        self.messages += other.messages
        self.times += other.times
        self._percentiles.clear()

    def percentile(self, share: float, *, waiting: bool = False) -> float | None:
        """Return the time in ms within which `share` of the gets end, or None without gets.
        `waiting`: count only gets that wait for the backend."""
        known = self._percentiles
        if (share, waiting) not in known:
            known[share, waiting] = self._find_percentile(share, waiting=waiting)
        return known[share, waiting]

    def _find_percentile(self, share: float, *, waiting: bool) -> float | None:
        times = sorted(time for time in self.times if not waiting or time.time_ms > WAITING_MS)
        wanted = share * sum(time.weight for time in times)
        for time in times:
            wanted -= time.weight
            if wanted <= 1e-9:
                return time.time_ms
        return times[-1].time_ms if times else None

    @property
    def waiting_share(self) -> float:
        """Share of the gets that wait for the backend."""
        total = sum(time.weight for time in self.times)
        waiting = sum(time.weight for time in self.times if time.time_ms > WAITING_MS)
        return waiting / total if total else 0.0


@dataclass(frozen=True, slots=True)
class MeasuredReads:
    """Reads of each topic, and of all topics together."""

    topics: Mapping[str, TopicReads]
    whole: TopicReads


NO_READS: Final = MeasuredReads({}, TopicReads())


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads of one queue by one consumer group from the tier. `runs`: ranges of messages in the
    order of the reads."""

    runs: Sequence[ColdRun]
    record_bytes: float
    queue_messages: int
    stored: ModelledQueue
    stored_bytes: int

    @property
    def key(self) -> QueueKey:
        return self.runs[0].reading.key

    @property
    def messages(self) -> int:
        return sum(run.messages for run in self.runs)

    @property
    def messages_per_s(self) -> float:
        """Mean message rate of the runs."""
        return self.messages * 1000 / sum(run.span_ms for run in self.runs)

    @property
    def pull(self) -> int:
        """Mean number of messages per get."""
        return max(round(self.messages / sum(run.gets for run in self.runs)), 1)

    def kind(self) -> tuple[int, ...]:
        """Return a key that is equal for similar readers. Only one reader per key is simulated."""
        sampled = min(self.messages / len(self.runs), READ_SAMPLE_GETS * self.pull)
        values = (self.record_bytes, self.messages_per_s, sampled)
        steps = (round(math.log2(max(value, 1e-9))) for value in values)
        return (id(self.stored), *steps, self.pull)

    def sample(self) -> ColdReader:
        """Return a reader of the first messages only, because a simulation of all messages would
        take too long. Its lowest offset becomes 0."""
        most = READ_SAMPLE_GETS * self.pull
        most = max(min(int(READ_SAMPLE_BYTES / self.record_bytes), most), self.pull)
        runs: list[tuple[int, int]] = []
        base = min(run.first for run in self.runs)
        for run in self.runs:
            if most <= 0:
                break
            runs.append((run.first - base, min(run.messages, most)))
            most -= run.messages
        # A cut run would use its read-ahead at the cut, so none is wasted there.
        messages = 0 if most < 0 else self.queue_messages - base
        return ColdReader(
            self.key, runs, self.record_bytes, self.pull, self.messages_per_s, self.stored,
            self.stored_bytes, messages=messages,
        )  # fmt: skip


@dataclass
class ReadCosts:
    """Model of the reads of a workload. Similar readers are simulated once per cache size.
    `stored`: model of each queue's objects and number of its log bytes. All upload settings are
    compared with the same objects."""

    workload: Workload
    stored: Mapping[QueueKey, tuple[ModelledQueue, int]]
    config: StoreConfig
    model: RequestModel
    backend: Backend
    _known: dict[tuple[object, ...], ReadFigures] = field(default_factory=dict)
    _measured: dict[tuple[object, ...], MeasuredReads] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._arrivals = {
            load.key: load.arrivals for load in self.workload.queues if load.is_tiered
        }

    def measure(
        self, name: tuple[object, ...], leaves_ms: LeavesAt, cache_bytes: int
    ) -> MeasuredReads:
        """Simulate the reads from the tier. The result is cached by `name` and `cache_bytes`."""
        if (*name, cache_bytes) not in self._measured:
            self._measured[*name, cache_bytes] = self._measure_all(leaves_ms, cache_bytes)
        return self._measured[*name, cache_bytes]

    def _measure_all(self, leaves_ms: LeavesAt, cache_bytes: int) -> MeasuredReads:
        readers = list(self._find_readers(leaves_ms))
        if not readers:
            return NO_READS
        kinds: defaultdict[tuple[int, ...], list[_Reader]] = defaultdict(list)
        for reader in readers:
            kinds[reader.kind()].append(reader)
        # Readers that are active at a time share the cache.
        active_ms = sum(reader.messages * 1000 / reader.messages_per_s for reader in readers)
        at_once = max(active_ms / self.workload.span_ms, 1.0)
        topics: defaultdict[str, TopicReads] = defaultdict(TopicReads)
        for kind, alike in kinds.items():
            figures = self._replay(kind, alike, int(cache_bytes / at_once))
            for reader in alike:
                topics[reader.key.topic].add(self._scale(figures, reader))
        whole = TopicReads()
        for topic in topics.values():
            whole.add(topic)
        return MeasuredReads(dict(topics), whole)

    def _find_readers(self, leaves_ms: LeavesAt) -> Iterable[_Reader]:
        runs: defaultdict[tuple[str, QueueKey], list[ColdRun]] = defaultdict(list)
        for reading in self.workload.readings:
            arrivals = self._arrivals.get(reading.key)
            if arrivals is not None and reading.key in self.stored and arrivals.record_bytes:
                runs[reading.group, reading.key] += find_cold_runs(reading, arrivals, leaves_ms)
        for (_, key), cold in runs.items():
            if cold:
                arrivals = self._arrivals[key]
                end = int(arrivals.offsets[-1])
                yield _Reader(cold, arrivals.record_bytes, end, *self.stored[key])

    def _replay(
        self, kind: tuple[int, ...], alike: Sequence[_Reader], share_bytes: int
    ) -> ReadFigures:
        known = (*kind, share_bytes)
        if known not in self._known:
            reader = max(alike, key=lambda reader: reader.messages)
            reader.stored.reopen()
            self._known[known] = model_reads(
                [reader.sample()], self.config, self.model, self.backend, share_bytes
            )
        return self._known[known]

    def _scale(self, figures: ReadFigures, reader: _Reader) -> TopicReads:
        factor = reader.messages / figures.messages * MONTH_MS / self.workload.span_ms
        times = [WeightedTime(time_ms, factor) for time_ms in figures.times_ms]
        found = TopicReads({}, figures.read_bytes * factor, figures.messages * factor, times)
        add_requests(found.requests, figures.requests, factor)
        return found
