"""`tieredstore copy`: move a tier from one provider to another."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tieredstore.cli.exits import ExitCode, end_of_run
from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.job import JobOptions, thread_keywords, thread_options
from tieredstore.cli.options.messages import topics_option
from tieredstore.cli.options.output import dry_run_option, output_option
from tieredstore.cli.options.tier import TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import STAGES_TABLE, Tables

if TYPE_CHECKING:
    from tieredstore.errors import TieredStoreError

PLAN: Tables = {
    "plan": ("path", "copy_bytes", "there_bytes", "segments", "deletes_bytes", "conflict")
}


@click.command("copy")
@tier_options(
    "origin",
    flag="from",
    tier="The tier to copy.",
    state="The origin's state directory; without it, the tier alone is listed.",
    config="A broker.conf for the origin.",
    cluster="Cluster name; the same in both.",
    broker="Broker name; the same in both.",
)
@tier_options(
    "target",
    flag="to",
    tier="Where to: another tier.",
    state="Keeps what the target holds: its state directory, or a broker's storePathRootDir.",
    needs_state=True,
    config="A broker.conf for the target.",
    cluster=None,
    broker=None,
)
@topics_option
@thread_options(
    type=click.IntRange(1, 64), default=4, show_default=True, help="Queues copied at a time."
)
@dry_run_option
@click.option(
    "--force",
    is_flag=True,
    help="Replace what the target holds and the origin does not; a dry run without --yes.",
)
@click.option("--yes", is_flag=True, help="Let --force delete.")
@take_over_option
@output_option
def command(
    origin: TierOptions,
    target: TierOptions,
    topics: list[str],
    job: JobOptions,
    dry_run: bool,
    force: bool,
    yes: bool,
    take_over: bool,
    out: Output,
) -> int:
    """Copy a broker's part of a tier to another place: segments, metadata, index.

    Never writes in the origin; a broker may be writing there. Copies only what the target lacks,
    and reads back what it wrote. Interrupted anywhere, it can be run again.
    """
    from tieredstore import jobs
    from tieredstore.cli.composition import locate_tier

    failures: list[TieredStoreError] = []
    only_plan = dry_run or (force and not yes)
    found = locate_tier(origin)
    with thread_keywords("copy", job, only_plan=only_plan) as how:
        report = jobs.copy(
            found,
            target.tier,
            to_state=target.required_state,
            to_config=target.config,
            topics=topics,
            replace=force,
            dry_run=only_plan,
            take_over=take_over,
            on_failure=failures.append,
            **how,
        )
    job.write_report(report)
    if only_plan:
        out.record(report, STAGES_TABLE | PLAN)
        if not dry_run:
            say("nothing was changed; add --yes to do this")
        return int(ExitCode.OK)
    for line in (*report["damage"], *report["notes"]):
        say(line, "warning")
    out.record(report, STAGES_TABLE)
    code = end_of_run(stopped=report["stopped"], received=job.received, failures=failures)
    return int(ExitCode.DAMAGE if report["damage"] and code is ExitCode.OK else code)
