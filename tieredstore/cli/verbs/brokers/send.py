"""`tieredstore send`: messages to a running broker."""

from __future__ import annotations

import sys
from collections.abc import Iterable

import click

from tieredstore.cli.options.broker import Place, broker_option, talk_to
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output
from tieredstore.message.properties import KEYS, TAGS

DELAY_MS = "TIMER_DELAY_MS"
COLUMNS = ("topic", "queue_id", "queue_offset", "msg_id", "offset_msg_id")


@click.command("send")
@click.argument("topic")
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@broker_option
@click.option("--tag", metavar="T", help="Its tag.")
@click.option("--key", "keys", metavar="K", multiple=True, help="A key; may be repeated.")
@click.option(
    "--property",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A property; may be repeated.",
)
@click.option("--delay-ms", metavar="MS", type=click.IntRange(min=0), help="Deliver it so late.")
@output_option
def command(
    topic: str,
    bodies: tuple[str, ...],
    broker: Place,
    tag: str | None,
    keys: tuple[str, ...],
    pairs: tuple[str, ...],
    delay_ms: int | None,
    out: Output,
) -> None:
    """Send each BODY to TOPIC as a message; without any, each line of standard input.

    A topic that is not there is made, where the broker does that.
    """
    properties = dict(map(_split, pairs))
    if tag is not None:
        properties[TAGS] = tag
    if keys:
        properties[KEYS] = " ".join(keys)
    if delay_ms is not None:
        properties[DELAY_MS] = str(delay_ms)
    texts: Iterable[bytes] = (body.encode(errors="surrogateescape") for body in bodies)
    if not bodies:
        texts = (line.rstrip(b"\n") for line in sys.stdin.buffer)
    with talk_to(broker) as client:
        rows = (
            {"topic": topic, **client.send(topic, body, properties)._asdict()} for body in texts
        )
        out.rows(COLUMNS, rows)


def _split(pair: str) -> tuple[str, str]:
    name, separator, value = pair.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--property: expected NAME=VALUE, found {pair!r}")
    return name, value
