"""Log records as lines on standard error."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

import click

from tieredstore.cli.harmless import encode, make_harmless
from tieredstore.cli.logs.choice import DEFAULT_LEVEL, LogChoice, LogFormat, find_choice
from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.timestamps import format_time

_PROJECT: Final = "tieredstore"
_ONCE: Final = frozenset({"tieredstore.scan.location", "tieredstore.registry"})
"""Loggers that repeat a warning each time a configuration is used. A line is shown only once."""


def log_to_stderr() -> None:
    """Print log records from the chosen level up as lines on stderr, without tracebacks. Lines
    start with the time if a level was chosen or if the verb follows new messages."""
    logger = logging.getLogger(_PROJECT)
    for handler in list(logger.handlers):
        if isinstance(handler, _Lines):
            logger.removeHandler(handler)
    choice = find_choice()
    level = choice.find_level()
    number: int = logging.getLevelNamesMapping()[level.upper()]
    has_time = level != DEFAULT_LEVEL or _is_following()
    logger.addHandler(_Lines(number, choice, has_time=has_time))
    # Records below a default level are not even formatted.
    logger.setLevel(number if level != DEFAULT_LEVEL else logging.NOTSET)


def make_json_line(
    logger: str, level: str, text: str, fields: Mapping[str, object] | None = None
) -> str:
    """Format a message that is not a log record as a JSON line, like a log record. `fields`:
    additional fields of the line."""
    record = logging.LogRecord(logger, logging.getLevelName(level.upper()), "", 0, text, (), None)
    record.fields = fields or {}
    return JsonLines().format(record)


class JsonLines(logging.Formatter):
    """Formats a record as a JSON line with `time` (ISO 8601, UTC), `level`, `logger` and `message`,
    and with `fields` and `traceback` if present."""

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
    """Return the current time and a space, as the start of a log line."""
    return f"{format_time(SYSTEM_CLOCK.now_ms())} "


class _Lines(logging.Handler):
    """Handler that prints records on stderr according to the log options."""

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
        click.echo(make_harmless(line), err=True)


def _is_following() -> bool:
    """Return whether the verb follows new messages, with --follow or as an export with --every."""
    context = click.get_current_context(silent=True)
    return context is not None and any(context.params.get(name) for name in ("follow", "every"))
