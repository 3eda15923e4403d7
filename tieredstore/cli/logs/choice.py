"""Level and format of lines on standard error: log records and messages printed by verbs."""

from __future__ import annotations

import enum
from typing import Final

import click

from tieredstore.cli.harmless import make_harmless

LEVELS: Final = ("error", "warning", "info", "debug")
DEFAULT_LEVEL: Final = "warning"


class LogFormat(enum.StrEnum):
    """Values of `--log-format`."""

    TEXT = "text"
    JSON = "json"


class LogChoice:
    """Log options of a command line, stored as the `obj` of its click contexts. `named_level`:
    level from --log-level. `more`: number of -v options. `shown`: printed lines that must not be
    repeated."""

    def __init__(self) -> None:
        self.named_level: str | None = None
        self.more = 0
        self.format = LogFormat.TEXT
        self.shown: set[str] = set()

    def find_level(self, default: str = DEFAULT_LEVEL) -> str:
        """Return the log level. `default`: default level of the verb. Each -v increases the
        verbosity by one level."""
        if self.named_level is not None:
            return self.named_level
        return LEVELS[min(LEVELS.index(default) + self.more, len(LEVELS) - 1)]


def log_options() -> list[click.Option]:
    """Return the options -v, --log-level and --log-format, which may come before or after a
    verb."""
    return [
        click.Option(
            ["-v", "--verbose"],
            count=True,
            expose_value=False,
            callback=_count_more,
            help="Log more on stderr, with -vv still more.",
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
    """Return the log options of the current command line, or the defaults."""
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


def say(text: str, level: str = "info", choice: LogChoice | None = None) -> None:
    """Print a line on stderr. From level warning up, it includes the name of the level. `choice`:
    log options, for callers without a click context."""
    click.echo(make_line(text, level, choice), err=True)


def make_line(text: str, level: str = "info", choice: LogChoice | None = None) -> str:
    text = make_harmless(" ".join(text.split()))
    if (choice or find_choice()).format is LogFormat.JSON:
        from tieredstore.cli.logs.lines import make_json_line

        return make_json_line("tieredstore", level, text)
    is_grave = LEVELS.index(level) <= LEVELS.index(DEFAULT_LEVEL)
    return f"tieredstore: {level}: {text}" if is_grave else f"tieredstore: {text}"
