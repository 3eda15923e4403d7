"""State of an offload that follows its store, for monitoring."""

from __future__ import annotations

from dataclasses import dataclass, field

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.message_store import TierStatus
from tieredstore.jobs.offloading.behind import Behind
from tieredstore.metrics import Metrics
from tieredstore.service_thread import ServiceHealth, ServiceState

BEHIND_MESSAGES = "rocketmq_tiered_store_x_offload_behind_messages"
BEHIND_SECONDS = "rocketmq_tiered_store_x_offload_behind_seconds"
HELD_BACK_MESSAGES = "rocketmq_tiered_store_x_offload_held_back_messages"
FAILING_QUEUES = "rocketmq_tiered_store_x_offload_failing_queues"
STUCK_QUEUES = "rocketmq_tiered_store_x_offload_stuck_queues"
ROUNDS = "rocketmq_tiered_store_x_offload_rounds_total"
GOOD_ROUND_SECONDS = "rocketmq_tiered_store_x_offload_last_good_round_timestamp_seconds"
_LATE_INTERVALS = 3


@dataclass(slots=True)
class OffloadWatch:
    """State of an offload that follows a store. The job sets it, and any thread may read it.
    `metrics`: metrics of the dispatcher and the provider, under the names of our broker, and of
    this module. `tier`: state of the tier after the last round, None until the job is open.
    `is_standby`: whether the job waits for the take-over order."""

    clock: Clock = SYSTEM_CLOCK
    metrics: Metrics = field(default_factory=Metrics)
    tier: TierStatus | None = None
    is_standby: bool = False
    _moved_ms: int | None = None
    _has_worked: bool = False
    _late_after_ms: int = 0
    _failures: int = 0
    _error: Exception | None = None

    def begin(self, interval_ms: int, tier: TierStatus) -> None:
        """Record that the job is open. `interval_ms`: interval between rounds."""
        self.tier = tier
        self._late_after_ms = _LATE_INTERVALS * interval_ms
        self._moved_ms = self.clock.monotonic_ms()
        # Without it, an alarm on its age would never fire if no round succeeds.
        self.metrics.gauge(GOOD_ROUND_SECONDS, self.clock.now_ms() / 1000)

    def note_progress(self) -> None:
        """Record that the job makes progress. No effect before the job is open."""
        if self._moved_ms is not None:
            self._moved_ms = self.clock.monotonic_ms()
            self._has_worked = True

    def end_round(
        self, tier: TierStatus, behind: Behind | None, stuck_queues: int, error: Exception | None
    ) -> None:
        """Record the end of a round. `behind`: the same lag as in `tier`. `stuck_queues`: queues
        that only an operator can repair. `error`: reason why the round ended early, or why a queue
        or the index failed. Such a round is not successful."""
        self.tier = tier
        self._error = error
        self._failures = 0 if error is None else self._failures + 1
        self.note_progress()
        gauge = self.metrics.gauge
        gauge(FAILING_QUEUES, tier.failing_queues)
        gauge(STUCK_QUEUES, stuck_queues)
        if behind is not None:
            gauge(BEHIND_MESSAGES, behind.messages)
            gauge(BEHIND_SECONDS, behind.seconds)
            gauge(HELD_BACK_MESSAGES, behind.held_back_messages)
        self.metrics.count(ROUNDS, result="good" if error is None else "failed")
        if error is None:
            gauge(GOOD_ROUND_SECONDS, self.clock.now_ms() / 1000)

    def list_services(self) -> list[ServiceHealth]:
        """Return the health of the job. STARTING: nothing was copied, and the first round has not
        ended. LATE: no progress for much longer than the interval. FAILED: the last round
        failed."""
        if self.is_standby:
            return [ServiceHealth("standby", ServiceState.RUNNING)]
        moved_ms, failures, error = self._moved_ms, self._failures, self._error
        if moved_ms is None:
            return [ServiceHealth("offload", ServiceState.STARTING)]
        late_ms = max(self.clock.monotonic_ms() - moved_ms - self._late_after_ms, 0)
        state = ServiceState.RUNNING if self._has_worked else ServiceState.STARTING
        if late_ms:
            state = ServiceState.LATE
        if error is not None:
            state = ServiceState.FAILED
        return [ServiceHealth("offload", state, failures, late_ms, error)]
