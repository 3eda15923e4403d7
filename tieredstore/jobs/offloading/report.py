"""What an offload did."""

from __future__ import annotations

from dataclasses import dataclass, field

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.usage import Usage, usage_fields
from tieredstore.errors import TieredStoreError
from tieredstore.jobs.offloading.behind import Behind
from tieredstore.tier.upload.local_records import LeftOut


@dataclass(slots=True)
class OffloadReport:
    """What a run did. queues: those chosen; messages, message_bytes: copied; segments: made,
    index segments included. holes: (queue, first missing, next present queue offset). failed: queue
    and error; damaged: messages that were left out, as their records in the store are damaged.
    skipped: topics that never go to a tier, and why. stopped: whether `StopSignal` ended the run.
    behind: what the store has and the tier has not, at the end. usage: its requests, where the
    backend is paid by them."""

    queues: int = 0
    messages: int = 0
    message_bytes: int = 0
    segments: int = 0
    seconds: float = 0.0
    holes: list[tuple[QueueKey, int, int]] = field(default_factory=list)
    failed: list[tuple[QueueKey, TieredStoreError]] = field(default_factory=list)
    damaged: list[tuple[QueueKey, LeftOut]] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    stopped: bool = False
    behind: Behind | None = None
    usage: Usage | None = None

    @property
    def is_whole(self) -> bool:
        """Whether all that the store has is in the tier, and a run behind this one has nothing else
        to tell."""
        is_good = not (self.holes or self.failed or self.damaged or self.stopped)
        return is_good and self.behind is not None and not self.behind.messages

    def fields(self) -> dict[str, object]:
        """Return the fields of the JSON report (`docs/cli.md`)."""
        rate = self.messages / self.seconds if self.seconds > 0 else 0.0
        return {
            "queues": self.queues,
            "messages": self.messages,
            "message_bytes": self.message_bytes,
            "segments": self.segments,
            "seconds": round(self.seconds, 3),
            "messages_per_second": round(rate),
            "holes": [
                {
                    "topic": key.topic,
                    "queue_id": key.queue_id,
                    "from_offset": low,
                    "until_offset": high,
                }
                for key, low, high in self.holes
            ],
            "failed": [
                {"topic": key.topic, "queue_id": key.queue_id, "error": str(error)}
                for key, error in self.failed
            ],
            "damaged": [
                {
                    "topic": key.topic,
                    "queue_id": key.queue_id,
                    "from_offset": found.first_offset,
                    "until_offset": found.until_offset,
                    "error": str(found.error),
                }
                for key, found in self.damaged
            ],
            "skipped_topics": self.skipped,
            "stopped": self.stopped,
            "behind": None if self.behind is None else self.behind.fields(),
            **usage_fields(self.usage),
        }
