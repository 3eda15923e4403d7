"""Exports with one target per topic: the target's URL or table name contains `{topic}`. Each topic
is a separate export with its own state, journal and commit."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from tieredstore.errors import Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.exporting.following import Behind, Totals
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.jobs.run import JobReport
from tieredstore.jobs.stopping import Stopped
from tieredstore.scan.catalogue import TierCatalogue

PLACE = "{topic}"
_TABLE_FIELDS = ("target", "export", "sequence", "commit", "rows", "files", "file_bytes")


def is_per_topic(request: ExportRequest) -> bool:
    """Return whether each topic has its own target. Raises Invalid for an Iceberg table whose
    folder contains the topic but whose name does not."""
    in_table, in_folder = (PLACE in (text or "") for text in (request.table, request.to))
    if request.format is Format.ICEBERG and in_folder and not in_table:
        raise Invalid(f"{request.target}: {PLACE} in the folder needs {PLACE} in the table's name")
    return in_table or in_folder


def split_by_topic(request: ExportRequest, catalogue: TierCatalogue) -> dict[str, ExportRequest]:
    """Return the export request of each chosen topic. Raises Invalid if a topic does not exist, or
    if two topics would have targets of the same name."""
    request.require_topics(catalogue)
    topics = sorted({queue.topic for queue in request.selection.queues(catalogue)})
    named: dict[str, str] = {}
    for topic in topics:
        other = named.setdefault(name_topic(topic).lower(), topic)
        if other != topic:
            raise Invalid(
                f"{request.target}: topics {other!r} and {topic!r} would have targets of one name, "
                f"{name_topic(topic)!r} (case does not count): export one of them by itself",
                topic=topic,
            )
    return {topic: _narrow(request, topic) for topic in topics}


def name_topic(topic: str) -> str:
    """Return a topic's name in a form that is valid for folders and tables. Letters, digits, `_`
    and `-` stay. Other characters become `_` and their number in hex, such as `_25` for `%`."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"_{ord(found[0]):02X}", topic)


def export_each(
    requests: dict[str, ExportRequest],
    export_one: Callable[[ExportRequest], JobReport],
    target: str,
    *,
    keeps_part: bool,
) -> JobReport:
    """Export topic by topic, and return one report, with a row per topic in `tables`. The failure
    of one topic does not stop the others. The first error is raised at the end, lasting errors
    before temporary ones. `keeps_part`: after Stopped between two topics, return the report of the
    committed topics."""
    found: list[tuple[str, JobReport]] = []
    errors: list[TieredStoreError] = []
    for topic, request in requests.items():
        try:
            found.append((topic, export_one(request)))
        except Stopped:
            if not found or not keeps_part:
                raise
            break
        except TieredStoreError as error:
            errors.append(error)
    if errors:
        raise min(errors, key=lambda error: isinstance(error, (Unavailable, Fenced)))
    return _gather(found, target)


def measure_each(
    requests: dict[str, ExportRequest], measure: Callable[[ExportRequest], Behind]
) -> Behind:
    """Return the sum of the lags of all targets."""
    found = list(map(measure, requests.values()))
    seconds = max((one.seconds for one in found), default=0.0)
    return Behind(sum(one.messages for one in found), seconds)


def _narrow(request: ExportRequest, topic: str) -> ExportRequest:
    name = name_topic(topic)
    return replace(
        request,
        to=None if request.to is None else request.to.replace(PLACE, name),
        table=None if request.table is None else request.table.replace(PLACE, name),
        selection=replace(request.selection, topics=(topic,), topic_pattern=None),
    )


def _gather(found: Sequence[tuple[str, JobReport]], target: str) -> JobReport:
    if not found:
        return {"job": "export", "target": target, "rows": 0, "files": 0, "file_bytes": 0,
                "commit": None, "queues": [], "gaps": [], "findings": [], "unfit": [],
                "stages": [], "oldest_store_timestamp": None, "started_ms": None,
                "tables": []}  # fmt: skip
    totals = Totals()
    for _, report in found:
        totals.add(report)
    oldest = [report["oldest_store_timestamp"] for _, report in found]
    report = {
        **totals.report,
        "target": target,
        "seconds": round(sum(report["seconds"] for _, report in found), 3),
        "oldest_store_timestamp": min((ms for ms in oldest if ms is not None), default=None),
        "tables": [
            {"topic": topic, **{name: report[name] for name in _TABLE_FIELDS}}
            for topic, report in found
        ],
    }
    del report["export"], report["sequence"]
    return report
