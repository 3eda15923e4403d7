"""Follow mode of an export."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

from tieredstore.clock import Clock
from tieredstore.errors import Fenced, Refused, TieredStoreError, Unavailable
from tieredstore.jobs.run import TASK_BYTES, JobProgress, JobReport, ProgressCallback
from tieredstore.jobs.stopping import Stopped, StopSignal
from tieredstore.scan.times import parse_span

_MOST_TEXTS = 1000
"""Maximum number of gaps in the report of a follow mode, and maximum number of findings."""
_log = logging.getLogger(__name__)


def parse_interval(interval: str | timedelta, name: str = "every") -> int:
    """Return the milliseconds of `30s`, `10m`, `2h`, `1d` or of a timedelta. Raises Invalid, with
    the name of the option, for less than a second."""
    return parse_span(interval, name, least_ms=1000)


@dataclass(frozen=True, slots=True)
class Behind:
    """Export lag: messages that are not exported yet. `seconds`: age of the oldest of them, or
    0."""

    messages: int
    seconds: float

    def fields(self) -> dict[str, object]:
        """Return the fields of the JSON report (`docs/jobs.md`)."""
        return {"messages": self.messages, "seconds": round(self.seconds, 3)}


@dataclass(slots=True)
class Totals:
    """Sum of several exports. `report`: the last report, with the sums of all."""

    rounds: int = 0
    failed_rounds: int = 0
    report: JobReport = field(default_factory=dict)

    def add(self, found: JobReport) -> None:
        """Add the report of another export."""
        self.rounds += 1
        total, self.report = self.report, dict(found)
        if not total:
            return
        report = self.report
        report["started_ms"] = total["started_ms"] or report["started_ms"]
        for name, value in total.items():
            if name in _COUNTED:
                report[name] = report.get(name, 0) + value
        if report["commit"] is None:
            report["commit"] = total["commit"]
        for name in ("gaps", "findings", "unfit"):
            report[name] = [*total[name], *found[name]][:_MOST_TEXTS]
        report["queues"] = _merge_queues(total["queues"], found["queues"])
        report["stages"] = _merge_stages(total["stages"], found["stages"])


_COUNTED = frozenset(
    {"rows", "files", "file_bytes", "duplicates", "corrupt_messages", "unfit_bodies", "damage"}
)


def follow_exports(
    export_once: Callable[[ProgressCallback], JobReport],
    measure_left: Callable[[], Behind],
    interval_ms: int,
    *,
    stop: StopSignal,
    clock: Clock,
    progress: ProgressCallback | None = None,
) -> JobReport:
    """Repeat the export every `interval_ms` until `stop` is set. A long export delays the next one.
    After `stop`, running tasks are finished, and a later job exports the rest. If the backend is
    unavailable, or another export has committed, the next round retries. Any other error is raised.
    Returns the last report with the sums of all rounds, `rounds`, `failed_rounds`, `stopped` and
    `behind` (None if unknown)."""
    totals = Totals()
    start_ms = clock.monotonic_ms()

    def show_large_stage(stage: JobProgress) -> None:
        if progress is not None and (stage.total_bytes or 0) > TASK_BYTES:
            progress(stage)

    while not stop.is_set():
        begin_ms = clock.monotonic_ms()
        found: JobReport | None = None
        details: dict[str, object] = {}
        try:
            found = export_once(show_large_stage)
        except Stopped:
            break
        except (Unavailable, Fenced) as error:
            if isinstance(error, Refused):
                raise  # The next round would be refused too.
            if stop.is_set():  # a worker that the same signal ended
                break
            totals.failed_rounds += 1
            note = f"tried again in the next round: {error}"
            _log.warning("export: %s", note)
        else:
            totals.add(found)
            details, note = _describe_wait(found, clock.now_ms())
        if progress is not None and (found is None or found["rows"]):
            rows, size = totals.report.get("rows", 0), totals.report.get("file_bytes", 0)
            seconds = (clock.monotonic_ms() - start_ms) / 1000
            progress(
                JobProgress(
                    *("export", "messages", rows, None, size, None, seconds, note), details=details
                )
            )
        passed_ms = clock.monotonic_ms() - begin_ms
        clock.wait(stop.event, max(interval_ms - passed_ms, 0))
    behind: dict[str, object] | None = None
    try:
        behind = measure_left().fields()
    except TieredStoreError as error:
        _log.warning("export: the remaining lag is unknown: %s", error)
    return {
        **totals.report,
        "seconds": round((clock.monotonic_ms() - start_ms) / 1000, 3),
        "rounds": totals.rounds,
        "failed_rounds": totals.failed_rounds,
        "stopped": True,
        "behind": behind,
    }


def _describe_wait(found: JobReport, now_ms: int) -> tuple[dict[str, object], str]:
    """Return the target's lag at the start of the round, as values and as text."""
    rows, oldest_ms = found["rows"], found["oldest_store_timestamp"]
    behind: dict[str, object] = {"was_behind_messages": rows}
    note = f"was {rows:,} messages behind"
    if oldest_ms is not None:
        seconds = behind["was_behind_seconds"] = max(now_ms - oldest_ms, 0) / 1000
        note = f"was {rows:,} messages, {seconds:,.0f} s behind at most"
    return behind, note if rows else ""


def _merge_queues(total: list[JobReport], found: list[JobReport]) -> list[JobReport]:
    queues = {entry["queue"]: dict(entry) for entry in total}
    for entry in found:
        known = queues.setdefault(entry["queue"], {**entry, "rows": 0})
        known["rows"] += entry["rows"]
        known["until_offset"] = entry["until_offset"]
    return list(queues.values())


def _merge_stages(total: list[JobReport], found: list[JobReport]) -> list[JobReport]:
    stages = {entry["stage"]: dict(entry) for entry in total}
    for entry in found:
        known = stages.setdefault(entry["stage"], {"stage": entry["stage"]})
        for name, value in entry.items():
            if name != "stage":
                known[name] = round(known.get(name, 0) + value, 3)
    return list(stages.values())
