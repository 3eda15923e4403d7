"""What reads of the tier come to in a month, by topic."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from tieredstore.jobs.advising.loads.workload import ColdRun, find_cold_runs
from tieredstore.jobs.advising.reads.modelling import (
    WAITING_MS,
    ColdReader,
    ReadFigures,
    model_reads,
)
from tieredstore.jobs.advising.uploads.costs import MONTH_MS, Monthly, add_requests

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.dispatch_source import QueueKey
    from tieredstore.contracts.request_model import ModelledQueue, RequestModel
    from tieredstore.jobs.advising.loads.workload import LeavesAt, Workload
    from tieredstore.jobs.advising.reads.backend import Backend

READ_SAMPLE_BYTES: Final = 24 << 20
READ_SAMPLE_GETS: Final = 2_000
_STEP: Final = math.log(2)


class WeightedTime(NamedTuple):
    """What a get took, ms, and for how many gets a month it stands."""

    time_ms: float
    weight: float


@dataclass(slots=True)
class TopicReads:
    """A month's."""

    requests: Monthly = field(default_factory=dict)
    read_bytes: float = 0.0
    messages: float = 0.0
    times: list[WeightedTime] = field(default_factory=list)
    _percentiles: dict[tuple[float, bool], float | None] = field(default_factory=dict, repr=False)

    def add(self, other: TopicReads) -> None:
        add_requests(self.requests, other.requests, 1.0)
        self.read_bytes += other.read_bytes
        self.messages += other.messages
        self.times += other.times
        self._percentiles.clear()

    def percentile(self, share: float, *, waiting: bool = False) -> float | None:
        """Return the time that this share of the gets takes at most, ms; None without any.
        waiting: of those alone that wait for the backend."""
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
class _Reader:
    """Cold runs of one group and queue, one after the other."""

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
        """Mean pace of its runs."""
        return self.messages * 1000 / sum(run.span_ms for run in self.runs)

    @property
    def pull(self) -> int:
        """Mean number of messages that a get brought it."""
        return max(round(self.messages / sum(run.gets for run in self.runs)), 1)

    def kind(self) -> tuple[int, ...]:
        """Return what readers have in common that are modelled once."""
        return (
            id(self.stored),
            _step(self.record_bytes),
            _step(self.messages_per_s),
            _step(min(self.messages / len(self.runs), READ_SAMPLE_GETS * self.pull)),
            self.pull,
        )

    def sample(self) -> ColdReader:
        """Make a reader of no more than is modelled, from offset 0 on where it is one run."""
        most = max(
            min(int(READ_SAMPLE_BYTES / self.record_bytes), READ_SAMPLE_GETS * self.pull), self.pull
        )
        runs: list[tuple[int, int]] = []
        base = min(run.first for run in self.runs)
        for run in self.runs:
            if most <= 0:
                break
            runs.append((run.first - base, min(run.messages, most)))
            most -= run.messages
        # What is read ahead at the end of a run that is cut, the rest of it would need.
        messages = 0 if most < 0 else self.queue_messages - base
        return ColdReader(
            self.key, runs, self.record_bytes, self.pull, self.messages_per_s, self.stored,
            self.stored_bytes, messages=messages,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class MeasuredReads:
    """Of each topic, and of all."""

    topics: Mapping[str, TopicReads]
    whole: TopicReads


NO_READS: Final = MeasuredReads({}, TopicReads())


class ReadCosts:
    """Models the reads of a workload, each kind of reader and size of the cache once.

    stored: what reads of a queue find; the same for all settings of uploads.
    """

    def __init__(
        self,
        workload: Workload,
        stored: Mapping[QueueKey, tuple[ModelledQueue, int]],
        config: StoreConfig,
        model: RequestModel,
        backend: Backend,
    ) -> None:
        self._workload = workload
        self._stored = stored
        self._config = config
        self._model = model
        self._backend = backend
        self._arrivals = {load.key: load.arrivals for load in workload.queues if load.is_tiered}
        self._known: dict[tuple[object, ...], ReadFigures] = {}
        self._measured: dict[tuple[object, ...], MeasuredReads] = {}

    def measure(
        self, name: tuple[object, ...], leaves_ms: LeavesAt, cache_bytes: int
    ) -> MeasuredReads:
        """Measure what the tier answers. name: of what is measured, which is done once."""
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
        # So many read at a time, on the average; each has its share of the cache.
        active_ms = sum(reader.messages * 1000 / reader.messages_per_s for reader in readers)
        at_once = max(active_ms / self._workload.span_ms, 1.0)
        share_bytes = int(cache_bytes / at_once)
        topics: defaultdict[str, TopicReads] = defaultdict(TopicReads)
        for kind, alike in kinds.items():
            figures = self._measure(kind, alike, share_bytes)
            for reader in alike:
                topics[reader.key.topic].add(self._scale(figures, reader))
        whole = TopicReads()
        for topic in topics.values():
            whole.add(topic)
        return MeasuredReads(dict(topics), whole)

    def _find_readers(self, leaves_ms: LeavesAt) -> Iterable[_Reader]:
        runs: defaultdict[tuple[str, QueueKey], list[ColdRun]] = defaultdict(list)
        for reading in self._workload.readings:
            arrivals = self._arrivals.get(reading.key)
            if arrivals is None or reading.key not in self._stored or not arrivals.record_bytes:
                continue
            found = find_cold_runs(reading, arrivals, leaves_ms)
            runs[reading.group, reading.key] += found
        for (_, key), cold in runs.items():
            if cold:
                arrivals = self._arrivals[key]
                end = int(arrivals.offsets[-1])
                yield _Reader(cold, arrivals.record_bytes, end, *self._stored[key])

    def _measure(
        self, kind: tuple[int, ...], alike: Sequence[_Reader], share_bytes: int
    ) -> ReadFigures:
        known = (*kind, share_bytes)
        if known not in self._known:
            reader = max(alike, key=lambda reader: reader.messages)
            reader.stored.reopen()
            self._known[known] = model_reads(
                [reader.sample()], self._config, self._model, self._backend, share_bytes
            )
        return self._known[known]

    def _scale(self, figures: ReadFigures, reader: _Reader) -> TopicReads:
        factor = reader.messages / figures.messages * MONTH_MS / self._workload.span_ms
        found = TopicReads(
            read_bytes=figures.read_bytes * factor, messages=figures.messages * factor
        )
        add_requests(found.requests, figures.requests, factor)
        found.times = [WeightedTime(time_ms, factor) for time_ms in figures.times_ms]
        return found


def _step(value: float) -> int:
    return round(math.log(max(value, 1e-9)) / _STEP)
