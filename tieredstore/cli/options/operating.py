"""Options of the verbs by which an operator changes a tier."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.logs.saying import say
from tieredstore.cli.options.collecting import Command
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import take_over_option, tier_options
from tieredstore.cli.output.rows import Output
from tieredstore.cli.output.tables import USAGE_TABLE, Tables

TABLES: Tables = {
    "queues": ("topic", "queue_id", "segments", "objects", "bytes", "messages"),
    "problems": ("path", "problem"),
    **USAGE_TABLE,
}
queue_option = click.option(
    "--queue", "queue_id", metavar="Q", type=click.IntRange(0), help="Only this queue."
)


def operating_options(command: Command) -> Command:
    """Add --tier and its kin, --yes, --take-over and --output."""
    options: list[Callable[[Command], Command]] = [
        tier_options(
            state="The state directory of the tier's writer, or a broker's storePathRootDir.",
            needs_state=True,
            broker="Broker name (brokerName): a state is one's.",
        ),
        click.option("--yes", is_flag=True, help="Do it; without this it is only said."),
        take_over_option,
        output_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def show(report: dict[str, Any], out: Output, tables: Tables = TABLES) -> int:
    """Print a report; returns the exit code. Nothing was done without --yes: that is said."""
    out.record(report, tables)
    if not report["done"]:
        say("nothing was changed; --yes does it")
    return int(ExitCode.DAMAGE if report["problems"] else ExitCode.OK)
