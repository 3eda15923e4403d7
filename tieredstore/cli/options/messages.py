"""Options that select messages, and options for handling damage."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import click

from tieredstore.cli.exits import ExitCode
from tieredstore.cli.logs.choice import say
from tieredstore.cli.options.collecting import Command, choice, value
from tieredstore.cli.options.completing import complete_topics

if TYPE_CHECKING:
    from tieredstore.scan.findings import LeftOut


MOST_LIMIT: Final = 2**63 - 1
"""Maximum value of --limit: the highest count that Python's iterators support."""


def time_options(command: Command) -> Command:
    """Add --since and --until, which filter by store time."""
    command = value("--until", "TIME", "Stored before this time.")(command)
    return value("--since", "TIME", "Stored at this time or later.")(command)


def search_times_option(command: Command) -> Command:
    return choice(
        "--search-times",
        ["exact", "sampled"],
        "How messages of a time are found: each of them, or by samples of large queues.",
        default="exact",
    )(command)


def tag_option(**settings: Any) -> Callable[[Command], Command]:
    """Add --tag, an expression like those in subscriptions. `settings`: arguments of
    `click.option`."""
    return click.option(
        "--tag",
        metavar="T",
        callback=_require_tags,
        help="Only messages with this tag. `A || B` takes both.",
        **settings,
    )


def _require_tags(
    context: click.Context,  # noqa: ARG001
    option: click.Parameter,  # noqa: ARG001
    given: str | None,
) -> str | None:
    """Raise a usage error, like Java's clients, for an expression without any tag. It would select
    all messages."""
    if given is not None and not any(part.strip() for part in given.split("||")):
        raise click.UsageError(f"--tag {given!r}: no tag in it: expected T, `A || B`, or * for all")
    return given


def topic_option(**settings: Any) -> Callable[[Command], Command]:
    """Add --topic, whose value shells complete with the topics of the tier. `settings`: arguments
    of `click.option`."""
    return click.option("--topic", metavar="T", shell_complete=complete_topics, **settings)


def topics_option(command: Command) -> Command:
    """Add --topics, a list of shell patterns. Without patterns, all topics are selected."""
    return click.option(
        "--topics",
        metavar="T,…",
        multiple=True,
        callback=_split,
        shell_complete=complete_topics,
        help="Only these topics: shell patterns, comma-separated or repeated.",
    )(command)


def required_topics_option(command: Command) -> Command:
    """Add --topic, a list of one or more shell patterns, passed to the command as `topics`."""
    return click.option(
        "--topic",
        "--topics",
        "topics",
        metavar="T,…",
        multiple=True,
        required=True,
        callback=_split,
        shell_complete=complete_topics,
        help="The topics: shell patterns, comma-separated or repeated.",
    )(command)


def _split(context: click.Context, option: click.Parameter, given: tuple[str, ...]) -> list[str]:
    """Split comma-separated lists of topics. Raises a usage error for a list without names, which
    would select all topics."""
    names = [name for text in given for name in text.split(",") if name]
    if given and not names and not context.resilient_parsing:
        raise click.BadParameter("expected a topic", context, option)
    return names


def split_pair(option: str, text: str) -> tuple[str, str]:
    """Split `KEY=VALUE`. Raises a usage error for other text."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"{option} {key!r}: expected KEY=VALUE")
    return key, value


on_damage_option = choice(
    "--on-damage",
    ["fail", "skip"],
    "At damage: end there, or leave the messages out and count them.",
    name="on_damage",
    default="fail",
)


def end_with(left_out: LeftOut) -> ExitCode:
    """Print how many messages were omitted because of damage, and return the exit code."""
    if not left_out.count:
        return ExitCode.OK
    say(left_out.describe(), "warning")
    return ExitCode.DAMAGE
