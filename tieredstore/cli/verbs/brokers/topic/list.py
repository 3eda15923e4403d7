"""`tieredstore topic list`."""

from __future__ import annotations

import click

from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.broker import Place, broker_option, talk_to
from tieredstore.cli.options.output import output_option
from tieredstore.cli.output.rows import Output


@click.command("list")
@broker_option
@output_option
def command(broker: Place, out: Output) -> None:
    """List all topics, those of the broker itself too."""
    with talk_to(broker) as client:
        topics = client.list_topics()
    if not out.rows(("topic",), ({"topic": topic} for topic in topics)):
        say(f"the broker at {broker.address} has no topic")
