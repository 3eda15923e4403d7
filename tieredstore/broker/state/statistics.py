"""`BrokerStatistics`: how many messages come and go, in a minute, an hour and a day.

Nothing is counted per message. Every ten seconds the ends of all queues and the offsets of all
groups are noted; what lies between two notes has been put, or consumed, in between. So all ways of
sending and consuming count, and nothing else does.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import MessageStore

SAMPLE_INTERVAL_MS: Final = 10_000
MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
BROKER_PUTS: Final = "BROKER_PUT_NUMS"
BROKER_GETS: Final = "BROKER_GET_NUMS"
_TOPIC_PUTS: Final = "TOPIC_PUT_NUMS"
_GROUP_GETS: Final = "GROUP_GET_NUMS"


class Rate(NamedTuple):
    """Messages in a window of time, and per second."""

    sum: int
    tps: float


class _Note(NamedTuple):
    time_ms: int
    total: int


class _Series:
    """A number that only grows, as it was at times of the last day.

    Notes of the last minute are kept all, older ones one a minute, those that are older than an
    hour one an hour.
    """

    def __init__(self, time_ms: int, total: int) -> None:
        self._windows = {
            MINUTE_MS: deque([_Note(time_ms, total)], maxlen=MINUTE_MS // SAMPLE_INTERVAL_MS + 1),
            HOUR_MS: deque([_Note(time_ms, total)], maxlen=HOUR_MS // MINUTE_MS + 1),
            DAY_MS: deque([_Note(time_ms, total)], maxlen=DAY_MS // HOUR_MS + 1),
        }
        self._steps = {MINUTE_MS: 0, HOUR_MS: MINUTE_MS, DAY_MS: HOUR_MS}
        self._last = _Note(time_ms, total)

    def note(self, time_ms: int, total: int) -> None:
        """Note the number as it is now."""
        self._last = _Note(time_ms, total)
        for window, notes in self._windows.items():
            if time_ms - notes[-1].time_ms >= self._steps[window]:
                notes.append(self._last)

    def rate(self, window_ms: int) -> Rate:
        """Tell how much it grew in the last minute, hour or day."""
        notes = self._windows[window_ms]
        since = self._last.time_ms - window_ms
        first = next((note for note in notes if note.time_ms >= since), self._last)
        count = self._last.total - first.total
        passed_ms = self._last.time_ms - first.time_ms
        return Rate(count, count * 1000 / passed_ms if passed_ms > 0 else 0.0)


class _Total:
    """A total over many counters: what they grow by is added; one that begins anew (a topic that
    was deleted, an offset that was reset) takes nothing away."""

    def __init__(self) -> None:
        self.total = 0
        self._counters: dict[int, int] = {}

    def add(
        self, counters: Mapping[int, int], find_begin: Callable[[int], int] | None = None
    ) -> int:
        """Take the counters as they are now; returns what was added. find_begin: where one that is
        new began; None: where it is."""
        added = 0
        for counter, value in counters.items():
            known = self._counters.get(counter)
            if known is None:
                known = value if find_begin is None else find_begin(counter)
            added += max(value - known, 0)
            self._counters[counter] = value
        self.total += added
        return added


class BrokerStatistics:
    """Rates by topic, and by topic and group; `sample` is called every SAMPLE_INTERVAL_MS."""

    def __init__(
        self,
        store: MessageStore,
        topics: TopicConfigManager,
        offsets: ConsumerOffsetManager,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._store = store
        self._topics = topics
        self._offsets = offsets
        self._clock = clock
        self._totals: dict[tuple[str, str], _Total] = {}
        self._series: dict[tuple[str, str], _Series] = {}
        self._sampled_ms: int | None = None
        self._day = self._find_day()
        self._mornings = dict.fromkeys((BROKER_PUTS, BROKER_GETS), (0, 0))
        self.started_ms = clock.now_ms()

    async def sample(self) -> None:
        """Note what has come and gone until now."""
        now_ms = self._clock.monotonic_ms()
        is_first = self._sampled_ms is None
        gone = self._totals.keys() - {(BROKER_PUTS, ""), (BROKER_GETS, "")}
        puts = gets = 0
        for topic, config in self._topics.list_topics().items():
            ends = self._list_ends(topic, config.write_queue_nums)
            begin = None if is_first else partial(self._store.get_min_offset_in_queue, topic)
            puts += self._note(_TOPIC_PUTS, topic, ends, now_ms, begin)
            gone.discard((_TOPIC_PUTS, topic))
        for group, topic in self._offsets.list_keys():
            key = f"{topic}@{group}"
            gets += self._note(_GROUP_GETS, key, self._offsets.list_offsets(group, topic), now_ms)
            gone.discard((_GROUP_GETS, key))
        for name, count in ((BROKER_PUTS, puts), (BROKER_GETS, gets)):
            self._note(name, "", {0: self.total(name) + count}, now_ms, lambda _: 0)
        for name_and_key in gone:  # topics and offsets that were deleted
            del self._totals[name_and_key]
            self._series.pop(name_and_key, None)
        self._sampled_ms = now_ms
        self._note_morning()

    def find_rate(self, name: str, key: str, window_ms: int) -> Rate | None:
        """Return a rate by Java's name of it and its key (a topic, or topic@group); None when
        nothing has come or gone. window_ms: MINUTE_MS, HOUR_MS or DAY_MS."""
        series = self._series.get((name, key))
        return None if series is None else series.rate(window_ms)

    def topic_put_tps(self, topic: str) -> float:
        """Return the messages that were put in a topic per second, over the last minute."""
        return self._tps(_TOPIC_PUTS, topic)

    def group_get_tps(self, group: str, topic: str) -> float:
        """Return the messages that a group consumed of a topic per second, over the last minute."""
        return self._tps(_GROUP_GETS, f"{topic}@{group}")

    def broker_tps(self, name: str) -> float:
        """Return BROKER_PUT_NUMS or BROKER_GET_NUMS per second, over the last minute."""
        return self._tps(name, "")

    def total(self, name: str) -> int:
        """Return BROKER_PUT_NUMS or BROKER_GET_NUMS since the start."""
        found = self._totals.get((name, ""))
        return 0 if found is None else found.total

    def mornings(self, name: str) -> tuple[int, int]:
        """Return BROKER_PUT_NUMS or BROKER_GET_NUMS as they were yesterday morning and this
        morning."""
        return self._mornings[name]

    def _tps(self, name: str, key: str) -> float:
        rate = self.find_rate(name, key, MINUTE_MS)
        return 0.0 if rate is None else rate.tps

    def _list_ends(self, topic: str, queue_nums: int) -> dict[int, int]:
        end = self._store.get_max_offset_in_queue
        return {queue_id: end(topic, queue_id) for queue_id in range(queue_nums)}

    def _note(
        self,
        name: str,
        key: str,
        counters: Mapping[int, int],
        now_ms: int,
        find_begin: Callable[[int], int] | None = None,
    ) -> int:
        """Add what the counters have grown by; returns it."""
        totals = self._totals.setdefault((name, key), _Total())
        before = totals.total
        added = totals.add(counters, find_begin)
        series = self._series.get((name, key))
        if series is not None:
            series.note(now_ms, totals.total)
        elif added and self._sampled_ms is not None:
            series = self._series[name, key] = _Series(self._sampled_ms, before)
            series.note(now_ms, totals.total)
        return added

    def _note_morning(self) -> None:
        day = self._find_day()
        if day != self._day:
            self._day = day
            for name, (_, morning) in self._mornings.items():
                self._mornings[name] = (morning, self.total(name))

    def _find_day(self) -> int:
        """Number the day of local time."""
        now = self._clock.now_ms() / 1000
        return int(now + time.localtime(now).tm_gmtoff) // 86_400
