"""Standby: an offload beside a replica that waits for an order to take over, then follows the
replica's store. The order is a file that an operator creates (`touch`) in the state directory. It
stays there. A standby that is restarted after the take-over continues as the tier's writer, but
never takes ownership from another writer again."""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tieredstore.clock import Clock
from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES, cut_zeros
from tieredstore.errors import Corrupt
from tieredstore.jobs.metadata.job import run_rebuild_metadata
from tieredstore.jobs.offloading.source import OffloadSource
from tieredstore.jobs.options import RebuildMetadataOptions
from tieredstore.jobs.restoring.backups import find_former_metadata
from tieredstore.jobs.run import JobProgress, JobRun, ProgressCallback, ignore_progress
from tieredstore.jobs.stopping import StopSignal
from tieredstore.jobs.target import TierTarget
from tieredstore.local.read_only import ReadOnlyMessageStore
from tieredstore.scan.listing import list_tier
from tieredstore.scan.location import TierLocation
from tieredstore.tier.deleted.records import find_deleted
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.upload.local_records import check_last_message, check_not_ahead

ORDER_FILE: Final = "offload.take-over"
LOOK_MS: Final = 1_000
"""Interval between checks for the order."""
PATIENCE_MS: Final = 180_000
"""Maximum lag of a running replica's checkpoint. Java advances the checkpoint once a minute."""
_RETRY_MS: Final = 5_000
_DONE: Final = b"taken over at"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TakeOverOrder:
    """Order file of one state directory. It is missing, exists (the order, with any content), or
    contains the line of `note_done` after the order was carried out."""

    state: Path

    @property
    def path(self) -> Path:
        return self.state / ORDER_FILE

    @property
    def is_given(self) -> bool:
        return self.path.exists()

    @property
    def is_done(self) -> bool:
        with wrap_os_errors("read", self.path):
            content = FILES.read(self.path) if self.is_given else b""
        if content != cut_zeros(content) and not content.startswith(_DONE):
            raise Corrupt(
                f"{self.path}: expected an order, or a note that it was carried out, found zeros. "
                "Remove the file, and make it again (`touch`) only to have the tier taken over",
                path=str(self.path),
            )
        return content.startswith(_DONE) or bool(content and _DONE.startswith(content))

    def await_it(
        self, stop: StopSignal, clock: Clock, progress: ProgressCallback = ignore_progress
    ) -> bool:
        """Wait for the order, and call `progress` once. Return False if `stop` was set first."""
        with wrap_os_errors("make", self.state):
            FILES.make_directory(self.state)
        if not self.is_given:
            note = f"standby: takes over once there is a file {self.path}"
            progress(JobProgress("offload", "messages", 0, None, 0, None, 0.0, note))
        while not self.is_given:
            clock.wait(stop.event, LOOK_MS)
            if stop.event.is_set():
                return False
        return True

    def note_done(self, now_ms: int) -> None:
        """Durably record that the order was carried out: the epoch was taken, and the metadata was
        rebuilt from the tier."""
        with wrap_os_errors("write", self.path):
            FILES.replace_file(self.path, b"%s %d\n" % (_DONE, now_ms))


def learn_tier(run: JobRun, target: TierTarget, clock: Clock) -> None:
    """Take epoch ownership, and rebuild the metadata of the state directory from the tier. Existing
    metadata is kept under other names. Raises Fenced, Unavailable."""
    broker = target.config.broker_name
    provider = target.open_provider(create=True)
    assert provider is not None
    with closing(provider):
        former, _, _ = find_former_metadata(provider, target.config)
        former = former.drop_deleted(find_deleted(provider, broker))
        if not former.queues and not list_tier(provider, broker):
            return  # No writer yet, or all of it is deleted.
    place = TierLocation(target.url, target.config, broker)
    options = RebuildMetadataOptions(force=True, take_over=True)
    run_rebuild_metadata(run, place, target.state, options, former=former, clock=clock)


def await_coverage(
    store: ReadOnlyMessageStore,
    source: OffloadSource,
    flat_files: FlatFileStore,
    stop: StopSignal,
    clock: Clock,
) -> None:
    """Wait until the replica's store has reached the tier's end in each queue, so that its next
    messages can follow. If a broker runs on the store, its checkpoint gets time to catch up. Raises
    Corrupt, with queue and offset, if the log ends too early or differs from the tier."""
    until_ms = clock.monotonic_ms() + PATIENCE_MS
    while not stop.event.is_set():
        behind, other = _find_faults(source, flat_files)
        if other:
            raise _refusal(other)
        if not behind:
            return
        catches_up = store.is_live and not store.is_unclean
        if not catches_up or clock.monotonic_ms() >= until_ms:
            raise _refusal(behind)
        _log.info("standby: waits for the checkpoint of the store: %s", behind[0])
        clock.wait(stop.event, _RETRY_MS)
        store.refresh()
        source.look_again()


def _find_faults(
    source: OffloadSource, flat_files: FlatFileStore
) -> tuple[list[Corrupt], list[Corrupt]]:
    """Return the queues in which the store lags behind the tier, and those in which it differs from
    the tier."""
    behind: list[Corrupt] = []
    other: list[Corrupt] = []
    is_chosen = source.make_topic_choice()
    for file in flat_files.files():
        key = QueueKey(file.topic, file.queue_id)
        if not is_chosen(key.topic) or not file.consume_queue_max_offset:
            continue
        available = source.queue_range(key)
        if available is None:
            behind.append(
                Corrupt(
                    f"{file.path}: the tier has messages up to queue offset "
                    f"{file.consume_queue_max_offset}, the local store has no such queue (of a "
                    "topic that was deleted, `tieredstore tier delete` takes it from the tier)",
                    topic=key.topic,
                    queue_id=key.queue_id,
                    path=file.path,
                )
            )
            continue
        faults = behind
        try:
            check_not_ahead(key, file, available)
            faults = other
            check_last_message(source, key, file, available)
        except Corrupt as error:
            faults.append(error)
    return behind, other


def _refusal(faults: list[Corrupt]) -> Corrupt:
    first = faults[0]
    rest = f" (and {len(faults) - 1:,} more queues)" if len(faults) > 1 else ""
    return Corrupt(
        f"standby: nothing was uploaded, the replica does not continue at the tier's end: "
        f"{first}{rest}",
        topic=first.topic,
        queue_id=first.queue_id,
        offset=first.offset,
        path=first.path,
    )
