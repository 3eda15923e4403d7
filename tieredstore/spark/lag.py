"""Lag of a stream behind its tier, from the progress that Spark reports."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.streaming.listener import StreamingQueryListener

from tieredstore.spark.offsets import QueueKey
from tieredstore.spark.stream.checkpoint import BROKERS, StreamOffset

if TYPE_CHECKING:
    from pyspark.sql.streaming.listener import (
        QueryIdleEvent,
        QueryProgressEvent,
        QueryStartedEvent,
        QueryTerminatedEvent,
    )

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Lag:
    """Number of unread queue offsets after a batch, by queue, as of the last listing. Offsets in
    holes are included."""

    by_queue: Mapping[QueueKey, int]

    @property
    def max(self) -> int:
        """Return the lag of the queue that is furthest behind."""
        return max(self.by_queue.values(), default=0)

    @property
    def avg(self) -> float:
        """Return the average of the lags of all queues."""
        return self.total / len(self.by_queue) if self.by_queue else 0.0

    @property
    def total(self) -> int:
        """Return the sum of the lags of all queues."""
        return sum(self.by_queue.values())

    @property
    def by_topic(self) -> dict[str, int]:
        """Return the sum of the lags by topic."""
        found: Counter[str] = Counter()
        for (topic, _, _), behind in self.by_queue.items():
            found[topic] += behind
        return dict(found)


def lag_of(progress: Mapping[str, Any] | None) -> Lag | None:
    """Return the lag of a stream after a batch. `progress`: a `StreamingQueryProgress`, such as
    `query.lastProgress`. The lags of several tiers are added. Return None without a tier, and with
    Spark 4.1. Raises Invalid for unreadable offsets."""
    behind: dict[QueueKey, int] = {}
    is_known = False
    for source in progress["sources"] if progress is not None else ():
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if end is None or latest is None:
            continue
        is_known = True
        for key, position in latest.positions.items():
            if (
                key in end.positions
            ):  # otherwise it has not begun, and its first offset is not known
                behind[key] = max(position.offset - end.positions[key].offset, 0)
    return Lag(behind) if is_known else None


class LagListener(StreamingQueryListener):
    """Reports the lag of a stream over a tier after each batch:
    `spark.streams.addListener(LagListener(on_lag))`. `on_lag`: called with the query's name (or id)
    and the lag, in one of Spark's threads. By default, each lag is logged at INFO."""

    def __init__(self, on_lag: Callable[[str, Lag], None] | None = None) -> None:
        self._on_lag = on_lag or (
            lambda name, lag: _log.info(
                "stream %s: offsets behind latest: max %d, avg %.1f, by topic %s",
                *(name, lag.max, lag.avg, lag.by_topic),
            )
        )

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        found = lag_of(event.progress)
        if found is not None:
            self._on_lag(event.progress.name or str(event.progress.id), found)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """No-op."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """No-op: the lag is unchanged."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """No-op."""


def _offset(value: object) -> StreamOffset | None:
    """Parse a stream offset from JSON text or an object. Return None if it belongs to another
    source."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, dict) or BROKERS not in value:
        return None
    return StreamOffset.from_json(value)
