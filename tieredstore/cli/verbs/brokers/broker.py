"""`tieredstore broker`: a broker as a broker.conf describes it, or over the history of a tier."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.help.suggesting import hint_at_conf
from tieredstore.cli.serving import serve, serve_broker

if TYPE_CHECKING:
    from tieredstore.broker.broker import Broker


@click.command("broker")
@click.option(
    "--config",
    "-c",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The broker.conf.",
)
@click.option("--read-only", is_flag=True, help="Serve the history of a tier, and write nothing.")
@click.option("--tier", metavar="URL", help="With --read-only: the tier.")
@click.option(
    "--state",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="With --read-only: keeps the offsets of its groups.",
)
@click.option("--cluster", metavar="NAME", help="With --read-only: whose history, where several.")
@click.option("--broker", metavar="NAME", help="With --read-only: whose history, where several.")
def command(
    config: Path | None,
    read_only: bool,
    tier: str | None,
    state: Path | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    """Run a broker, until SIGINT or SIGTERM.

    One line of JSON on standard output says where it listens, once it does; the log goes to
    standard error.
    """
    if not read_only:
        if any(value is not None for value in (tier, state, cluster, broker)):
            raise click.UsageError("--tier, --state, --cluster, --broker go with --read-only")
        if config is None:
            raise click.UsageError(
                f"give --config FILE{hint_at_conf({'store': 'store'}, 'config')}"
            )
        from tieredstore.config import read_broker_conf

        serve(read_broker_conf(config), origin=str(config))
        return
    if tier is None or state is None:
        raise click.UsageError("--read-only needs --tier and --state")

    def make_broker() -> Broker:
        from tieredstore.cli.reading_broker import make_reading_broker

        return make_reading_broker(tier, state, config=config, cluster=cluster, broker=broker)

    serve_broker(make_broker)
