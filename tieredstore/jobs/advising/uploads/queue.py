"""What uploads a queue takes: its arrivals, looked at by the dispatcher's rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from tieredstore.contracts.request_model import Deletions, ModelledQueue, Requests
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.tier.flat.append_file import find_most_pending
from tieredstore.tier.upload.commit_interval import CommitInterval
from tieredstore.tier.upload.rules import goes_at_once, is_deferred, is_gathered

if TYPE_CHECKING:
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.segment import Capabilities
    from tieredstore.jobs.advising.loads.arrivals import Arrivals

HOUR_MS: Final = 3_600_000
NO_LIMIT: Final = 2**63 - 1
_LOG, _UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


@dataclass(slots=True)
class QueueUploads:
    """What the uploads of a queue came to.

    scans: that were made; requests: without deletions and looks at the writer epoch; deletions:
    garbage that goes together with that of other queues; deferred: commits of each scan that share
    a look, by its number; gathered: bytes of each scan that are stored with those of other queues;
    looks: those that have one of their own; loss_ms: age of the oldest
    message when it was uploaded, at most; objects: at the end; rolls: segments of the commit log
    that were ended, by age or as they were full.
    """

    requests: Requests = field(default_factory=Counter)
    deletions: Deletions = field(default_factory=Counter)
    deferred: Counter[int] = field(default_factory=Counter)
    gathered: Counter[int] = field(default_factory=Counter)
    looks: int = 0
    scans: int = 0
    commits: int = 0
    messages: int = 0
    log_bytes: float = 0.0
    loss_ms: float = 0.0
    objects: int = 0
    rolls: int = 0
    written: ModelledQueue | None = None


def model_uploads(
    arrivals: Arrivals,
    config: StoreConfig,
    capabilities: Capabilities,
    queue: ModelledQueue,
    scans_ms: range,
    most_commits: int = NO_LIMIT,
) -> QueueUploads:
    """Upload what has arrived at each scan of the dispatcher. The queue is new at the first, and
    gets all that the curve has from its begin on. Ends early with the scan that comes to so many
    commits."""
    return _Uploads(arrivals, config, capabilities, queue).run(scans_ms, most_commits)


class _Uploads:
    def __init__(
        self,
        arrivals: Arrivals,
        config: StoreConfig,
        capabilities: Capabilities,
        queue: ModelledQueue,
    ) -> None:
        self._arrivals = arrivals
        self._config = config
        self._queue = queue
        self._preferred_bytes = capabilities.preferred_batch_bytes
        self._shares_looks = capabilities.conditional
        self._most_pending = find_most_pending(config, self._preferred_bytes)
        self._interval = CommitInterval.from_config(
            config, self._preferred_bytes, gathers=bool(capabilities.gathered_bytes)
        )
        self._at = int(arrivals.offsets[0])
        self._rate = 0.0
        self._log_position = self._unit_position = 0.0
        self._log_begin_ms: float | None = None
        self._pending_messages = self._pending_bytes = 0.0
        self._now_ms = 0
        self._scan = 0
        self._made = QueueUploads()

    def run(self, scans_ms: range, most_commits: int) -> QueueUploads:
        """Look at the queue at each of these times."""
        counts = self._arrivals.count_until(np.asarray(scans_ms, np.float64)).tolist()
        size = self._arrivals.record_bytes
        oldest, oldest_ms = -1, 0.0
        for self._scan, (now_ms, end) in enumerate(zip(scans_ms, counts, strict=True)):
            if end <= self._at:
                continue
            self._now_ms = now_ms
            self._roll_if_due()
            while (left := end - self._at) > 0:
                if not goes_at_once(self._config, left):
                    if oldest != self._at:
                        oldest, oldest_ms = self._at, self._arrivals.time_of(self._at)
                    age_ms = int(now_ms - oldest_ms)
                    if not self._interval.is_due(age_ms, int(left * size), self._rate):
                        break
                self._upload(end)
            if self._made.commits >= most_commits:
                scans_ms = scans_ms[: self._scan + 1]
                break
        made = self._made
        made.scans = len(scans_ms)
        if scans_ms:
            self._queue.settle(scans_ms[-1])
            waiting_ms = scans_ms[-1] - self._arrivals.time_of(self._at)
            if counts[made.scans - 1] > self._at:
                made.loss_ms = max(made.loss_ms, waiting_ms)
        made.requests = Counter(self._queue.requests)
        made.deletions = self._queue.deletions
        made.objects = self._queue.object_count
        made.written = self._queue
        return made

    def _upload(self, end: int) -> None:
        """Gather batches, and commit them."""
        size = self._arrivals.record_bytes
        first_ms = self._arrivals.time_of(self._at)
        self._made.loss_ms = max(self._made.loss_ms, self._now_ms - first_ms)
        gathered = 0.0
        limit = self._config.group_commit_size_bytes
        fitting = max(int(np.ceil(limit / size)) - 1, 1)
        while self._at < end:
            count = min(end - self._at, self._config.group_commit_count, fitting)
            self._append(count)
            gathered += count * size
            if is_gathered(int(gathered), self._preferred_bytes):
                break
        if self._pending_messages:
            self._commit(defers=is_deferred(int(gathered), is_last=self._at >= end))
        span_ms = self._arrivals.time_of(self._at - 1) - first_ms
        self._rate = self._interval.rate(int(gathered), int(span_ms))

    def _append(self, count: int) -> None:
        """Append a batch; segments that are full are committed and rolled on the way."""
        size = self._arrivals.record_bytes
        if self._log_begin_ms is None:
            self._log_begin_ms = self._arrivals.time_of(self._at)
        left = count
        while left:
            log_room = self._config.commit_log_max_size_bytes - self._log_end
            unit_room = self._config.consume_queue_max_size_bytes - self._unit_end
            count_room = self._most_pending - self._pending_messages
            part = min(left, int(log_room // size), int(unit_room // UNIT_SIZE), int(count_room))
            if part <= 0 and self._log_end == 0:
                part = 1
            if part > 0:
                self._pending_messages += part
                self._pending_bytes += part * size
                self._at += part
                left -= part
                continue
            if self._pending_messages:
                self._commit(defers=False)
            if self._config.commit_log_max_size_bytes - self._log_position < size:
                self._roll_log()
            if self._config.consume_queue_max_size_bytes - self._unit_position < UNIT_SIZE:
                self._queue.roll(_UNITS, self._now_ms)
                self._unit_position = 0.0

    @property
    def _log_end(self) -> float:
        return self._log_position + self._pending_bytes

    @property
    def _unit_end(self) -> float:
        return self._unit_position + self._pending_messages * UNIT_SIZE

    def _commit(self, *, defers: bool) -> None:
        log_bytes = round(self._log_end) - round(self._log_position)
        unit_bytes = int(self._pending_messages) * UNIT_SIZE
        if self._queue.append(log_bytes, unit_bytes, self._now_ms, may_wait=defers):
            self._made.gathered[self._scan] += log_bytes + unit_bytes
        self._log_position = float(round(self._log_end))
        self._unit_position += unit_bytes
        made = self._made
        made.commits += 1
        made.messages += int(self._pending_messages)
        made.log_bytes += log_bytes
        self._pending_messages = self._pending_bytes = 0.0
        if self._shares_looks and defers:
            made.deferred[self._scan] += 1
        else:
            made.looks += 1

    def _roll_if_due(self) -> None:
        begin_ms = self._log_begin_ms
        interval_ms = self._config.commit_log_rolling_interval_hours * HOUR_MS
        if (
            begin_ms is not None
            and begin_ms + interval_ms < self._now_ms
            and self._log_position >= self._config.commit_log_rolling_minimum_size_bytes
        ):
            self._roll_log()

    def _roll_log(self) -> None:
        self._queue.roll(_LOG, self._now_ms)
        self._made.rolls += 1
        self._log_position = 0.0
        self._log_begin_ms = self._arrivals.time_of(self._at)
