"""`tieredstore topic delete`."""

from __future__ import annotations

import click

from tieredstore.cli.options.broker import Place, broker_option, talk_to


@click.command("delete")
@click.argument("topic")
@broker_option
@click.option("--yes", is_flag=True, help="Do it; without this it is only said what would go.")
def command(topic: str, broker: Place, yes: bool) -> None:
    """Delete TOPIC with all its messages, those in the tier too."""
    with talk_to(broker) as client:
        if yes:
            client.delete_topic(topic)
            return
        queues = client.find_queues(topic)
    click.echo(
        f"{topic} would be deleted, with the messages of {len(queues)} queues: --yes does it"
    )
