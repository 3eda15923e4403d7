"""`tieredstore cat`: messages of topics, oldest offset first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.exits import ExitCode, note_store
from tieredstore.cli.logs.choice import say
from tieredstore.cli.messages.choice import (
    MessageChoice,
    MessageRequest,
    choose_queues,
    names_one_topic,
)
from tieredstore.cli.messages.rows import MESSAGE_COLUMNS, MOST_MESSAGES, last_rows, message_rows
from tieredstore.cli.options import messages
from tieredstore.cli.options.collecting import number, path, switch, value
from tieredstore.cli.options.output import message_output_options
from tieredstore.cli.options.tier import TierOptions, make_missing_option, tier_options
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.scan.times import parse_span, parse_time, require_offsets, require_order

if TYPE_CHECKING:
    from tieredstore.cli.messages.following import Feed, Row
    from tieredstore.cli.messages.where import WhereFilter
    from tieredstore.cli.output.messages import MessageOutput
    from tieredstore.errors import Corrupt


_STORE_EVERY_MS = 1_000
_TIER_EVERY_MS = 5_000


@click.command("cat")
@tier_options(has_defaults=True, needs_tier=False)
@path(
    "--store",
    "DIR",
    "In place of a tier: a broker's store (storePathRootDir), which may be in use.",
)
@messages.required_topics_option
@number("--queue", 0, None, "Only this queue.", metavar="Q")
@number("--from-offset", 0, None, "First queue offset.")
@number("--until-offset", 0, None, "Queue offset behind the last.")
@messages.time_options
@messages.search_times_option
@messages.tag_option()
@value(
    "--where",
    "EXPRESSION",
    "Only messages for which it is true: \"keys = 'k' AND body CONTAINS 'paid'\".",
)
@number("--limit", 0, messages.MOST_LIMIT, "At most so many messages.")
@number("--tail", 1, MOST_MESSAGES, "The N stored last, in all.")
@switch("--reverse", "Newest first: each queue from its end.")
@switch("--follow", "Print new messages as they arrive, until SIGINT or SIGTERM.")
@value("--every", "TIME", "With --follow: look this often. [default: 5s, 1s for a store]")
@messages.on_damage_option
@message_output_options
def cat(
    tier: TierOptions,
    store: Path | None,
    topics: list[str],
    queue: int | None,
    from_offset: int | None,
    until_offset: int | None,
    since: str | None,
    until: str | None,
    search_times: str,
    tag: str | None,
    where: str | None,
    limit: int | None,
    tail: int | None,
    reverse: bool,
    follow: bool,
    every: str | None,
    on_damage: str,
    out: MessageOutput,
) -> int:
    """Print messages of topics, queue by queue, in the order of their offsets.

    Prints the messages in front of the first damage, then ends with an error. A damaged message is
    never printed.
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
    from tieredstore.scan.findings import LeftOut, OnDamage, make_on_finding
    from tieredstore.scan.plan import ScanBounds
    from tieredstore.scan.time_search.modes import parse_search_times

    now = SYSTEM_CLOCK.now_ms()
    since_ms = None if since is None else parse_time(since, now)
    until_ms = None if until is None else parse_time(until, now)
    require_order(since_ms, until_ms)
    require_offsets(from_offset, until_offset)
    every_ms = _TIER_EVERY_MS if store is None else _STORE_EVERY_MS
    if every is not None:
        every_ms = parse_span(every, "--every")
    columns = MESSAGE_COLUMNS if names_one_topic(topics) else ("topic", *MESSAGE_COLUMNS)
    left_out = LeftOut()
    how = parse_search_times(search_times)
    request = MessageRequest(
        topics,
        queue,
        ScanBounds(from_offset, until_offset, since_ms, until_ms, search_times=how),
        MessageChoice(parse_tags(tag), _parse_where(where)),
        out.body,
        out.fields(columns),
        make_on_finding(OnDamage(on_damage), left_out),
    )
    feed: Feed | None = None
    with ExitStack() as stack:
        if follow or store is not None:
            feed = stack.enter_context(_open_feed(tier, store, request))
        if follow and feed is not None:
            rows = stack.enter_context(_follow(feed, tail, every_ms))
        elif feed is None:
            rows = stack.enter_context(_read_tier(tier, request, tail, reverse=reverse))
        elif tail is None:
            rows = feed.read_next()
        else:
            last = feed.read_last(tail)
            rows = _raise_behind(reversed(last) if reverse else last, feed.failure)
        found = out.write(columns, islice(rows, limit), is_live=follow)
    if not found and limit != 0:
        say(f"{_name(topics)} no such message{request.choice.explain_nothing()}")
    ended = messages.end_with(left_out)
    return int(ExitCode.DAMAGE if feed is not None and feed.lacks_messages else ended)


@contextmanager
def _read_tier(
    tier: TierOptions, request: MessageRequest, tail: int | None, *, reverse: bool
) -> Iterator[Iterable[Row]]:
    from tieredstore.cli.composition import open_tier
    from tieredstore.scan.plan import plan

    with open_tier(tier) as opened:
        provider = opened.provider
        queues = choose_queues(opened.catalogue(), request.topics, request.queue_id, opened.broker)
        if tail is not None:
            last, failure = last_rows(provider, queues, request, tail)
            yield _raise_behind(reversed(last) if reverse else last, failure)
            return
        rows = message_rows(
            provider,
            plan(provider, queues, request.bounds),
            request.choice,
            request.body,
            request.names,
            request.on_finding,
            reverse=reverse,
        )
        with closing(rows):
            yield rows


def _raise_behind(rows: Iterable[Row], failure: Corrupt | None) -> Iterator[Row]:
    yield from rows
    if failure is not None:
        raise failure


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
    note_store(store)
    reader = open_read_only(store, config)
    try:
        yield StoreFeed(reader, request, tier.broker or (config.broker_name if config else ""))
    finally:
        reader.shutdown()


@contextmanager
def _follow(feed: Feed, tail: int | None, every_ms: int) -> Iterator[Iterable[Row]]:
    """Yield the rows of new messages until a signal stops the verb cleanly. With `tail`, the last
    messages come first."""
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
