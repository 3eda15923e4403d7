"""`tieredstore tier expire`."""

from __future__ import annotations

import click

from tieredstore.cli.options.operating import operating_options, queue_option, show
from tieredstore.cli.options.tier import TierOptions
from tieredstore.cli.output.rows import Output


@click.command("expire")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@click.option("--all-topics", is_flag=True, help="All topics of the broker.")
@queue_option
@click.option("--before", metavar="TIME", required=True, help="What was stored before this time.")
@operating_options
def command(
    topics: tuple[str, ...],
    all_topics: bool,
    queue_id: int | None,
    before: str,
    tier: TierOptions,
    yes: bool,
    take_over: bool,
    out: Output,
) -> int:
    """Delete the segments of TOPICs whose newest message was stored before a time.

    Segments go whole, the oldest first; offsets go on where they are, also when nothing is left.
    Retention says what goes by itself; this goes by the given time alone.
    """
    if all_topics == bool(topics):
        raise click.UsageError("name the topics, or give --all-topics")
    if queue_id is not None and len(topics) != 1:
        raise click.UsageError("--queue needs one TOPIC")
    from tieredstore.cli.composition import locate_tier
    from tieredstore.clock import SYSTEM_CLOCK
    from tieredstore.jobs.operating import expire_queues
    from tieredstore.scan.times import parse_time

    before_ms = parse_time(before, SYSTEM_CLOCK.now_ms())
    report = expire_queues(
        locate_tier(tier),
        topics,
        before_ms,
        queue_id=queue_id,
        yes=yes,
        take_over=take_over,
    )
    return show(report, out)
