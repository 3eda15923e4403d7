"""`tieredstore config`: what a broker.conf means, and what a broker keeps in `config/`."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "backup": "Write topics, groups, offsets, users and timers of a broker to a file.",
    "check": "Say what is wrong with a broker.conf.",
    "restore": "Put back what `backup` wrote.",
    "show": "Print the settings that count, and where each comes from.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("config", cls=LazyGroup, lines=PARTS, package=__name__)
def command() -> None:
    """Check and show a configuration. Back up what a broker keeps in config/ (of its
    storePathRootDir), and restore it."""
