"""`BrokerStatistics`: rates and totals under the names of Java's BrokerStatsManager and
StoreStatsService. Puts are counted by the store, deliveries and send-backs by `TrafficCounts`. As
in Java, the counts are sampled every ten seconds, and a rate is the difference of two samples."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.broker.state.traffic import TrafficCounts, name_counted
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import CountedStore, MessageStore, StoreFigures
from tieredstore.contracts.wrapping import list_layers
from tieredstore.message.names import DELETION_TOPIC, is_system_topic

SAMPLE_INTERVAL_MS: Final = 10_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
TPS_WINDOWS_MS: Final = (SAMPLE_INTERVAL_MS, MINUTE_MS, 10 * MINUTE_MS)
"""Time windows of the rates of Java's StoreStatsService."""
BROKER_PUTS: Final = "BROKER_PUT_NUMS"
BROKER_GETS: Final = "BROKER_GET_NUMS"
CLIENT_PUTS: Final = "BROKER_PUT_NUMS_WITHOUT_SYSTEM_TOPIC"
CLIENT_GETS: Final = "BROKER_GET_NUMS_WITHOUT_SYSTEM_TOPIC"
STORE_PUTS: Final = "putMessageTimesTotal"
STORE_PUT_BYTES: Final = "putMessageSizeTotal"
READS_FOUND: Final = "getFound"
READS_MISSED: Final = "getMiss"
_TOTALS: Final = (BROKER_PUTS, BROKER_GETS, CLIENT_PUTS, CLIENT_GETS, STORE_PUTS, STORE_PUT_BYTES)
_UNCOUNTED: Final = (DELETION_TOPIC, "RMQ_SYS_TRANS_OP_HALF_TOPIC", "TRANS_CHECK_MAX_TIME_TOPIC")
"""Topics whose puts are not in BROKER_PUT_NUMS, as in Java."""
_STEPS_MS: Final = {MINUTE_MS: SAMPLE_INTERVAL_MS, HOUR_MS: MINUTE_MS, DAY_MS: HOUR_MS}
"""Interval (ms) between two kept records of a count, by time window."""
_SLACK_MS: Final = SAMPLE_INTERVAL_MS // 2  # records are not exactly ten seconds apart
_FRESH_MS: Final = 1000
"""Maximum age (ms) of the cached statistics of the store. Older statistics are read again."""


class Rate(NamedTuple):
    """Growth of a count in a time window: total (`sum`), per second (`tps`), and per put or
    response (`average`)."""

    sum: int
    tps: float
    average: float


class _Note(NamedTuple):
    """Sample of a count. `times`: number of puts or responses that contributed to it."""

    time_ms: int
    total: int
    times: int


class _Series:
    """Samples of a growing count over the last day. Keeps all samples of the last minute, one per
    minute of the last hour, and one per hour of the day."""

    def __init__(self, now: _Note) -> None:
        # As in Java, the count began to grow one record ago.
        first = _Note(now.time_ms - SAMPLE_INTERVAL_MS, 0, 0)
        self._windows = {
            window_ms: deque([first], maxlen=window_ms // step_ms + 1)
            for window_ms, step_ms in _STEPS_MS.items()
        }
        self.note(now)

    def note(self, now: _Note) -> None:
        self.last = now
        for window_ms, notes in self._windows.items():
            if now.time_ms - notes[-1].time_ms >= _STEPS_MS[window_ms] - _SLACK_MS:
                notes.append(now)

    def rate(self, window_ms: int) -> Rate:
        """Return the growth in a window of up to a day."""
        notes = next(notes for most_ms, notes in self._windows.items() if window_ms <= most_ms)
        since_ms = self.last.time_ms - window_ms - _SLACK_MS
        first = next((note for note in notes if note.time_ms >= since_ms), self.last)
        count, times = self.last.total - first.total, self.last.times - first.times
        passed_ms = self.last.time_ms - first.time_ms
        tps = count * 1000 / passed_ms if passed_ms > 0 else 0.0
        return Rate(count, tps, count / times if times > 0 else 0.0)


_Key = tuple[str, str]


@dataclass(eq=False)
class BrokerStatistics:
    """Rates of topics, groups and the broker. Call `sample` every SAMPLE_INTERVAL_MS. `cluster`:
    name of the cluster, the key of the broker's own rates. `sources`: functions that return other
    counts of the broker, by name."""

    store: MessageStore
    topics: TopicConfigManager
    traffic: TrafficCounts
    cluster: str
    clock: Clock = SYSTEM_CLOCK

    def __post_init__(self) -> None:
        layers = list_layers(self.store)
        self._counted = next((one for one in layers if isinstance(one, CountedStore)), None)
        self._series: dict[_Key, _Series] = {}
        self._values: dict[_Key, _Note] = {}
        self._read_ms = 0
        self._parts: dict[Hashable, int] = {}  # values of the last read that are in totals
        self._parts_before = self._parts
        self._totals: Counter[str] = Counter()
        self._day = self._find_day()
        self.mornings = dict.fromkeys((CLIENT_PUTS, CLIENT_GETS), (0, 0))
        """Totals at the beginning of yesterday and of today."""
        self._put_times: deque[tuple[int, ...]] = deque(maxlen=MINUTE_MS // SAMPLE_INTERVAL_MS + 1)
        self.sources: dict[str, Callable[[], int]] = {
            READS_FOUND: lambda: self.traffic.found,
            READS_MISSED: lambda: self.traffic.missed,
        }
        self.started_ms = self.clock.now_ms()
        self.topics.add_listener(self._forget_deleted)

    async def sample(self) -> None:
        """Sample the current counts."""
        values = self._read(0)
        for gone in self._series.keys() - values.keys():
            del self._series[gone]
        for key, now in values.items():
            series = self._series.get(key)
            if series is not None and series.last.total <= now.total:
                series.note(now)
            elif now.total:  # new, or it began again
                self._series[key] = _Series(now)
        self._put_times.append(self.measure_store().put_times)
        day = self._find_day()
        if day != self._day:
            self._day = day
            for name, (_, morning) in self.mornings.items():
                self.mornings[name] = (morning, self._totals[name])

    def find_rate(self, name: str, key: str, window_ms: int) -> Rate | None:
        """Return a rate by Java's name and its key (a topic, topic@group, or the cluster), or None
        if nothing was counted. `window_ms`: up to DAY_MS."""
        series = self._series.get((name, key))
        if series is None:
            now = self._read().get((name, key))
            if now is None or not now.total:
                return None
            series = self._series[name, key] = _Series(now)
        return series.rate(window_ms)

    def topic_put_tps(self, topic: str) -> float:
        """Return the number of messages put into a topic per second, over the last minute."""
        return self._tps("TOPIC_PUT_NUMS", topic, MINUTE_MS)

    def group_get_tps(self, group: str, topic: str) -> float:
        """Return the number of messages per second delivered to a group from a topic, over the last
        minute."""
        key = f"{name_counted(topic)}@{name_counted(group)}"
        return self._tps("GROUP_GET_NUMS", key, MINUTE_MS)

    def list_tps(self, *names: str) -> list[float]:
        """Return the combined growth per second of some of the broker's counters, over each of
        TPS_WINDOWS_MS."""
        return [
            sum(self._tps(name, self.cluster, window_ms) for name in names)
            for window_ms in TPS_WINDOWS_MS
        ]

    def total(self, name: str) -> int:
        """Return the total of one of the broker's counters since its start."""
        return self._read()[name, self.cluster].total

    def measure_store(self) -> StoreFigures:
        """Return the statistics of the local store. All are 0 without a local store."""
        return StoreFigures() if self._counted is None else self._counted.measure()

    def list_put_times(self) -> list[int]:
        """Return the number of puts in the last minute, by latency class (PUT_TIMES_MS)."""
        now = self.measure_store().put_times
        first = self._put_times[0] if self._put_times else (0,) * len(now)
        return [after - before for after, before in zip(now, first, strict=True)]

    def forget(self, topic: str | None = None, group: str | None = None) -> None:
        """Remove the rates of a deleted topic or group."""
        self.traffic.forget(topic, group)
        self._values = {}
        for key in [*self._series]:
            of_topic, _, of_group = key[1].partition("@")
            if key[1] != self.cluster and (topic == of_topic or group == of_group):
                del self._series[key]

    def _forget_deleted(self, topic: str) -> None:
        if self.topics.find_topic(topic) is None:
            self.forget(topic)

    def _tps(self, name: str, key: str, window_ms: int) -> float:
        rate = self.find_rate(name, key, window_ms)
        return 0.0 if rate is None else rate.tps

    def _read(self, fresh_ms: int = _FRESH_MS) -> dict[_Key, _Note]:
        now_ms = self.clock.monotonic_ms()
        if not self._values or now_ms - self._read_ms >= fresh_ms:
            self._read_ms = now_ms
            self._parts_before, self._parts = self._parts, {}
            self._values = {key: _Note(now_ms, *value) for key, *value in self._list_values()}
        return self._values

    def _list_values(self) -> Iterator[tuple[_Key, int, int]]:
        """Yield each count with its number of puts or responses."""
        puts = {} if self._counted is None else self._counted.count_puts()
        for topic, (messages, size_bytes) in puts.items():
            level = 0 if topic in _UNCOUNTED else 1 if is_system_topic(topic) else 2
            self._grow((topic,), messages, STORE_PUTS, *(BROKER_PUTS, CLIENT_PUTS)[:level])
            self._grow((topic, "", "bytes"), size_bytes, STORE_PUT_BYTES)
            if self.topics.find_topic(topic) is not None:
                times = messages - self.traffic.batched[topic]
                yield ("TOPIC_PUT_NUMS", topic), messages, times
                yield ("TOPIC_PUT_SIZE", topic), size_bytes, times
        for (topic, group), found in self.traffic.deliveries.items():
            names = (BROKER_GETS, CLIENT_GETS)[: 1 if is_system_topic(topic) else 2]
            self._grow((topic, group), found.messages, *names)
            yield ("GROUP_GET_NUMS", f"{topic}@{group}"), found.messages, found.answers
            yield ("GROUP_GET_SIZE", f"{topic}@{group}"), found.size_bytes, found.answers
        for (topic, group), count in self.traffic.send_backs.items():
            yield ("SNDBCK_PUT_NUMS", f"{topic}@{group}"), count, count
        for name in _TOTALS:
            yield (name, self.cluster), self._totals[name], 0
        for name, read in self.sources.items():
            yield (name, self.cluster), read(), 0

    def _grow(self, key: Hashable, value: int, *names: str) -> None:
        """Add the growth of a count since its last sample to the totals `names`. If the topic or
        group was deleted and recreated, its count starts at 0 again, and no total decreases."""
        before = self._parts_before.get(key, 0)
        self._parts[key] = value
        for name in names:
            self._totals[name] += value - before if value >= before else value

    def _find_day(self) -> int:
        now = self.clock.now_ms() / 1000
        return int(now + time.localtime(now).tm_gmtoff) // 86_400
