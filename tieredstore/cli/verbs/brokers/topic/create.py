"""`tieredstore topic create`."""

from __future__ import annotations

import click

from tieredstore.cli.options.broker import Place, broker_option, talk_to


@click.command("create")
@click.argument("topic")
@broker_option
@click.option(
    "--queues",
    metavar="N",
    type=click.IntRange(1, 65_535),
    default=8,
    show_default=True,
    help="Its number of queues.",
)
def command(topic: str, broker: Place, queues: int) -> None:
    """Make TOPIC; of one that is there the number of queues is changed."""
    with talk_to(broker) as client:
        client.create_topic(topic, queues)
