"""Verbs that check a tier, or a backend for a tier: health, damage, content, safety."""

from __future__ import annotations

import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.options.collecting import number, path, switch, value
from tieredstore.cli.options.job import JobOptions, job_options, run_task, task_keywords
from tieredstore.cli.options.messages import topic_option
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.prices import TIER_PRICES, price_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import STAGES_TABLE, USAGE_TABLE, Output, OutputFormat
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.contracts.probing import ProbeResult
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.findings import Finding


PROBE_COLUMNS = ("probe", "verdict", "found")


@click.command("doctor")
@tier_options(
    has_defaults=True,
    tier="Where a tier is, or is to be.",
    state=None,
    config="A broker.conf: credentials and settings of the backend.",
    cluster=None,
    broker=None,
)
@number("--racers", 2, 64, "Writers that race to make one object.", default=16)
@number("--rounds", 1, 100, "Races.", default=5)
@switch("--no-throughput", "Leave the requests of 8 MiB out.")
@output_option
def doctor(tier: TierOptions, racers: int, rounds: int, no_throughput: bool, out: Output) -> int:
    """Check that a storage backend is safe to use, in a temporary folder of its own.

    Never creates a bucket. Exit code 7 if writing there is unsafe.
    """
    from tieredstore import registry
    from tieredstore.cli.composition import check_target
    from tieredstore.contracts.probing import Probed, ProbeOptions, Verdict
    from tieredstore.contracts.wrapping import find_layer
    from tieredstore.scan.location import load_config, place_tier
    from tieredstore.tier_url import as_url

    check_target(tier)
    config = place_tier(
        load_config(tier.config, properties=tier.properties).config, as_url(tier.tier), state=None
    )
    provider: SegmentProvider = registry.segment_provider(config)
    url = provider.url
    with closing(provider):
        probed = find_layer(provider, Probed)
        if probed is None:
            raise Invalid(f"{url}: this provider has no probes")
        options = ProbeOptions(racers, rounds)
        if no_throughput:
            options = ProbeOptions(racers, rounds, large_bytes=0)
        results = list(probed.probes(options))
    unsafe = [result for result in results if result.verdict is Verdict.UNSAFE]
    _print_probes(out, url, results, is_safe=not unsafe)
    return int(ExitCode.UNSAFE if unsafe else ExitCode.OK)


def _print_probes(out: Output, url: str, results: list[ProbeResult], *, is_safe: bool) -> None:
    rows = [
        {
            "probe": result.name,
            "verdict": result.verdict.value,
            "found": result.found,
            "meaning": result.meaning,
        }
        for result in results
    ]
    match out.format:
        case OutputFormat.JSON:
            out.record({"tier": url, "safe": is_safe, "probes": rows})
        case OutputFormat.NDJSON:
            out.rows(PROBE_COLUMNS, rows)
        case OutputFormat.TABLE:
            out.rows(PROBE_COLUMNS, rows)
            out.line("")
            for result in results:
                if result.meaning:
                    out.line(f"{result.verdict.value}: {result.name}: {result.meaning}")
            safe = "it is safe to write there" if is_safe else "it is NOT safe to write there"
            out.line(f"{url}: {safe}")
            out.flush()


@click.command("health")
@tier_options(
    state="The state directory of the tier's writer, or a broker's storePathRootDir.",
    needs_state=True,
    has_defaults=True,
)
@value("--max-age", "TIME", "The newest message is younger than this: 30s, 10m, 2h, 1d.")
@switch("--needs-writer", "A process of this machine writes to the tier.")
@switch("--list", "Compare the metadata with what the tier has.", name="lists")
@output_option
def health(
    tier: TierOptions, max_age: str | None, needs_writer: bool, lists: bool, out: Output
) -> int:
    """Report tier health. The exit code is for probes.

    Reads the state directory, and sends few requests to the tier. Writes nothing. A broker reports
    its own health under /health.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.jobs.operating.health import Health, check_health

    report = check_health(
        locate_tier(tier),
        max_age_ms=None if max_age is None else _parse_age(max_age),
        needs_writer=needs_writer,
        lists=lists,
    )
    out.record(report, USAGE_TABLE)
    codes = {
        Health.UP: ExitCode.OK,
        Health.DEGRADED: ExitCode.DEGRADED,
        Health.DAMAGED: ExitCode.DAMAGE,
    }
    return int(codes[Health(str(report["status"]))])


def _parse_age(text: str) -> int:
    """Convert a duration such as `30s`, `10m`, `2h` or `1d` to milliseconds."""
    from tieredstore.errors import Invalid
    from tieredstore.scan.times import parse_time

    try:
        return -parse_time(f"-{text.strip()}", 0)
    except Invalid:
        raise click.UsageError(
            f"--max-age {text!r}: expected a time such as 30s, 10m, 2h or 1d"
        ) from None


@click.command("report")
@tier_options(has_defaults=True)
@path(
    "--to",
    "DIR",
    "Folder for report.html and the tables. An earlier report is replaced.",
    required=True,
)
@number(
    "--sample",
    1,
    100,
    "Read the records of so many of a hundred blocks of messages, for keys and tags.",
    metavar="PERCENT",
    default=100,
)
@switch("--no-keys", "Read no records: sizes, ages and costs without keys and tags.")
@price_option(TIER_PRICES)
@value("--as-of", "TIME", "Tell ages from then instead of from now.")
@output_option
@job_options
def report(
    tier: TierOptions,
    to: Path,
    sample: int,
    no_keys: bool,
    out: Output,
    job: JobOptions,
    **options: object,
) -> None:
    """Report sizes, ages, key skew, fragmentation and cost of a tier by topic and queue.

    Writes a page with plots and Parquet tables. Prints the totals.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    options["keys_percent"] = 0 if no_keys else sample
    run_task("report", job, out, STAGES_TABLE, jobs.report, locate_tier(tier), to, **options)


_SUMMARY = (
    "tier",
    "queues",
    "messages",
    "message_bytes",
    "segments",
    "index_items",
    "uncovered_bytes",
    "damage",
    "notes",
    "seconds",
)


@click.command("verify")
@tier_options(has_defaults=True)
@topic_option(help="Only this topic (the index is left out).")
@number("--queue", 0, None, "Only this queue.", metavar="Q")
@switch("--no-index", "Leave the index segments out.")
@switch(
    "--seal",
    "Give checksums and recorded times to segments that have none (Java's) and are not "
    "damaged. No writer may be at work.",
)
@job_options
@output_option
def verify(tier: TierOptions, no_index: bool, job: JobOptions, out: Output, **options: Any) -> int:
    """Check sizes, magics, body CRCs, consume queues against commit logs, index and metadata.

    Continues after damage and reports all of it. Exit code 1 if there is any.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    location = locate_tier(tier)

    def tell(finding: Finding) -> None:
        match out.format:
            case OutputFormat.TABLE:
                out.line(f"{finding.severity.value}: {finding.kind}: {finding}")
            case OutputFormat.NDJSON:
                out.record({"record": "finding", **finding.row()})
            case OutputFormat.JSON:
                pass  # the report has them

    quiet = replace(job, quiet=job.quiet or not sys.stderr.isatty())
    with task_keywords("verify", quiet, has_journal=job.work is not None) as how:
        report = jobs.verify(location, index=not no_index, on_finding=tell, **options, **how)
    job.write_report(report)
    summary = {name: report[name] for name in _SUMMARY}
    sealed = report.get("sealed")
    if isinstance(sealed, dict):
        summary |= {f"sealed_{name}": count for name, count in sealed.items()}
    match out.format:
        case OutputFormat.TABLE:
            out.record(summary)
        case OutputFormat.NDJSON:
            out.record({"record": "summary", **summary})
        case OutputFormat.JSON:
            out.record(report)
    return int(ExitCode.DAMAGE if report["damage"] else ExitCode.OK)
