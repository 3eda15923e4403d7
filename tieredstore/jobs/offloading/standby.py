"""An offload beside a replica: it waits, and follows the replica's store when it is told to.

The order is a file in the state directory, which an operator makes (`touch`). It stays there: a
standby that is started again after it took over goes on as the tier's writer, but takes the right
from nobody a second time.
"""

from __future__ import annotations

import logging
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt
from tieredstore.jobs.metadata.job import RebuildOptions, run_rebuild_metadata
from tieredstore.jobs.restoring.backups import find_former_metadata
from tieredstore.jobs.run import JobProgress, ignore_progress
from tieredstore.scan.location import TierLocation
from tieredstore.tier.upload.position import check_last_message, check_not_ahead

if TYPE_CHECKING:
    from tieredstore.clock import Clock
    from tieredstore.jobs.offloading.source import OffloadSource
    from tieredstore.jobs.run import JobRun, ProgressCallback
    from tieredstore.jobs.stopping import StopSignal
    from tieredstore.jobs.target import TierTarget
    from tieredstore.local.read_only import ReadOnlyMessageStore
    from tieredstore.tier.flat.file_store import FlatFileStore

ORDER_FILE: Final = "offload.take-over"
LOOK_MS: Final = 1_000
"""Between two looks for the order."""
PATIENCE_MS: Final = 180_000
"""How long the checkpoint of a replica that runs may be behind what the tier has. A Java broker
moves it about once a minute."""
_RETRY_MS: Final = 5_000
_DONE: Final = b"taken over at"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TakeOverOrder:
    """The file of one state directory: not there, there (the order, whatever is in it), or with
    `note_done`'s line once it was carried out."""

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
            return self.is_given and FILES.read(self.path).startswith(_DONE)

    def await_it(
        self, stop: StopSignal, clock: Clock, progress: ProgressCallback = ignore_progress
    ) -> bool:
        """Wait for the order, which `progress` is told once; return whether it was given before
        `stop` was set."""
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
        """Note, on disk, that the right was taken and the state directory knows the tier."""
        with wrap_os_errors("write", self.path):
            FILES.replace_file(self.path, b"%s %d\n" % (_DONE, now_ms))


def learn_tier(run: JobRun, target: TierTarget, clock: Clock) -> None:
    """Take the right to write from whoever has it, and make the metadata of the state directory
    from what the tier has; metadata that was there is kept beside it. Raises Fenced where the
    backend cannot end another's right, Unavailable."""
    broker = target.config.broker_name
    provider = target.open_provider(create=True)
    assert provider is not None
    with closing(provider):
        if not any(True for _ in provider.list(broker)):
            return  # nobody has written yet
        former, _, _ = find_former_metadata(provider, target.config)
    place = TierLocation(target.url, target.config, broker)
    options = RebuildOptions(force=True, take_over=True)
    run_rebuild_metadata(run, place, target.state, options, former=former, clock=clock)


def await_coverage(
    store: ReadOnlyMessageStore,
    source: OffloadSource,
    flat_files: FlatFileStore,
    stop: StopSignal,
    clock: Clock,
) -> None:
    """Return when a replica's store has, of each queue of the tier, the last message that the tier
    has, or had it once; then what comes next in it comes next in the tier. Raises Corrupt with the
    queue and the offset for a log that ends before the tier's or differs from it; while a broker
    runs on the store, once its checkpoint had the time to catch up."""
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
    """Queues of which the store has less than the tier, and those of which it has something else.
    Raises Unavailable."""
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
        try:
            check_not_ahead(key, file, available)
        except Corrupt as error:
            behind.append(error)
            continue
        try:
            check_last_message(source, key, file, available)
        except Corrupt as error:
            other.append(error)
    return behind, other


def _refusal(faults: list[Corrupt]) -> Corrupt:
    first = faults[0]
    rest = f" (and {len(faults) - 1:,} more queues)" if len(faults) > 1 else ""
    return Corrupt(
        f"standby: nothing was uploaded, the replica does not go on where the tier ends: "
        f"{first}{rest}",
        topic=first.topic,
        queue_id=first.queue_id,
        offset=first.offset,
        path=first.path,
    )
