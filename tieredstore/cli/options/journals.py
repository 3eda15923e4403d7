"""Options of the verbs over journals."""

from __future__ import annotations

from pathlib import Path

import click

work_option = click.option(
    "--work",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="The folder that the jobs were given; by default the user's state directory.",
)
