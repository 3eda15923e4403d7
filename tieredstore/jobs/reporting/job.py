"""Report job: list a tier once, examine it in tasks, and write a page and tables."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.usage import MeteredProvider, Prices
from tieredstore.contracts.wrapping import find_layer
from tieredstore.disk.errors import NO_FOLDER, wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Invalid
from tieredstore.jobs.options import ReportOptions
from tieredstore.jobs.reporting.facts import Facts
from tieredstore.jobs.reporting.page.render import page
from tieredstore.jobs.reporting.summary import Summary, summarise
from tieredstore.jobs.reporting.tables import tables
from tieredstore.jobs.reporting.tasks import ReportTask, look, queue_name
from tieredstore.jobs.run import TASK_BYTES, JobRun, gather_groups
from tieredstore.message.consume_queue import UNIT_SIZE
from tieredstore.scan.catalogue import QueueFiles, TierCatalogue, subtract_intervals
from tieredstore.scan.findings import Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.location import TierLocation
from tieredstore.scan.opening import open_location
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.times import Time, epoch_ms
from tieredstore.tier_url import show_url

PAGE = "report.html"


@dataclass(slots=True)
class Pin:
    """Input of a job, which stays the same when the job is continued. `now_ms`: time of the report.
    `ends`: end offset of each queue."""

    now_ms: int
    ends: dict[str, int] = field(default_factory=dict)


def run_report(
    run: JobRun, location: TierLocation, to: Path, options: ReportOptions | None = None
) -> dict[str, object]:
    """Write `report.html` and Parquet tables into the folder `to`, which is created if it is
    missing. Files of an earlier report are replaced, each atomically. Returns the JSON report:
    totals and file names. Damage in the tier is counted. Raises Invalid, Unavailable, and Corrupt
    only if the metadata cannot be parsed."""
    given = options or ReportOptions()
    if not 0 <= given.keys_percent <= 100:
        raise Invalid(f"keys percent: expected 0 to 100, found {given.keys_percent}")
    with open_location(location) as tier:
        catalogue = load_catalogue(tier.provider, tier.metadata, broker=tier.broker)
        catalogue.require_own_state()
        metered = find_layer(tier.provider, MeteredProvider)
        # A tier in files has no request costs. The costs on an object store are shown on request.
        prices = (
            replace(metered.prices if metered is not None else Prices(), **(given.prices or {}))
            if metered is not None or given.prices
            else None
        )
    pin = run.do_once("pin", partial(_pin, catalogue, given.as_of), Pin)
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


def _pin(catalogue: TierCatalogue, as_of: Time | None) -> Pin:
    now_ms = SYSTEM_CLOCK.now_ms()
    as_of_ms = epoch_ms(as_of, now_ms)
    return Pin(
        now_ms if as_of_ms is None else as_of_ms,
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
    """Divide a queue into ranges of about TASK_BYTES to read, and ranges of messages that no
    segment has. This needs only the listing, because a tier may have very many queues."""
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
    """Write the tables and then the page, so that a new page never has old tables."""
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
