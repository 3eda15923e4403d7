"""`tieredstore config`: what a broker keeps in `config/`, into a file and back."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "backup": "Write topics, groups, offsets, users and timers of a broker to a file.",
    "restore": "Put them back.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("config", cls=LazyGroup, lines=PARTS, modules="tieredstore.cli.verbs.config.{}")
def command() -> None:
    """Back up what a broker keeps in config/ (of its storePathRootDir), and restore it."""
