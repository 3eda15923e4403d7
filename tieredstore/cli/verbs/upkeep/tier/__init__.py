"""`tieredstore tier`: what an operator does to a tier by hand."""

from __future__ import annotations

import click

from tieredstore.cli.lazy import LazyGroup

PARTS = {
    "adopt": "A broker whose disk was lost goes on at the tier's offsets.",
    "delete": "A topic leaves the tier.",
    "expire": "What is older than a time goes now.",
    "reset": "Queues are emptied, and go on at any offset.",
    "skip": "A queue goes on at a later offset, leaving messages out.",
}
"""Part -> its line in `--help`; the module of the same name holds the command `command`."""


@click.group("tier", cls=LazyGroup, lines=PARTS, package=__name__)
def command() -> None:
    """Ways out: change by hand what a tier has.

    Each verb only says what it would do, in objects, bytes and money, until it is given --yes. Its
    broker must be stopped then, and every `offload` to it.
    """
