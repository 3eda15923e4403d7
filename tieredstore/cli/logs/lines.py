"""What the layers log, as lines on standard error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import click

from tieredstore.cli.logs.choice import DEFAULT_LEVEL, LogChoice, LogFormat, find_choice
from tieredstore.cli.output.rows import encode
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.timestamps import format_time

_PROJECT: Final = "tieredstore"
_ONCE: Final = frozenset({"tieredstore.scan.location", "tieredstore.registry"})
"""Who warns of a configuration, each time that it is loaded or used: each line is shown once."""


def log_to_stderr() -> None:
    """Let what the layers log from the chosen level on be a line each on stderr, without
    tracebacks. It begins with the time where a level was asked for, and in a verb that follows."""
    logger = logging.getLogger(_PROJECT)
    for handler in list(logger.handlers):
        if isinstance(handler, _Lines):
            logger.removeHandler(handler)
    choice = find_choice()
    level = choice.find_level()
    number: int = logging.getLevelNamesMapping()[level.upper()]
    has_time = level != DEFAULT_LEVEL or _is_following()
    logger.addHandler(_Lines(number, choice, has_time=has_time))
    # Unless it is asked for, what is too much is not even put together.
    logger.setLevel(number if level != DEFAULT_LEVEL else logging.NOTSET)


def make_json_line(
    logger: str, level: str, text: str, fields: Mapping[str, object] | None = None
) -> str:
    """Return a line of JSON for what is not logged by a layer. fields: besides."""
    record = logging.LogRecord(logger, logging.getLevelName(level.upper()), "", 0, text, (), None)
    record.fields = fields or {}
    return JsonLines().format(record)


class JsonLines(logging.Formatter):
    """A line of JSON for each record: `time` (ISO 8601, UTC), `level`, `logger`, `message`, what it
    has as `fields`, and `traceback` where it has one."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, object] = {
            "time": format_time(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": " ".join(record.getMessage().split()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return encode(found).decode()


def stamp() -> str:
    """Return the time as lines of a log begin with it, a space behind."""
    return f"{format_time(SYSTEM_CLOCK.now_ms())} "


class _Lines(logging.Handler):
    """Writes records to stderr as a command line asks for it."""

    def __init__(self, level: int, choice: LogChoice, *, has_time: bool) -> None:
        super().__init__(level)
        self._choice = choice
        self._has_time = has_time

    def emit(self, record: logging.LogRecord) -> None:
        text = " ".join(record.getMessage().split())
        if record.name in _ONCE:
            if text in self._choice.shown:
                return
            self._choice.shown.add(text)
        if self._choice.format is LogFormat.JSON:
            line = JsonLines().format(record)
        else:
            time = stamp() if self._has_time else ""
            line = f"{time}{_PROJECT}: {record.levelname.lower()}: {text}"
        click.echo(line, err=True)


def _is_following() -> bool:
    """Told by --follow, or by the --every of an export, which follows too."""
    context = click.get_current_context(silent=True)
    return context is not None and any(context.params.get(name) for name in ("follow", "every"))
