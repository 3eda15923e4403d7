"""`tieredstore broker`: a broker as a broker.conf describes it."""

from __future__ import annotations

from pathlib import Path

import click

from tieredstore.cli.serving import serve


@click.command("broker")
@click.option(
    "--config",
    "-c",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    required=True,
    help="The broker.conf.",
)
def command(config: Path) -> None:
    """Run a broker, until SIGINT or SIGTERM.

    One line of JSON on standard output says where it listens, once it does; the log goes to
    standard error.
    """
    from tieredstore.config import read_broker_conf

    serve(read_broker_conf(config), origin=str(config))
