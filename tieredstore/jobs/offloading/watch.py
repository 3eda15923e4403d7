"""What an offload that follows its store tells of itself, to those who watch it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.contracts.tier_status import TierStatus
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
    """How a followed store's offload is; set by the job, read by any thread.

    metrics: the dispatcher's and the provider's, under the names that a broker of ours has, and
    those of this module. tier: as it was after the last round, or before the first; None until
    the job is open. is_standby: whether it waits for the order to take over.
    """

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
        """Note that the job is open, and its first round begins. interval_ms: between two."""
        self.tier = tier
        self._late_after_ms = _LATE_INTERVALS * interval_ms
        self._moved_ms = self.clock.monotonic_ms()

    def note_progress(self) -> None:
        """Note that messages were read in the store; before the first round it means nothing."""
        if self._moved_ms is not None:
            self._moved_ms = self.clock.monotonic_ms()
            self._has_worked = True

    def end_round(
        self, tier: TierStatus, behind: Behind | None, stuck_queues: int, error: Exception | None
    ) -> None:
        """Note that a round ended. behind: as it was when a round last went well; stuck_queues: how
        many cannot go on; error: why the round ended early."""
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
        """Tell how the job is: STARTING until its first round takes something or ends, LATE when
        for much longer than the time between two rounds nothing was taken and none ended, FAILED
        while its rounds fail."""
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
