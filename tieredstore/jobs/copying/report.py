"""Plan summary and report of a copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from tieredstore.contracts.usage import Usage
from tieredstore.errors import TieredStoreError


@dataclass(frozen=True, slots=True)
class PathSummary:
    """One path of a plan: bytes to copy, and bytes that are already in the target. `conflict`:
    reason why the target must be changed first. `deletes_bytes`: bytes of the target that `replace`
    would delete."""

    path: str
    copy_bytes: int
    there_bytes: int
    segments: int
    conflict: str | None = None
    deletes_bytes: int = 0

    def row(self) -> dict[str, object]:
        """Return the fields for a JSON report."""
        row = asdict(self)
        row["conflict"] = row.pop("conflict")  # the last column
        return row


def plan_fields(plan: Sequence[PathSummary]) -> dict[str, object]:
    """Return the fields of the JSON report of a plan (`docs/cli.md`)."""
    return {
        "paths": len(plan),
        "segments": sum(path.segments for path in plan),
        "copy_bytes": sum(path.copy_bytes for path in plan),
        "deletes_bytes": sum(path.deletes_bytes for path in plan),
        "conflicts": sum(path.conflict is not None for path in plan),
        "plan": [path.row() for path in plan],
    }


@dataclass(slots=True)
class CopyReport:
    """Result of a run.

    `queues`: number of chosen queues.
    `segments`: number of created or extended segments.
    `copied_bytes`: bytes that were written, or compared after an interrupted run.
    `there_bytes`: bytes that were already in the target.
    `index_segments`: number of index segments among `segments`.
    `replaced`: paths that were deleted first.
    `vanished`: paths that expired in the origin before they were copied.
    `failed`: path and error.
    `damage`: parts that were not copied because of losses or contradictions in the origin.
    `notes`: other parts that were not copied.
    `index_left_out`: reason why no index was copied.
    `origin_usage`, `target_usage`: requests, if the provider counts them.
    """

    queues: int = 0
    segments: int = 0
    index_segments: int = 0
    copied_bytes: int = 0
    there_bytes: int = 0
    seconds: float = 0.0
    replaced: list[str] = field(default_factory=list)
    vanished: list[str] = field(default_factory=list)
    failed: list[tuple[str, TieredStoreError]] = field(default_factory=list)
    damage: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    index_left_out: str | None = None
    stopped: bool = False
    origin_usage: Usage | None = None
    target_usage: Usage | None = None

    def fields(self) -> dict[str, object]:
        """Return the fields of the JSON report (`docs/cli.md`)."""
        rate = self.copied_bytes / self.seconds if self.seconds > 0 else 0.0
        origin, target = self.origin_usage, self.target_usage
        counted = [usage.cost_usd for usage in (origin, target) if usage is not None]
        return {
            "queues": self.queues,
            "segments": self.segments,
            "index_segments": self.index_segments,
            "copied_bytes": self.copied_bytes,
            "there_bytes": self.there_bytes,
            "seconds": round(self.seconds, 3),
            "bytes_per_second": round(rate),
            "replaced": self.replaced,
            "vanished": self.vanished,
            "failed": [{"path": path, "error": str(error)} for path, error in self.failed],
            "index_left_out": self.index_left_out,
            "damage": self.damage,
            "notes": self.notes,
            "stopped": self.stopped,
            "source_requests": None if origin is None else origin.requests_by_operation,
            "target_requests": None if target is None else target.requests_by_operation,
            "cost_usd": round(sum(counted), 6) if counted else None,
        }
