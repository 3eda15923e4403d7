"""`tieredstore tail`: messages of a running broker as they come."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING

import click

from tieredstore.cli.logs.saying import say
from tieredstore.cli.messages.rows import MESSAGE_COLUMNS
from tieredstore.cli.options.broker import Place, broker_option, talk_to
from tieredstore.cli.options.messages import MOST_LIMIT, tag_option
from tieredstore.cli.options.output import message_output_options

if TYPE_CHECKING:
    from tieredstore.cli.output.messages import MessageOutput
    from tieredstore.cli.remote import BrokerClient
    from tieredstore.message.record import StoredMessage

PAUSE_S = 0.25


@click.command("tail")
@click.argument("topic")
@broker_option
@tag_option(default="*")
@click.option("--from-start", is_flag=True, help="Begin at the first message, cold ones too.")
@click.option(
    "--limit",
    metavar="N",
    type=click.IntRange(min=1, max=MOST_LIMIT),
    help="End after so many messages.",
)
@click.option("--no-follow", is_flag=True, help="End where the queues end now.")
@message_output_options
def command(
    topic: str,
    broker: Place,
    tag: str,
    from_start: bool,
    limit: int | None,
    no_follow: bool,
    out: MessageOutput,
) -> None:
    """Print messages of TOPIC as they come, until SIGINT. It commits no offset and is no member of
    a group."""
    from tieredstore.scan.rows import message_row

    out.require_live()
    with talk_to(broker) as client:
        found = _follow(client, topic, tag, from_start=from_start, follows=not no_follow)
        rows = (message_row(message, "", out.body) for message in islice(found, limit))
        if not out.write(MESSAGE_COLUMNS, rows, is_live=True):
            say(f"topic {topic!r} has no such message")


def _follow(
    client: BrokerClient, topic: str, tag: str, *, from_start: bool, follows: bool
) -> Iterator[StoredMessage]:
    """Yield the messages of all queues, each queue's in their order."""
    from tieredstore.broker.remoting.codes import RequestCode

    begin = RequestCode.GET_MIN_OFFSET if from_start else RequestCode.GET_MAX_OFFSET
    offsets = {
        queue: client.find_offset(begin, topic, queue) for queue in client.find_queues(topic)
    }
    while True:
        is_idle = True
        for queue_id, offset in list(offsets.items()):
            pulled = client.pull(topic, queue_id, offset, expression=tag)
            offsets[queue_id] = pulled.next_offset
            is_idle &= pulled.next_offset == offset
            yield from pulled.messages
        if is_idle:
            if not follows:
                return
            time.sleep(PAUSE_S)
