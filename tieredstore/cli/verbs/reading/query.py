"""`tieredstore query`: messages by key or message id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.logs.saying import say
from tieredstore.cli.messages.rows import MESSAGE_COLUMNS
from tieredstore.cli.options.messages import time_options, topic_option
from tieredstore.cli.options.output import message_output_options
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.scan.times import parse_time, require_order

if TYPE_CHECKING:
    from tieredstore.cli.output.messages import MessageOutput
    from tieredstore.scan.findings import Finding


@click.command("query")
@tier_options(has_defaults=True)
@topic_option(help="The topic (needed with --key).")
@click.option("--queue", metavar="Q", type=click.IntRange(min=0), help="Only this queue.")
@click.option("--key", metavar="K", help="One of the message's KEYS, or its UNIQ_KEY.")
@click.option("--msg-id", metavar="ID", help="UNIQ_KEY, or offset message id as `cat` prints it.")
@time_options
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1, max=100_000),
    default=64,
    show_default=True,
    help="At most so many messages.",
)
@message_output_options
def command(
    tier: TierOptions,
    topic: str | None,
    queue: int | None,
    key: str | None,
    msg_id: str | None,
    since: str | None,
    until: str | None,
    limit: int,
    out: MessageOutput,
) -> int:
    """Find messages by --topic and --key, or by --msg-id. Exit code 3 when there is none.

    With --state, index files that are not uploaded yet are asked as well.
    """
    if (key is None) == (msg_id is None):
        raise click.UsageError("give either --topic and --key, or --msg-id")
    if key is not None and topic is None:
        raise click.UsageError("--key needs --topic")
    from tieredstore.cli.composition import open_tier
    from tieredstore.scan.keys.search import FIRST_MS, LAST_MS, find_by_key, find_by_message_id
    from tieredstore.scan.rows import message_row

    now = SYSTEM_CLOCK.now_ms()
    since_ms = FIRST_MS if since is None else parse_time(since, now)
    until_ms = LAST_MS if until is None else parse_time(until, now)
    require_order(since_ms, until_ms)
    with open_tier(tier) as opened:
        catalogue = opened.catalogue()
        queues = catalogue.select(topic, queue, opened.broker)
        places = opened.provider, catalogue, queues
        unsealed = opened.find_unsealed_index()
        if key is not None and topic is not None:
            hits = find_by_key(
                *places,
                topic,
                key,
                since_ms=since_ms,
                until_ms=until_ms,
                limit=limit,
                unsealed=unsealed,
                on_finding=_warn,
            )
        else:
            hits = find_by_message_id(
                *places, msg_id or "", limit=limit, unsealed=unsealed, on_finding=_warn
            )
        rows = (message_row(hit.message, hit.queue.broker, out.body) for hit in hits)
        found = out.write(MESSAGE_COLUMNS, rows)
        if found:
            return int(ExitCode.OK)
        what = f"key {key!r} in topic {topic!r}" if key is not None else f"id {msg_id!r}"
        hint = (
            "; only index files were asked; a scan with keys= finds what they lack"
            if catalogue.indexes
            else "; the tier has no index segments: `cat` finds by offset"
        )
        say(f"no message with {what}{hint}")
        return int(ExitCode.NOT_FOUND)


def _warn(finding: Finding) -> None:
    say(str(finding), "warning")
