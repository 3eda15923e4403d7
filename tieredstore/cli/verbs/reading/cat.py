"""`tieredstore cat`: messages of topics, oldest offset first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.logs.saying import say
from tieredstore.cli.messages.choice import MessageChoice, choose_queues, names_one_topic
from tieredstore.cli.messages.last import MOST_MESSAGES, last_rows
from tieredstore.cli.messages.request import MessageRequest
from tieredstore.cli.messages.rows import MESSAGE_COLUMNS, message_rows
from tieredstore.cli.options.messages import (
    MOST_LIMIT,
    required_topics_option,
    tag_option,
    time_options,
)
from tieredstore.cli.options.output import message_output_options
from tieredstore.cli.options.tier import TierOptions, make_missing_option, tier_options
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.scan.times import parse_span, parse_time, require_order

if TYPE_CHECKING:
    from tieredstore.cli.messages.following import Feed, Row
    from tieredstore.cli.messages.where import WhereFilter
    from tieredstore.cli.output.messages import MessageOutput
    from tieredstore.scan.opening import OpenTier

_STORE_EVERY_MS = 1_000
_TIER_EVERY_MS = 5_000


@click.command("cat")
@tier_options(has_defaults=True, needs_tier=False)
@click.option(
    "--store",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="In place of a tier: a broker's store (storePathRootDir), which may be in use.",
)
@required_topics_option
@click.option("--queue", metavar="Q", type=click.IntRange(min=0), help="Only this queue.")
@click.option("--from-offset", metavar="N", type=click.IntRange(min=0), help="First queue offset.")
@click.option(
    "--until-offset", metavar="N", type=click.IntRange(min=0), help="Queue offset behind the last."
)
@time_options
@tag_option()
@click.option(
    "--where",
    metavar="EXPRESSION",
    help="Only messages for which it is true: \"keys = 'k' AND body CONTAINS 'paid'\".",
)
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=0, max=MOST_LIMIT),
    help="At most so many messages.",
)
@click.option(
    "--tail", metavar="N", type=click.IntRange(1, MOST_MESSAGES), help="The N stored last, in all."
)
@click.option("--reverse", is_flag=True, help="Newest first: each queue from its end.")
@click.option("--follow", is_flag=True, help="Go on as messages come, until SIGINT or SIGTERM.")
@click.option(
    "--every",
    metavar="TIME",
    help="With --follow: look this often. [default: 5s; 1s for a store]",
)
@message_output_options
def command(
    tier: TierOptions,
    store: Path | None,
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
    follow: bool,
    every: str | None,
    out: MessageOutput,
) -> None:
    """Print messages of topics, queue by queue, in the order of their offsets.

    Stops with an error at the first message that is damaged: a damaged message is never printed.
    """
    if tail is not None and limit is not None:
        raise click.UsageError("--tail and --limit exclude each other")
    if follow and (reverse or until is not None or until_offset is not None):
        raise click.UsageError("--follow excludes --reverse, --until and --until-offset")
    if every is not None and not follow:
        raise click.UsageError("--every needs --follow")
    if store is not None and reverse and tail is None:
        raise click.UsageError("--reverse of a --store needs --tail")
    if store is None and not tier.tier:
        raise make_missing_option("tier")
    if follow:
        out.require_live()
    from tieredstore.message.tag_filter import parse_tags
    from tieredstore.scan.plan import ScanBounds

    now = SYSTEM_CLOCK.now_ms()
    since_ms = None if since is None else parse_time(since, now)
    until_ms = None if until is None else parse_time(until, now)
    require_order(since_ms, until_ms)
    every_ms = _TIER_EVERY_MS if store is None else _STORE_EVERY_MS
    if every is not None:
        every_ms = parse_span(every, "--every")
    choice = MessageChoice(parse_tags(tag), _parse_where(where))
    columns = MESSAGE_COLUMNS if names_one_topic(topics) else ("topic", *MESSAGE_COLUMNS)
    request = MessageRequest(
        topics,
        queue,
        ScanBounds(from_offset, until_offset, since_ms, until_ms),
        choice,
        out.body,
        out.fields(columns),
    )
    with ExitStack() as stack:
        if follow:
            feed = stack.enter_context(_open_feed(tier, store, request))
            rows = stack.enter_context(_follow(feed, tail, every_ms))
        elif store is not None:
            feed = stack.enter_context(_open_feed(tier, store, request))
            last = None if tail is None else feed.read_last(tail)
            rows = feed.read_next() if last is None else reversed(last) if reverse else last
        else:
            from tieredstore.cli.composition import open_tier

            opened = stack.enter_context(open_tier(tier))
            rows = stack.enter_context(_read_tier(opened, request, tail, reverse=reverse))
        rows = rows if limit is None else islice(rows, limit)
        found = out.write(columns, rows, is_live=follow)
    if not found and limit != 0:
        say(f"{_name(topics)} no such message{choice.explain_nothing()}")


@contextmanager
def _read_tier(
    opened: OpenTier, request: MessageRequest, tail: int | None, *, reverse: bool
) -> Iterator[Iterable[Row]]:
    from tieredstore.scan.plan import plan

    provider = opened.provider
    queues = choose_queues(opened.catalogue(), request.topics, request.queue_id, opened.broker)
    if tail is not None:
        last = last_rows(provider, queues, request.bounds, request.choice, request.body, tail)
        yield reversed(last) if reverse else last
        return
    ranges = plan(provider, queues, request.bounds)
    rows = message_rows(
        provider, ranges, request.choice, request.body, request.names, reverse=reverse
    )
    with closing(rows):
        yield rows


@contextmanager
def _open_feed(tier: TierOptions, store: Path | None, request: MessageRequest) -> Iterator[Feed]:
    from tieredstore.cli.messages.following import TierFeed

    if store is None:
        from tieredstore.cli.composition import open_tier

        with open_tier(tier) as opened:
            yield TierFeed(opened, request)
        return
    from tieredstore.cli.logs.lines import log_to_stderr
    from tieredstore.cli.messages.stored import StoreFeed
    from tieredstore.local.read_only import open_read_only
    from tieredstore.scan.location import load_config

    log_to_stderr()
    config = None if tier.config is None else load_config(tier.config).config
    reader = open_read_only(store, config)
    try:
        yield StoreFeed(reader, request, tier.broker or (config.broker_name if config else ""))
    finally:
        reader.shutdown()


@contextmanager
def _follow(feed: Feed, tail: int | None, every_ms: int) -> Iterator[Iterable[Row]]:
    """Signals end it in good order."""
    from tieredstore.cli.messages.following import StopFlag, follow
    from tieredstore.cli.stopping import stop_on_signals

    stop = StopFlag()
    with stop_on_signals(stop):
        last = [] if tail is None else feed.read_last(tail)
        yield chain(last, follow(feed, stop, every_ms / 1000))


def _parse_where(where: str | None) -> WhereFilter | None:
    if where is None:
        return None
    from tieredstore.cli.messages.where import WhereFilter

    return WhereFilter(where)


def _name(topics: list[str]) -> str:
    if names_one_topic(topics):
        return f"topic {topics[0]!r} has"
    return f"the topics {', '.join(topics)} have"
