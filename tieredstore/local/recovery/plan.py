"""The plan of a recovery, as data.

`planning.py` makes the plan and writes nothing. `normal.repair` executes it. The dispatch then
builds the missing parts, starting at the plan's `dispatch_from`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tieredstore.local.index.reader import IndexShape
from tieredstore.local.queues.missing.records import Misplaced
from tieredstore.local.recovery.checkpoint import Checkpoint
from tieredstore.local.recovery.index_plan import IndexCut
from tieredstore.local.recovery.log_scan import DoubtfulRecord, EndCause, RecordsBehind
from tieredstore.local.recovery.queue_files import QueueCut


@dataclass(frozen=True, slots=True)
class QueueBuild:
    """Queue whose units [from_offset, until_offset) are built from the log."""

    topic: str
    queue_id: int
    from_offset: int
    until_offset: int


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """Actions of a recovery. Offsets are bytes of the commit log unless they are a queue's.

    `was_clean`: whether the last owner stopped the store cleanly. `check_from`: position at which
    the check of records begins. `records`: number of valid records after `check_from`. `log_end`:
    end of the last valid record. `end_cause`, `end_detail`: reason why the log ends there.
    `cut_bytes`: number of bytes from `log_end` to the last nonzero byte. `wipe_path`,
    `wipe_position`: file to zero from this position on (empty path: none). `delete_log_files`:
    later files, in order. `behind`: valid records after the end, which are lost.

    `queue_cuts`, `index_cuts`, `delete_index_files`: invalid parts. `units_until`: units of
    messages that end after this position are dropped. `dispatch_from`: position at which the
    rebuild of queues and index begins. `queues_to_build`: queues that get units by the rebuild, as
    far as known.

    `checkpoint_before`, `checkpoint_after`: current checkpoint, and the one written before any
    other change. `needs_consent`: why an operator must agree, or empty if the plan is safe.
    `warnings`: texts for the operator. `has_unread`: whether parts of the log have no record
    although no queue points there, which no recovery can repair. `needs_rebuild`: whether missing
    units require a rebuild of all queues. `doubtful`: complete records that look damaged because of
    the client that sent them, and are kept. `lost_ends`: damaged last
    messages of queues, which get units so that no later message gets their offsets.
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
    has_unread: bool = False
    needs_rebuild: bool = False
    doubtful: tuple[DoubtfulRecord, ...] = ()
    lost_ends: tuple[Misplaced, ...] = ()

    @property
    def is_needed(self) -> bool:
        """Whether a recovery would change anything in the store."""
        return not self.was_clean or bool(
            self.cut_bytes
            or self.queue_cuts
            or self.index_cuts
            or self.delete_index_files
            or self.queues_to_build
            or self.needs_rebuild
            or self.lost_ends
        )

    def fields(self) -> dict[str, Any]:
        """Return the fields for the JSON report (`docs/cli.md`)."""
        found = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(self).items()}
        wipe = {"path": found.pop("wipe_path"), "position": found.pop("wipe_position")}
        hidden = ("root", "was_clean", "behind", "doubtful", "index_shape", "log_files_to_sync")
        return {
            "store": str(self.root),
            "clean": self.was_clean,
            "recovery_needed": self.is_needed,
            **{name: value for name, value in found.items() if name not in hidden},
            "end_cause": self.end_cause.name.lower(),
            "wipe": wipe if self.wipe_path else None,
            "records_behind": found["behind"],
            "doubtful_records": found["doubtful"],
            "lost_ends": [{**it.key._asdict(), "offset": it.offset} for it in self.lost_ends],
        }
