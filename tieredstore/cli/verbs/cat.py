"""`tieredstore cat`: messages of a topic, oldest offset first."""

from __future__ import annotations

from contextlib import closing
from itertools import islice
from typing import TYPE_CHECKING

import click

from tieredstore.cli.options.messages import time_options, topic_option
from tieredstore.cli.options.output import body_option, output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.scan.times import parse_time, require_order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.plan import ScanRange
    from tieredstore.scan.read.batch import MessageBatch
    from tieredstore.scan.rows import BodyForm

    RowsOf = Callable[[MessageBatch, BodyForm, tuple[str, ...]], Iterator[dict[str, object]]]

MESSAGE_COLUMNS = ("queue_id", "queue_offset", "store_timestamp", "tags", "keys", "msg_id", "body")
"""What a table shows; JSON has every field."""
_FEW = 4096
"""Messages for which pyarrow is not worth its import."""


@click.command("cat")
@tier_options()
@topic_option(required=True, help="The topic.")
@click.option("--queue", metavar="Q", type=click.IntRange(min=0), help="Only this queue.")
@click.option("--from-offset", metavar="N", type=click.IntRange(min=0), help="First queue offset.")
@click.option(
    "--until-offset", metavar="N", type=click.IntRange(min=0), help="Queue offset behind the last."
)
@time_options
@click.option("--tag", metavar="T", help="Only messages with this tag.")
@click.option("--limit", metavar="N", type=click.IntRange(min=0), help="At most so many messages.")
@body_option
@output_option
def command(
    tier: TierOptions,
    topic: str,
    queue: int | None,
    from_offset: int | None,
    until_offset: int | None,
    since: str | None,
    until: str | None,
    tag: str | None,
    limit: int | None,
    body: str,
    out: Output,
) -> None:
    """Print messages of a topic, queue by queue, in the order of their offsets.

    Stops with an error at the first message that is damaged: a damaged message is never printed.
    """
    from tieredstore.cli.composition import open_tier
    from tieredstore.scan.plan import ScanBounds, plan
    from tieredstore.scan.rows import COLUMNS, BodyForm

    now = SYSTEM_CLOCK.now_ms()
    since_ms = None if since is None else parse_time(since, now)
    until_ms = None if until is None else parse_time(until, now)
    require_order(since_ms, until_ms)
    with open_tier(tier) as opened:
        queues = opened.catalogue().select(topic, queue, opened.broker)
        bounds = ScanBounds(from_offset, until_offset, since_ms, until_ms)
        ranges = plan(opened.provider, queues, bounds)
        names = MESSAGE_COLUMNS if out.format is OutputFormat.TABLE else COLUMNS
        with closing(message_rows(opened.provider, ranges, tag, BodyForm(body), names)) as rows:
            found = out.rows(MESSAGE_COLUMNS, rows if limit is None else islice(rows, limit))
        if not found and limit != 0:
            click.echo(f"tieredstore: topic {topic!r} has no such message", err=True)


def message_rows(
    provider: SegmentProvider,
    ranges: Iterable[ScanRange],
    tag: str | None,
    body: BodyForm,
    names: tuple[str, ...],
) -> Generator[dict[str, object]]:
    """Yield the rows of the messages of some ranges, with these fields at least; those with one tag
    if it is given. After the first ones whole batches become rows, where pyarrow is installed."""
    from tieredstore.message.hashes import tags_code
    from tieredstore.scan.findings import raise_on_damage
    from tieredstore.scan.read.batches import read_batches
    from tieredstore.scan.read.small_ranges import read_small_ahead

    code = None if tag is None else tags_code(tag)
    rows_of: RowsOf = _make_rows_singly
    count = 0
    batches = read_small_ahead(
        provider,
        ranges,
        lambda one: one.size_bytes,
        lambda one, tell: read_batches(provider, one, on_finding=tell),
        raise_on_damage,
    )
    with closing(batches):
        for batch in batches:
            chosen = batch if code is None else batch.select(batch.tags_codes == code)
            for row in rows_of(chosen, body, names):
                if tag is None or row["tags"] == tag:
                    yield row
            count += len(chosen)
            if count >= _FEW:
                rows_of = _choose_rows_of()


def _make_rows_singly(
    batch: MessageBatch,
    body: BodyForm,
    names: tuple[str, ...],  # noqa: ARG001
) -> Iterator[dict[str, object]]:
    from tieredstore.scan.rows import message_row

    for message in batch.messages():
        yield message_row(message, batch.queue.broker, body)


def _choose_rows_of() -> RowsOf:
    try:
        from tieredstore.scan.arrow.rows import batch_rows
    except ImportError:
        return _make_rows_singly
    return batch_rows
