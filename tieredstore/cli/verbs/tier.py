"""Verbs that change a tier by hand: adopt, delete, expire, reset, skip."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.lazy import VerbGroup
from tieredstore.cli.logs.choice import say
from tieredstore.cli.options.collecting import Command, number, path, switch, value
from tieredstore.cli.options.output import output_option, yes_option
from tieredstore.cli.options.tier import PLACE, TierOptions, take_over_option, tier_options
from tieredstore.cli.output.rows import USAGE_TABLE, Output, Tables

OPERATION_TABLES: Tables = {
    "queues": ("topic", "queue_id", "segments", "objects", "bytes", "messages"),
    "problems": ("path", "problem"),
    **USAGE_TABLE,
}
queue_option = number("--queue", 0, None, "Only this queue.", name="queue_id", metavar="Q")


def operating_options(command: Command) -> Command:
    """Add the tier options, --yes, --take-over and --output."""
    options: list[Callable[[Command], Command]] = [
        tier_options(
            state="The state directory of the tier's writer, or a broker's storePathRootDir.",
            needs_state=True,
            broker="Broker name (brokerName): a state is one's.",
        ),
        yes_option,
        take_over_option,
        output_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def show(report: dict[str, object], out: Output, tables: Tables = OPERATION_TABLES) -> int:
    """Print a report, with a note if nothing was changed. Returns the exit code."""
    out.record(report, tables)
    if not report["done"]:
        say("nothing was changed, pass --yes to do it")
    return int(ExitCode.DAMAGE if report["problems"] else ExitCode.OK)


@click.group("tier", cls=VerbGroup)
def tier() -> None:
    """Administer a tier by hand: delete, expire, skip, reset.

    Without --yes, each verb only shows its effect in objects, bytes and money. With --yes, the
    broker and every `offload` to the tier must be stopped.
    """


ADOPT_TABLES = {"queues": ("topic", "queue_id", "end_offset"), "problems": ("path", "problem")}


@tier.command("adopt", short_help="Continue at the tier's offsets after a lost disk.")
@value("--tier", "URL", f"Where the tier is: {PLACE}.", required=True)
@path(
    "--state",
    "DIR",
    "The broker's storePathRootDir, new but for the tier's metadata.",
    required=True,
)
@path("--config", "FILE", "The broker's broker.conf.", required=True)
@value("--cluster", "NAME", "Cluster name (brokerClusterName).")
@value("--broker", "NAME", "Broker name (brokerName).")
@yes_option
@output_option
def adopt(
    tier: str,
    state: Path,
    config: Path,
    cluster: str | None,
    broker: str | None,
    yes: bool,
    out: Output,
) -> int:
    """Let a broker whose disk was lost continue at the tier's offsets.

    Writes the first file of its commit log, after all bytes that this broker ever wrote. A start
    with tieredStoreAdopt=true does the same.
    """
    from tieredstore.cli.composition import check_target
    from tieredstore.jobs.operating.adopt import adopt_tier

    check_target(TierOptions(tier))
    report = adopt_tier(tier, state, config, cluster=cluster, broker=broker, yes=yes)
    return show(report, out, ADOPT_TABLES)


@tier.command("delete", short_help="Delete a topic from the tier.")
@click.argument("topic")
@operating_options
def delete(topic: str, tier: TierOptions, out: Output, **options: Any) -> int:
    """Delete TOPIC from the tier, including parts that cannot be opened.

    For a topic that is no longer uploaded. A topic in the local store is refused. `topic delete`
    deletes a topic in a running broker and in its tier. `tier reset` empties queues.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.jobs.operating.delete import delete_topic

    return show(delete_topic(locate_tier(tier), topic, **options), out)


@tier.command("expire", short_help="Delete segments older than a time.")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1)
@switch("--all-topics", "All topics of the broker.")
@queue_option
@value("--before", "TIME", "Stored before this time.", required=True)
@operating_options
def expire(
    topics: tuple[str, ...],
    all_topics: bool,
    queue_id: int | None,
    before: str,
    tier: TierOptions,
    out: Output,
    **options: Any,
) -> int:
    """Delete the segments of TOPICs whose newest message was stored before a time.

    Whole segments are deleted, oldest first. Offsets continue, also if nothing is left. The given
    time overrides the retention.
    """
    if all_topics == bool(topics):
        raise click.UsageError("name the topics, or give --all-topics")
    if queue_id is not None and len(topics) != 1:
        raise click.UsageError("--queue needs one TOPIC")
    from tieredstore.cli.composition import locate_tier
    from tieredstore.clock import SYSTEM_CLOCK
    from tieredstore.jobs.operating.expire import expire_queues
    from tieredstore.scan.times import parse_time

    before_ms = parse_time(before, SYSTEM_CLOCK.now_ms())
    report = expire_queues(locate_tier(tier), topics, before_ms, queue_id=queue_id, **options)
    return show(report, out)


@tier.command("reset", short_help="Empty queues, and continue at any offset.")
@click.argument("topic")
@queue_option
@number(
    "--to",
    0,
    None,
    "Queue offset at which it continues. Default: its end. Needs --queue.",
    name="to_offset",
)
@operating_options
def reset(topic: str, tier: TierOptions, out: Output, **options: Any) -> int:
    """Empty the queues of TOPIC in the tier, or one of them, even if they are unreadable.

    They continue at their ends. With --to a queue continues at that offset, and the messages of the
    local store from there on are uploaded again.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.jobs.operating.moving import reset_queues

    return show(reset_queues(locate_tier(tier), topic, **options), out)


@tier.command(
    "skip", short_help="Continue a queue at a later offset, without the messages between."
)
@click.argument("topic")
@number("--queue", 0, None, "The queue.", name="queue_id", metavar="Q", required=True)
@number(
    "--to",
    0,
    None,
    "Queue offset of the first message that is uploaded again.",
    name="to_offset",
    required=True,
)
@operating_options
def skip(topic: str, tier: TierOptions, out: Output, **options: Any) -> int:
    """Let a queue of TOPIC continue at a later offset.

    Messages between its end and that offset are never uploaded. Readers pass them as a hole. Use
    this verb for messages that cannot be read in the local store, or that should not be kept. The
    offset must not be after the local store's end: the upload of that queue would wait for it.
    """
    from tieredstore.cli.composition import locate_tier
    from tieredstore.jobs.operating.moving import skip_messages

    return show(skip_messages(locate_tier(tier), topic, **options), out)
