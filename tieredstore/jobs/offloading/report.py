"""Report of an offload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.usage import Usage, usage_fields
from tieredstore.errors import Corrupt, TieredStoreError
from tieredstore.jobs.offloading.behind import Behind
from tieredstore.jobs.offloading.source import WrongBodies
from tieredstore.local.queues.missing.compare import Built
from tieredstore.tier.upload.local_records import LeftOut


@dataclass(slots=True)
class OffloadReport:
    """Result of a run.

    `queues`: number of chosen queues.
    `messages`, `message_bytes`: copied messages and bytes.
    `segments`: created segments, including index segments.
    `holes`: (queue, first missing queue offset, next existing queue offset).
    `failed`: queue and error.
    `damaged`: messages that were not copied because their records in the store are damaged.
    `wrong_bodies`: messages that were copied although their bodies do not match their CRCs.
    `built`: messages that were in the store's log but in none of its queues.
    `unread`: unreadable parts of the log from which nothing can be copied.
    `skipped`: topics that never go to a tier, with reasons.
    `stopped`: whether `StopSignal` ended the run.
    `behind`: lag at the end.
    `keys_waiting`: number of keys in index files of the state directory.
    `backup`: the report's field `backup`.
    `backup_error`: reason why topics, groups and offsets could not be copied.
    `usage`: requests, if the backend charges for requests.
    """

    queues: int = 0
    messages: int = 0
    message_bytes: int = 0
    segments: int = 0
    seconds: float = 0.0
    holes: list[tuple[QueueKey, int, int]] = field(default_factory=list)
    failed: list[tuple[QueueKey, TieredStoreError]] = field(default_factory=list)
    damaged: list[tuple[QueueKey, LeftOut]] = field(default_factory=list)
    wrong_bodies: dict[QueueKey, WrongBodies] = field(default_factory=dict)
    built: list[Built] = field(default_factory=list)
    unread: list[TieredStoreError] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    stopped: bool = False
    behind: Behind | None = None
    keys_waiting: int = 0
    backup: dict[str, object] = field(default_factory=dict)
    backup_error: TieredStoreError | None = None
    usage: Usage | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the run copied everything and found no fault. Another run over the unchanged
        store would then have nothing to do or report."""
        copied = (self.holes, self.damaged, self.wrong_bodies)
        faults = (*copied, self.failed, self.unread, self.stopped)
        is_good = not any(faults) and self.backup_error is None
        return is_good and self.behind is not None and not self.behind.messages

    def errors(self) -> Iterator[TieredStoreError]:
        """Yield the errors that prevented a part of the copy."""
        yield from (error for _, error in self.failed)
        yield from self.unread
        if self.backup_error is not None:
            yield self.backup_error
        yield from (found.error for _, found in self.damaged)
        for key, wrong in sorted(self.wrong_bodies.items()):
            yield Corrupt(
                f"{key.topic}/{key.queue_id}: the bodies of {wrong.messages} messages do not match "
                f"their CRCs in the store (the first: queue offset {wrong.first_offset}). They are "
                "copied as they are, and `tieredstore verify` names each",
                topic=key.topic,
                queue_id=key.queue_id,
                offset=wrong.first_offset,
            )

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
                {**key._asdict(), "from_offset": low, "until_offset": high}
                for key, low, high in self.holes
            ],
            "failed": [{**key._asdict(), "error": str(error)} for key, error in self.failed],
            "damaged": [
                {
                    **key._asdict(),
                    "from_offset": found.first_offset,
                    "until_offset": found.until_offset,
                    "error": str(found.error),
                }
                for key, found in self.damaged
            ],
            "wrong_bodies": [
                {
                    **key._asdict(),
                    "messages": found.messages,
                    "first_offset": found.first_offset,
                }
                for key, found in sorted(self.wrong_bodies.items())
            ],
            "built": [found.fields() for found in self.built],
            "unread": [str(error) for error in self.unread],
            "skipped_topics": self.skipped,
            "stopped": self.stopped,
            "behind": None if self.behind is None else self.behind.fields(),
            "keys_waiting": self.keys_waiting,
            **(self.backup or {"backup": None}),
            **usage_fields(self.usage),
        }
