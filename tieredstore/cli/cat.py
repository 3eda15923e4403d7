"""`tieredstore cat`: messages of a topic, oldest offset first."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.options import (
    TierOptions,
    body_option,
    output_option,
    tier_options,
    time_options,
)
from tieredstore.cli.output import Output, OutputFormat
from tieredstore.cli.times import parse_time
from tieredstore.clock import SYSTEM_CLOCK

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.plan import ScanRange
    from tieredstore.scan.rows import BodyForm

MESSAGE_COLUMNS = ("queue_id", "queue_offset", "store_timestamp", "tags", "keys", "msg_id", "body")
"""What a table shows; JSON has every field."""


@click.command("cat")
@tier_options
@click.option("--topic", metavar="T", required=True, help="The topic.")
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
    tier: str,
    state: Path | None,
    config: Path | None,
    cluster: str | None,
    broker: str | None,
    topic: str,
    queue: int | None,
    from_offset: int | None,
    until_offset: int | None,
    since: str | None,
    until: str | None,
    tag: str | None,
    limit: int | None,
    body: str,
    output: str,
) -> None:
    """Print messages of a topic, queue by queue, in the order of their offsets.

    Stops with an error at the first message that is damaged: a damaged message is never printed.
    """
    from tieredstore.cli.composition import open_tier
    from tieredstore.scan.plan import plan
    from tieredstore.scan.rows import BodyForm

    now = SYSTEM_CLOCK.now_ms()
    since_ms = None if since is None else parse_time(since, now)
    until_ms = None if until is None else parse_time(until, now)
    with open_tier(TierOptions(tier, state, config, cluster, broker)) as opened:
        queues = opened.catalogue().select(topic, queue, opened.broker)
        ranges = plan(
            opened.provider,
            queues,
            from_offset=from_offset,
            until_offset=until_offset,
            since_ms=since_ms,
            until_ms=until_ms,
        )
        rows = message_rows(opened.provider, ranges, tag, BodyForm(body))
        if limit is not None:
            rows = islice(rows, limit)
        Output(OutputFormat(output)).rows(MESSAGE_COLUMNS, rows)


def message_rows(
    provider: SegmentProvider, ranges: Iterable[ScanRange], tag: str | None, body: BodyForm
) -> Iterator[dict[str, object]]:
    """Rows of the messages of some ranges, those with one tag if it is given."""
    from tieredstore.message.hashes import tags_code
    from tieredstore.scan.batches import read_batches
    from tieredstore.scan.rows import message_row

    code = None if tag is None else tags_code(tag)
    for scan_range in ranges:
        for batch in read_batches(provider, scan_range):
            chosen = batch if code is None else batch.select(batch.tags_codes == code)
            for message in chosen.messages():
                if tag is None or message.tags == tag:
                    yield message_row(message, scan_range.queue.broker, body)
