"""How far a stream is behind its tier, from the progress that Spark reports."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
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
    """Offsets that a batch left behind, by queue: those that were committed when the tier was last
    listed, and not read. Holes count as well."""

    by_queue: Mapping[QueueKey, int]

    @property
    def max(self) -> int:
        """Return that of the queue that is furthest behind."""
        return max(self.by_queue.values(), default=0)

    @property
    def avg(self) -> float:
        """Return the average of the queues."""
        return self.total / len(self.by_queue) if self.by_queue else 0.0

    @property
    def total(self) -> int:
        """Return the sum of the queues."""
        return sum(self.by_queue.values())

    @property
    def by_topic(self) -> dict[str, int]:
        """Return the sums of the topics."""
        found: Counter[str] = Counter()
        for (topic, _, _), behind in self.by_queue.items():
            found[topic] += behind
        return dict(found)


def lag_of(progress: Mapping[str, Any] | None) -> Lag | None:
    """Return how far a stream is behind after a batch.

    progress: a `StreamingQueryProgress`, such as `query.lastProgress`. Tiers among the sources of
    a query count together; None where none is, and with Spark 4.1, which does not tell what is
    latest. Raises Invalid for offsets that cannot be read.
    """
    behind: dict[QueueKey, int] = {}
    is_known = False
    for source in _sources(progress):
        end, latest = _offset(source.get("endOffset")), _offset(source.get("latestOffset"))
        if end is None or latest is None:
            continue
        is_known = True
        for key, position in latest.positions.items():
            if (
                key in end.positions
            ):  # else it has not begun: where its first message is, is not said
                behind[key] = max(position.offset - end.positions[key].offset, 0)
    return Lag(behind) if is_known else None


class LagListener(StreamingQueryListener):
    """Tells after each batch of a stream over a tier how far it is behind:
    `spark.streams.addListener(LagListener(on_lag))`.

    on_lag: gets the query's name, or its id where it has none, and the lag, in a thread of Spark's.
    Without it, each is a line of the log at INFO.
    """

    def __init__(self, on_lag: Callable[[str, Lag], None] | None = None) -> None:
        self._on_lag = on_lag or _log_lag

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        found = lag_of(event.progress)
        if found is not None:
            self._on_lag(event.progress.name or str(event.progress.id), found)

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing."""

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        """Do nothing: nothing has changed."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Do nothing."""


def _log_lag(name: str, lag: Lag) -> None:
    _log.info(
        "stream %s: offsets behind latest: max %d, avg %.1f, by topic %s",
        name, lag.max, lag.avg, lag.by_topic,
    )  # fmt: skip


def _sources(progress: Mapping[str, Any] | None) -> Iterable[Mapping[str, Any]]:
    found: Iterable[Mapping[str, Any]] = () if progress is None else progress["sources"]
    return found


def _offset(value: object) -> StreamOffset | None:
    """Of text or of an object; None for another source's."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, dict) or BROKERS not in value:
        return None
    return StreamOffset.from_json(value)
