"""Options that say which messages a verb is about."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import click

from tieredstore.cli.help.completing import complete_topics
from tieredstore.cli.options.collecting import Command

MOST_LIMIT: Final = 2**63 - 1
"""What iterators can count to."""


def time_options(command: Command) -> Command:
    """Add --since and --until: store times."""
    command = click.option("--until", metavar="TIME", help="Stored before this time.")(command)
    return click.option("--since", metavar="TIME", help="Stored at this time or later.")(command)


def tag_option(**settings: Any) -> Callable[[Command], Command]:
    """Add --tag: an expression as consumers subscribe with. settings: as `click.option` takes
    them."""
    return click.option(
        "--tag",
        metavar="T",
        callback=_require_tags,
        help="Only messages with this tag; `A || B`: both.",
        **settings,
    )


def _require_tags(
    context: click.Context,  # noqa: ARG001
    option: click.Parameter,  # noqa: ARG001
    given: str | None,
) -> str | None:
    """Refuse an expression of empty parts, as Java's clients do: it would mean all messages."""
    if given and not any(part.strip() for part in given.split("||")):
        raise click.UsageError(f"--tag {given!r}: no tag in it; expected T, `A || B`, or * for all")
    return given


def topic_option(**settings: Any) -> Callable[[Command], Command]:
    """Add --topic, which shells complete with the topics of the tier. settings: as `click.option`
    takes them."""
    return click.option("--topic", metavar="T", shell_complete=complete_topics, **settings)


def topics_option(command: Command) -> Command:
    """Add --topics: a list of shell patterns, empty for all."""
    return click.option(
        "--topics",
        metavar="T,…",
        multiple=True,
        callback=_split,
        shell_complete=complete_topics,
        help="Only these topics; shell patterns, comma-separated or repeated.",
    )(command)


def required_topics_option(command: Command) -> Command:
    """Add --topic, the same list, of one topic at least; the command gets it as `topics`."""
    return click.option(
        "--topic",
        "--topics",
        "topics",
        metavar="T,…",
        multiple=True,
        required=True,
        callback=_split_some,
        shell_complete=complete_topics,
        help="The topics; shell patterns, comma-separated or repeated.",
    )(command)


def _split_some(
    context: click.Context, option: click.Parameter, given: tuple[str, ...]
) -> list[str]:
    names = _split(context, option, given)
    if not names and not context.resilient_parsing:
        raise click.BadParameter("expected a topic", context, option)
    return names


def _split(_context: click.Context, _option: click.Parameter, given: tuple[str, ...]) -> list[str]:
    return [name for text in given for name in text.split(",") if name]


def split_pair(option: str, text: str) -> tuple[str, str]:
    """Split KEY=VALUE. Raises a usage error."""
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise click.UsageError(f"{option} {key!r}: expected KEY=VALUE")
    return key, value
