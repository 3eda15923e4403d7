"""`tieredstore cat`: messages of a topic, oldest offset first."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import click

from tieredstore.cli.messages.choice import MessageChoice, choose_queues, names_one_topic
from tieredstore.cli.messages.last import MOST_MESSAGES, last_rows
from tieredstore.cli.messages.rows import MESSAGE_COLUMNS, message_rows
from tieredstore.cli.options.messages import required_topics_option, time_options
from tieredstore.cli.options.output import message_output_options
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.scan.times import parse_time, require_order

if TYPE_CHECKING:
    from tieredstore.cli.messages.where import WhereFilter
    from tieredstore.cli.output.messages import MessageOutput


@click.command("cat")
@tier_options(has_defaults=True)
@required_topics_option
@click.option("--queue", metavar="Q", type=click.IntRange(min=0), help="Only this queue.")
@click.option("--from-offset", metavar="N", type=click.IntRange(min=0), help="First queue offset.")
@click.option(
    "--until-offset", metavar="N", type=click.IntRange(min=0), help="Queue offset behind the last."
)
@time_options
@click.option("--tag", metavar="T", help="Only messages with this tag; `A || B`: both.")
@click.option(
    "--where",
    metavar="EXPRESSION",
    help="Only messages for which it is true: \"keys = 'k' AND body CONTAINS 'paid'\".",
)
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="At most so many messages.")
@click.option(
    "--tail", metavar="N", type=click.IntRange(1, MOST_MESSAGES), help="The N stored last, in all."
)
@click.option("--reverse", is_flag=True, help="Newest first: each queue from its end.")
@message_output_options
def command(
    tier: TierOptions,
    topics: list[str],
    queue: int | None,
    from_offset: int | None,
    until_offset: int | None,
    since: str | None,
    until: str | None,
    tag: str | None,
    where: str | None,
    limit: int | None,
    tail: int | None,
    reverse: bool,
    out: MessageOutput,
) -> None:
    """Print messages of topics, queue by queue, in the order of their offsets.

    Stops with an error at the first message that is damaged: a damaged message is never printed.
    """
    if tail is not None and limit is not None:
        raise click.UsageError("--tail and --limit exclude each other")
    from tieredstore.cli.composition import open_tier
    from tieredstore.message.tag_filter import parse_tags
    from tieredstore.scan.plan import ScanBounds, plan

    now = SYSTEM_CLOCK.now_ms()
    since_ms = None if since is None else parse_time(since, now)
    until_ms = None if until is None else parse_time(until, now)
    require_order(since_ms, until_ms)
    choice = MessageChoice(parse_tags(tag), _parse_where(where))
    columns = MESSAGE_COLUMNS if names_one_topic(topics) else ("topic", *MESSAGE_COLUMNS)
    with open_tier(tier) as opened:
        queues = choose_queues(opened.catalogue(), topics, queue, opened.broker)
        bounds = ScanBounds(from_offset, until_offset, since_ms, until_ms)
        provider = opened.provider
        if tail is not None:
            last = last_rows(provider, queues, bounds, choice, out.body, tail)
            found = out.write(columns, reversed(last) if reverse else last)
        else:
            rows = message_rows(
                provider,
                plan(provider, queues, bounds),
                choice,
                out.body,
                out.fields(columns),
                reverse=reverse,
            )
            with closing(rows):
                found = out.write(columns, rows if limit is None else islice(rows, limit))
        if not found and limit != 0:
            text = f"tieredstore: {_name(topics)} no such message{choice.explain_nothing()}"
            click.echo(text, err=True)


def _parse_where(where: str | None) -> WhereFilter | None:
    if where is None:
        return None
    from tieredstore.cli.messages.where import WhereFilter

    return WhereFilter(where)


def _name(topics: list[str]) -> str:
    if names_one_topic(topics):
        return f"topic {topics[0]!r} has"
    return f"the topics {', '.join(topics)} have"
