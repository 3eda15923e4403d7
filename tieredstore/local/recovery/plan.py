"""What a recovery would do to a store, as data.

`planning.py` finds it without writing anything, `repair.py` does what it says; the dispatch then
builds what is missing, from the plan's `dispatch_from` on.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tieredstore.local.index.reader import IndexShape
from tieredstore.local.recovery.checkpoint import Checkpoint
from tieredstore.local.recovery.index_look import IndexCut
from tieredstore.local.recovery.log_scan import EndCause, RecordsBehind
from tieredstore.local.recovery.queue_look import QueueCut


@dataclass(frozen=True, slots=True)
class QueueBuild:
    """A queue of which units are built from the log: offsets [from_offset, until_offset)."""

    topic: str
    queue_id: int
    from_offset: int
    until_offset: int


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What a recovery does. Offsets are bytes of the commit log unless they are a queue's.

    was_clean: whether the last owner stopped the store. check_from: where the check of the records
    began; records: how many are valid from there on. log_end: behind the last of them; end_cause
    and end_detail: why. cut_bytes: from log_end to the last byte that is not zero. wipe_path,
    wipe_position: the file whose bytes from there on are zeroed (empty: none). delete_log_files:
    those behind, in order. behind: valid records behind the end, which go. queue_cuts, index_cuts,
    delete_index_files: what of them does not count. units_until: no unit of a message that ends
    behind it stays. dispatch_from: from where on queues and index
    are built; queues_to_build: which queues that adds to, as far as is known before it.
    checkpoint_before, checkpoint_after: the second is written before anything else. needs_consent:
    why nothing is done unless somebody says so, empty when it is safe. warnings: for people.
    """

    root: Path
    was_clean: bool
    check_from: int
    records: int
    log_end: int
    end_cause: EndCause
    end_detail: str
    cut_bytes: int
    wipe_path: str
    wipe_position: int
    delete_log_files: tuple[str, ...]
    behind: RecordsBehind
    queue_cuts: tuple[QueueCut, ...]
    units_until: int
    index_cuts: tuple[IndexCut, ...]
    delete_index_files: tuple[str, ...]
    index_shape: IndexShape
    log_files_to_sync: tuple[str, ...]
    dispatch_from: int
    queues_to_build: tuple[QueueBuild, ...]
    checkpoint_before: Checkpoint
    checkpoint_after: Checkpoint
    needs_consent: str
    warnings: tuple[str, ...]

    @property
    def is_needed(self) -> bool:
        """Whether a recovery has anything to do."""
        return not self.was_clean or bool(
            self.cut_bytes
            or self.queue_cuts
            or self.index_cuts
            or self.delete_index_files
            or self.queues_to_build
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields of the JSON report (`docs/cli.md`)."""
        return {
            "store": str(self.root),
            "clean": self.was_clean,
            "recovery_needed": self.is_needed,
            "check_from": self.check_from,
            "records": self.records,
            "log_end": self.log_end,
            "end_cause": self.end_cause.name.lower(),
            "end_detail": self.end_detail,
            "cut_bytes": self.cut_bytes,
            "wipe": {"path": self.wipe_path, "position": self.wipe_position}
            if self.wipe_path
            else None,
            "delete_log_files": list(self.delete_log_files),
            "records_behind": asdict(self.behind),
            "queue_cuts": [asdict(cut) for cut in self.queue_cuts],
            "units_until": self.units_until,
            "index_cuts": [asdict(cut) for cut in self.index_cuts],
            "delete_index_files": list(self.delete_index_files),
            "dispatch_from": self.dispatch_from,
            "queues_to_build": [asdict(queue) for queue in self.queues_to_build],
            "checkpoint_before": asdict(self.checkpoint_before),
            "checkpoint_after": asdict(self.checkpoint_after),
            "needs_consent": self.needs_consent,
            "warnings": list(self.warnings),
        }
