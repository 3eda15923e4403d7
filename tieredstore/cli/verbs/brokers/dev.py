"""`tieredstore dev`: a broker for the development of applications."""

from __future__ import annotations

import tempfile
from pathlib import Path

import click

from tieredstore.cli.serving import serve


@click.command("dev")
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 0),
    help="0: free ports in place of the usual ones.",
)
@click.option(
    "--folder",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Keep store and tier there; a temporary folder without it.",
)
def command(port: int | None, folder: Path | None) -> None:
    """Run a broker on this machine, with a tier in files and topics made when they are sent to.

    One line of JSON on standard output says where it listens, once it does. SIGINT or SIGTERM ends
    it, and removes a temporary folder.
    """
    from tieredstore.broker.development import development_properties

    def run(root: Path) -> None:
        properties = development_properties(root, port=port)
        (root / "tier").mkdir(parents=True, exist_ok=True)
        serve(properties, origin="tieredstore dev")

    if folder is not None:
        run(folder)
        return
    with tempfile.TemporaryDirectory(prefix="tieredstore-dev-") as temporary:
        run(Path(temporary))
