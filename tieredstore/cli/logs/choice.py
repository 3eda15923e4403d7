"""What a command line asks of the lines on standard error. Each start imports it: it is small."""

from __future__ import annotations

import enum
from typing import Final

import click

LEVELS: Final = ("error", "warning", "info", "debug")
DEFAULT_LEVEL: Final = "warning"


class LogFormat(enum.StrEnum):
    """`--log-format`."""

    TEXT = "text"
    JSON = "json"


class LogChoice:
    """What one command line asks for; the `obj` of its contexts. named_level: that of --log-level.
    more: how often -v was given. shown: lines that are not shown again."""

    def __init__(self) -> None:
        self.named_level: str | None = None
        self.more = 0
        self.format = LogFormat.TEXT
        self.shown: set[str] = set()

    def find_level(self, default: str = DEFAULT_LEVEL) -> str:
        """Return the level that is asked for. default: the verb's own, from which -v counts."""
        if self.named_level is not None:
            return self.named_level
        return LEVELS[min(LEVELS.index(default) + self.more, len(LEVELS) - 1)]


def log_options() -> list[click.Option]:
    """Make -v, --log-level and --log-format, which stand before a verb or behind it."""
    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=_count_more,
            help="Log more on stderr; -vv still more.",
        ),
        click.Option(
            ["--log-level"],
            type=click.Choice(LEVELS, case_sensitive=False),
            expose_value=False,
            callback=_choose_level,
            help="Log from this level on.",
        ),
        click.Option(
            ["--log-format"],
            type=click.Choice([form.value for form in LogFormat], case_sensitive=False),
            expose_value=False,
            callback=_choose_format,
            help="Lines on stderr: text for people, json for programs.",
        ),
    ]


def find_choice() -> LogChoice:
    """Return the choice of the command line that runs; without one, what counts where nothing is
    asked for."""
    context = click.get_current_context(silent=True)
    return LogChoice() if context is None else context.ensure_object(LogChoice)


def _count_more(context: click.Context, _option: click.Parameter, count: int) -> None:
    context.ensure_object(LogChoice).more += count


def _choose_level(context: click.Context, _option: click.Parameter, level: str | None) -> None:
    if level is not None:
        context.ensure_object(LogChoice).named_level = level


def _choose_format(context: click.Context, _option: click.Parameter, form: str | None) -> None:
    if form is not None:
        context.ensure_object(LogChoice).format = LogFormat(form)
