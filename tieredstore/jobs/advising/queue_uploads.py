"""Uploads of one queue, simulated by the dispatcher's rules."""

from __future__ import annotations

from collections import Counter
from typing import Final

import numpy as np

from tieredstore.config import StoreConfig
from tieredstore.contracts.request_model import Deletions, ModelledQueue, Requests
from tieredstore.contracts.segment import Capabilities, FileSegmentType
from tieredstore.jobs.advising.workload import HOUR_MS, Arrivals
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.tier import recorded_times
from tieredstore.tier.flat.append_file import find_most_pending
from tieredstore.tier.recorded_times import MOST_STALE
from tieredstore.tier.upload.commit_interval import (
    CommitInterval,
    goes_at_once,
    is_deferred,
    is_gathered,
)


class ModelledTimes:
    """Counts the writes of store time records for a modelled queue. The queue starts empty, and its
    messages do not expire."""

    def __init__(self, queue: ModelledQueue) -> None:
        self._queue = queue
        self._log_bytes = 0
        self._size = self._recorded = 0
        self._ended = 0
        self._stale = 0
        self._is_listed = False

    def commit(self, log_bytes: int) -> None:
        """Append to the last segment of the commit log."""
        self._log_bytes += log_bytes
        self._size += log_bytes

    def roll(self) -> None:
        """Begin another segment."""
        self._ended += self._size > self._recorded
        self._size = self._recorded = 0

    def record(self) -> None:
        """Write the records that are due."""
        if self._log_bytes < recorded_times.LEAST_BYTES:
            return
        for _ in range(self._ended):
            self._ask()
        self._ended = 0
        if self._size >= recorded_times.find_next_size(self._recorded):
            self._stale += self._recorded > 0
            self._recorded = self._size
            self._ask()

    def _ask(self) -> None:
        deletes = self._stale > MOST_STALE
        self._queue.record_times(lists=not self._is_listed, deletes=deletes)
        self._is_listed = True
        if deletes:
            self._stale = 0


NO_LIMIT: Final = 2**63 - 1
_LOG, _UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


class QueueUploads:
    """Uploads of a queue.

    `scans`: number of dispatcher scans.
    `requests`: requests without deletions and fence checks.
    `deletions`: deletions of garbage, which share requests with other queues.
    `deferred`: commits per scan whose fence check also covers other queues.
    `gathered`: bytes per scan that go to group objects.
    `fence_checks`: fence checks of this queue alone.
    `loss_ms`: maximum age of a message at its upload.
    `objects`: number of objects at the end.
    `rolls`: commit log segments that ended by age or size.
    """

    def __init__(
        self,
        arrivals: Arrivals,
        config: StoreConfig,
        capabilities: Capabilities,
        queue: ModelledQueue,
    ) -> None:
        self.written = queue
        self.requests: Requests = Counter()
        self.deletions: Deletions = Counter()
        self.deferred: Counter[int] = Counter()
        self.gathered: Counter[int] = Counter()
        self.fence_checks = self.scans = self.commits = self.messages = 0
        self.objects = self.rolls = 0
        self.log_bytes = self.loss_ms = 0.0
        self._arrivals = arrivals
        self._config = config
        self._preferred_bytes = capabilities.preferred_batch_bytes
        self._shares_checks = capabilities.conditional
        self._most_pending = find_most_pending(config, self._preferred_bytes)
        self._interval = CommitInterval.from_config(
            config, self._preferred_bytes, gathers=bool(capabilities.gathered_bytes)
        )
        self._at = int(arrivals.offsets[0])
        self._rate = 0.0
        self._log_position = self._unit_position = 0.0
        self._log_begin_ms: float | None = None
        self._pending_messages = self._pending_bytes = 0.0
        self._now_ms = self._scan = 0
        self._times = ModelledTimes(queue)

    def run(self, scans_ms: range, most_commits: int) -> None:
        """Simulate dispatcher scans of the queue at the given times. Stop after `most_commits`
        commits."""
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
            if self.commits >= most_commits:
                scans_ms = scans_ms[: self._scan + 1]
                break
        self.scans = len(scans_ms)
        if scans_ms:
            self.written.settle(scans_ms[-1])
            if counts[self.scans - 1] > self._at:
                waiting_ms = scans_ms[-1] - self._arrivals.time_of(self._at)
                self.loss_ms = max(self.loss_ms, waiting_ms)
        # The queue counts further requests later. These are the figures of its uploads.
        self.requests = Counter(self.written.requests)
        self.deletions = self.written.deletions
        self.objects = self.written.object_count

    def _upload(self, end: int) -> None:
        size = self._arrivals.record_bytes
        first_ms = self._arrivals.time_of(self._at)
        self.loss_ms = max(self.loss_ms, self._now_ms - first_ms)
        gathered = 0.0
        fitting = max(int(np.ceil(self._config.group_commit_size_bytes / size)) - 1, 1)
        while self._at < end:
            count = min(end - self._at, self._config.group_commit_count, fitting)
            self._append(count)
            gathered += count * size
            if is_gathered(int(gathered), self._preferred_bytes):
                break
        if self._pending_messages:
            self._commit(defers=is_deferred(int(gathered), is_last=self._at >= end))
        self._times.record()
        span_ms = self._arrivals.time_of(self._at - 1) - first_ms
        self._rate = self._interval.rate(int(gathered), int(span_ms))

    def _append(self, left: int) -> None:
        """Append a batch, commit it, and roll full segments."""
        config, size = self._config, self._arrivals.record_bytes
        if self._log_begin_ms is None:
            self._log_begin_ms = self._arrivals.time_of(self._at)
        while left:
            log_end = self._log_position + self._pending_bytes
            unit_end = self._unit_position + self._pending_messages * UNIT_SIZE
            part = min(
                left,
                int((config.commit_log_max_size_bytes - log_end) // size),
                int((config.consume_queue_max_size_bytes - unit_end) // UNIT_SIZE),
                int(self._most_pending - self._pending_messages),
            )
            if part <= 0 and log_end == 0:
                part = 1
            if part > 0:
                self._pending_messages += part
                self._pending_bytes += part * size
                self._at += part
                left -= part
                continue
            if self._pending_messages:
                self._commit(defers=False)
            if config.commit_log_max_size_bytes - self._log_position < size:
                self._roll_log()
            if config.consume_queue_max_size_bytes - self._unit_position < UNIT_SIZE:
                self.written.roll(_UNITS, self._now_ms)
                self._unit_position = 0.0

    def _commit(self, *, defers: bool) -> None:
        log_end = float(round(self._log_position + self._pending_bytes))
        log_bytes = int(log_end) - round(self._log_position)
        unit_bytes = int(self._pending_messages) * UNIT_SIZE
        if self.written.append(log_bytes, unit_bytes, self._now_ms, may_wait=defers):
            self.gathered[self._scan] += log_bytes + unit_bytes
        self._log_position = log_end
        self._times.commit(log_bytes)
        self._unit_position += unit_bytes
        self.commits += 1
        self.messages += int(self._pending_messages)
        self.log_bytes += log_bytes
        self._pending_messages = self._pending_bytes = 0.0
        if self._shares_checks and defers:
            self.deferred[self._scan] += 1
        else:
            self.fence_checks += 1

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
        self.written.roll(_LOG, self._now_ms)
        self._times.roll()
        self.rolls += 1
        self._log_position = 0.0
        self._log_begin_ms = self._arrivals.time_of(self._at)


def model_uploads(
    arrivals: Arrivals,
    config: StoreConfig,
    capabilities: Capabilities,
    queue: ModelledQueue,
    scans_ms: range,
    most_commits: int = NO_LIMIT,
) -> QueueUploads:
    """Simulate the upload of a queue's messages by dispatcher scans. The tier has no messages of
    the queue at first. Stop after `most_commits` commits."""
    uploads = QueueUploads(arrivals, config, capabilities, queue)
    uploads.run(scans_ms, most_commits)
    return uploads
