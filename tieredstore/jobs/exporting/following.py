"""Exports again and again, at an interval, until it is asked to stop."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tieredstore.clock import Clock
from tieredstore.errors import Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.run import TASK_BYTES, JobProgress, ProgressCallback
from tieredstore.jobs.stopping import Stopped, StopSignal

JobReport = dict[str, Any]
DEFAULT_INTERVAL = "60s"
_UNITS_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_INTERVAL = re.compile(r"(\d{1,9})(s|m|h|d)", re.ASCII)
_MOST_TEXTS = 1000
"""Gaps and findings that the report of all rounds keeps."""
_log = logging.getLogger(__name__)


def parse_interval(interval: str | timedelta, name: str = "every") -> int:
    """Return the milliseconds of `30s`, `10m`, `2h`, `1d` or of a timedelta. Raises Invalid, with
    the option's name, for less than a second."""
    found = _INTERVAL.fullmatch(interval) if isinstance(interval, str) else None
    if found is not None:
        interval_ms = int(found[1]) * _UNITS_MS[found[2]]
    elif isinstance(interval, timedelta):
        interval_ms = interval // timedelta(milliseconds=1)
    else:
        interval_ms = 0
    if interval_ms < 1000:
        raise Invalid(
            f"{name}: expected a time of at least a second such as 30s, 10m, 2h or 1d, found "
            f"{interval!r}"
        )
    return interval_ms


@dataclass(frozen=True, slots=True)
class Behind:
    """What the tier has and the target has not. seconds: age of the oldest of these messages, 0
    without one."""

    messages: int
    seconds: float

    def fields(self) -> dict[str, object]:
        """Return the fields of the JSON report (`docs/jobs.md`)."""
        return {"messages": self.messages, "seconds": round(self.seconds, 3)}


@dataclass(slots=True)
class Totals:
    """Of several exports. report: that of the last one, with the sums of all."""

    rounds: int = 0
    failed_rounds: int = 0
    report: JobReport = field(default_factory=dict)

    def add(self, found: JobReport) -> None:
        """Add the report of one more."""
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
    """Export each `interval_ms`, counted from the begin of a round, until `stop` is set: then the
    tasks in hand are ended, and what was not committed is taken up by the next run.

    A backend that is unavailable, and another export that committed meanwhile, are tried again in
    the next round; any other error ends the run. Returns the report of the last round with the sums
    of all, `rounds`, `failed_rounds`, `stopped` and `behind` (None where nobody could tell).
    """
    totals = Totals()
    start_ms = clock.monotonic_ms()

    def show_large_stage(stage: JobProgress) -> None:
        if progress is not None and (stage.total_bytes or 0) > TASK_BYTES:
            progress(stage)

    while not stop.is_set():
        begin_ms = clock.monotonic_ms()
        found: JobReport | None = None
        details: dict[str, float] = {}
        try:
            found = export_once(show_large_stage)
        except Stopped:
            break
        except (Unavailable, Fenced) as error:
            if stop.is_set():  # a worker that the same signal ended
                break
            totals.failed_rounds += 1
            note = f"tried again in the next round: {error}"
            _log.warning("export: %s", note)
        else:
            totals.add(found)
            details = _measure_wait(found, clock.now_ms())
            note = _describe_wait(details)
        if progress is not None and (found is None or found["rows"]):
            seconds = (clock.monotonic_ms() - start_ms) / 1000
            progress(_progress_of(totals, seconds, note, details))
        passed_ms = clock.monotonic_ms() - begin_ms
        clock.wait(stop.event, max(interval_ms - passed_ms, 0))
    return {
        **totals.report,
        "seconds": round((clock.monotonic_ms() - start_ms) / 1000, 3),
        "rounds": totals.rounds,
        "failed_rounds": totals.failed_rounds,
        "stopped": True,
        "behind": _measure(measure_left),
    }


def _measure_wait(found: JobReport, now_ms: int) -> dict[str, float]:
    """How far behind the target was when the round began."""
    oldest_ms = found["oldest_store_timestamp"]
    behind: dict[str, float] = {"was_behind_messages": found["rows"]}
    if oldest_ms is not None:
        behind["was_behind_seconds"] = max(now_ms - oldest_ms, 0) / 1000
    return behind


def _describe_wait(behind: Mapping[str, float]) -> str:
    if not behind["was_behind_messages"]:
        return ""
    text = f"was {behind['was_behind_messages']:,} messages"
    seconds = behind.get("was_behind_seconds")
    return f"{text} behind" if seconds is None else f"{text}, {seconds:,.0f} s behind at most"


def _progress_of(
    totals: Totals, seconds: float, note: str, details: Mapping[str, float]
) -> JobProgress:
    rows, size = totals.report.get("rows", 0), totals.report.get("file_bytes", 0)
    return JobProgress(
        "export", "messages", rows, None, size, None, seconds, note, details={**details}
    )


def _measure(measure_left: Callable[[], Behind]) -> dict[str, object] | None:
    try:
        return measure_left().fields()
    except TieredStoreError as error:
        _log.warning("export: what is left cannot be told: %s", error)
        return None


def _merge_queues(total: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    queues = {entry["queue"]: dict(entry) for entry in total}
    for entry in found:
        known = queues.setdefault(entry["queue"], {**entry, "rows": 0})
        known["rows"] += entry["rows"]
        known["until_offset"] = entry["until_offset"]
    return list(queues.values())


def _merge_stages(total: list[dict[str, Any]], found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    stages = {entry["stage"]: dict(entry) for entry in total}
    for entry in found:
        known = stages.setdefault(entry["stage"], {"stage": entry["stage"]})
        for name, value in entry.items():
            if name != "stage":
                known[name] = round(known.get(name, 0) + value, 3)
    return list(stages.values())
