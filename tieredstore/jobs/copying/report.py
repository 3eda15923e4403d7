"""What a copy is asked to do, what it would do, and what it did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tieredstore.contracts.usage import Usage
from tieredstore.errors import TieredStoreError


@dataclass(frozen=True, slots=True)
class CopyOptions:
    """topics: only these (shell patterns), all when empty. workers: queues copied at a time.
    replace: delete queues (and an index) of the target that are not the origin's, and copy them
    anew. take_over: end the right of another writer where the backend can."""

    topics: Sequence[str] = ()
    workers: int = 4
    replace: bool = False
    take_over: bool = False


@dataclass(frozen=True, slots=True)
class PathSummary:
    """One path of a plan: bytes to be copied and those there already. conflict: why it cannot be
    copied as it is; deletes_bytes: what would be deleted in the target to do so all the same."""

    path: str
    copy_bytes: int
    there_bytes: int
    segments: int
    conflict: str | None = None
    deletes_bytes: int = 0

    def row(self) -> dict[str, object]:
        """Return the fields in a JSON report."""
        return {
            "path": self.path,
            "copy_bytes": self.copy_bytes,
            "there_bytes": self.there_bytes,
            "segments": self.segments,
            "deletes_bytes": self.deletes_bytes,
            "conflict": self.conflict,
        }


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
    """What a run did. queues: those chosen; segments: made or extended; copied_bytes: written or,
    after a run that was cut off, compared; there_bytes: already there. index_segments: of
    `segments`. replaced, vanished: paths deleted first, and those that the origin no longer had
    when their turn came. failed: path and error. damage: what the origin's listing and state
    disagree on, and is therefore not copied, and what is missing between its segments. notes: what
    else is not. index_left_out: why no index was copied. origin_usage, target_usage:
    requests, of providers that count them."""

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
            "source_requests": _requests(self.origin_usage),
            "target_requests": _requests(self.target_usage),
            "cost_usd": _cost(self.origin_usage, self.target_usage),
        }


def _requests(usage: Usage | None) -> dict[str, int] | None:
    return None if usage is None else usage.requests_by_operation


def _cost(*usages: Usage | None) -> float | None:
    counted = [usage.cost_usd for usage in usages if usage is not None]
    return round(sum(counted), 6) if counted else None
