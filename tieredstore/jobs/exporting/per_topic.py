"""A target for each topic: `{topic}` in its URL or in the name of its table. Each is an export of
its own, with a state, a journal and a commit of its own."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tieredstore.errors import Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.exporting.following import Behind, Totals
from tieredstore.jobs.exporting.request import ExportRequest, Format
from tieredstore.jobs.stopping import Stopped
from tieredstore.scan.catalogue import TierCatalogue

PLACE = "{topic}"
JobReport = dict[str, Any]
_TABLE_FIELDS = ("target", "export", "sequence", "commit", "rows", "files", "file_bytes")


def is_per_topic(request: ExportRequest) -> bool:
    """Tell whether each topic has a target of its own. Raises Invalid for a folder that tells them
    apart where the table does not."""
    in_table, in_folder = (PLACE in (text or "") for text in (request.table, request.to))
    if request.format is Format.ICEBERG and in_folder and not in_table:
        raise Invalid(f"{request.target}: {PLACE} in the folder needs {PLACE} in the table's name")
    return in_table or in_folder


def split_by_topic(request: ExportRequest, catalogue: TierCatalogue) -> dict[str, ExportRequest]:
    """Return the export of each topic that is chosen, by topic. Raises Invalid for two topics of
    one name, and for chosen topics that are not there."""
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
    """Return the topic in names of folders and tables: letters, digits, `_` and `-` stay, another
    character becomes `_` and its number in hex, such as `_25` for `%`."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"_{ord(found[0]):02X}", topic)


def export_each(
    requests: dict[str, ExportRequest],
    export_one: Callable[[ExportRequest], JobReport],
    target: str,
    *,
    keeps_part: bool,
) -> JobReport:
    """Export topic by topic, and return one report, with a row for each in `tables`. A topic that
    fails stops no other; the first error is raised at the end, one that another run mends last.
    keeps_part: return the report of what was committed where Stopped ended it between two."""
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
    """Sum up what the targets lack."""
    found = [measure(request) for request in requests.values()]
    return Behind(
        sum(one.messages for one in found), max((one.seconds for one in found), default=0.0)
    )


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
