"""The job: a tier is listed once, looked at in tasks, and written as a page and tables."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tieredstore.contracts.usage import MeteredProvider, Prices
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.errors import NO_FOLDER, wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Invalid
from tieredstore.jobs.reporting.facts import Facts
from tieredstore.jobs.reporting.page.render import page
from tieredstore.jobs.reporting.summary import Summary, summarise
from tieredstore.jobs.reporting.tables import tables
from tieredstore.jobs.reporting.tasks import ReportTask, look, queue_name
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue, load_catalogue
from tieredstore.scan.findings import Severity
from tieredstore.scan.intervals import subtract_intervals
from tieredstore.scan.location import TierLocation
from tieredstore.scan.plan import ScanRange
from tieredstore.tier_url import show_url

PAGE = "report.html"


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """keys_percent: of how many of a hundred blocks of 2,048 messages the records are read, for
    keys, tags and their distribution; with 0 the consume queues alone are. prices: by field of
    `Prices`, those that differ from the configured ones of a tier that is paid by the request, or
    from the defaults; without any, a tier that nobody pays for is told without costs. now_ms: epoch
    ms from which ages are told; None for the time of the first run.
    """

    keys_percent: int = 100
    prices: Mapping[str, float] = field(default_factory=dict)
    now_ms: int | None = None


@dataclass(slots=True)
class Pin:
    """What later runs of the same job go by: the time, and by queue the offset where it ended."""

    now_ms: int
    ends: dict[str, int] = field(default_factory=dict)


def run_report(
    run: JobRun, location: TierLocation, to: Path, options: ReportOptions | None = None
) -> dict[str, object]:
    """Write `report.html` and Parquet tables into the folder `to`, which is made where it is
    missing; files of an earlier report are replaced, each at once or not at all.

    Gives the JSON report: totals and file names. Raises Invalid, Unavailable; Corrupt only
    where the metadata does not parse: damage in the tier is counted.
    """
    given = options or ReportOptions()
    if not 0 <= given.keys_percent <= 100:
        raise Invalid(f"keys percent: expected 0 to 100, found {given.keys_percent}")
    provider = location.connect()
    metadata = location.metadata()
    try:
        catalogue = load_catalogue(provider, metadata, broker=location.broker)
        catalogue.require_own_state()
        metered = find_layer(provider, MeteredProvider)
        # A tier in files costs no requests; what it would cost elsewhere is told on request.
        prices = (
            replace(metered.prices if metered is not None else Prices(), **given.prices)
            if metered is not None or given.prices
            else None
        )
    finally:
        provider.close()
        if metadata is not None:
            metadata.close()
    pin = run.do_once("pin", partial(_pin, catalogue, given.now_ms), Pin)
    tasks = list(_tasks(location, catalogue, pin, given.keys_percent))
    facts = Facts()
    for found in run.map("look", look, tasks, Facts):
        facts.merge(found)
    for finding in catalogue.findings:
        if finding.severity is Severity.DAMAGE:
            facts.add_finding(str(finding.to_error()))
    summary = summarise(catalogue, facts, pin.now_ms, location.config, prices)
    files = run.do_once(
        "commit",
        partial(_write, to, location, summary, facts, pin.now_ms, given.keys_percent, prices),
        list[str],
    )
    return run.report(
        {
            "tier": show_url(location.url),
            "to": str(to),
            "files": files,
            "keys_percent": given.keys_percent,
            **summary.totals,
            "damage_met": facts.texts,
        }
    )


def _pin(catalogue: TierCatalogue, now_ms: int | None) -> Pin:
    return Pin(
        int(time.time() * 1000) if now_ms is None else now_ms,
        {queue_name(queue): _end_of(queue) for queue in catalogue.queues},
    )


def _end_of(queue: QueueFiles) -> int:
    return max(queue.consume_queue_max_offset, queue.recorded_end)


def _tasks(
    location: TierLocation, catalogue: TierCatalogue, pin: Pin, keys_percent: int
) -> Iterator[ReportTask]:
    ranges = (
        found
        for queue in catalogue.queues
        for found in _ranges(queue, pin.ends.get(queue_name(queue), 0), keys_percent)
    )
    for group in gather_groups(ranges, lambda found: found.size_bytes, TASK_BYTES):
        yield ReportTask(location, group, pin.now_ms, keys_percent)


def _ranges(queue: QueueFiles, until: int, keys_percent: int) -> Iterator[ScanRange]:
    """A queue in pieces of about TASK_BYTES to read, and what is missing between them, told from
    the listing alone: nothing is read while planning, for there may be very many queues."""
    spans = [(low, min(high, until)) for low, high in queue.unit_spans() if low < until]
    messages = sum(high - low for low, high in spans)
    log_bytes = sum(extent.size_bytes for extent in queue.commit_log)
    for low, high in spans:
        share = (high - low) / messages
        to_read = (high - low) * UNIT_SIZE + int(log_bytes * share * keys_percent / 100)
        step = -(-(high - low) // max(-(-to_read // TASK_BYTES), 1))
        for first in range(low, high, step):
            last = min(first + step, high)
            size = to_read * (last - first) // (high - low)
            yield ScanRange(queue, first, last, size)
    if spans or queue.recorded_end:
        start = min([*(low for low, _ in spans), *(low for low, _ in queue.lost_units())])
        for low, high in subtract_intervals(start, until, spans):
            yield ScanRange(queue, low, high, 0)


def _write(
    to: Path,
    location: TierLocation,
    summary: Summary,
    facts: Facts,
    now_ms: int,
    keys_percent: int,
    prices: Prices | None,
) -> list[str]:
    """The page comes last: where it is new, so are the tables."""
    with wrap_os_errors("create", to, invalid=NO_FOLDER):
        to.mkdir(parents=True, exist_ok=True)
    files = {
        **tables(summary),
        PAGE: page(summary, show_url(location.url), now_ms, keys_percent, prices, facts),
    }
    for name, content in files.items():
        with wrap_os_errors("write", to / name):
            FILES.replace_file(to / name, content)
    return list(files)
