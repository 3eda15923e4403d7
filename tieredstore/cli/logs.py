"""What the layers log, on standard error: from which level on, and how a line looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    import logging

LEVELS: Final = ("error", "warning", "info", "debug")
_DEFAULT: Final = "warning"
_KEY: Final = "tieredstore.cli.logs"
_ONCE: Final = frozenset({"tieredstore.scan.location", "tieredstore.registry"})
"""Who warns of a configuration, each time that it is loaded or used: each line is shown once."""


def log_options() -> list[click.Option]:
    """Make -v and --log-level, which stand before a verb or behind it."""
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
            callback=_choose,
            help="Log from this level on.",
        ),
    ]


def chosen_level(default: str = _DEFAULT) -> str:
    """Return the level that the command line asks for. default: the verb's own, from which -v
    counts."""
    context = click.get_current_context(silent=True)
    given = {} if context is None else context.meta.get(_KEY, {})
    if "level" in given:
        return str(given["level"])
    more = LEVELS.index(default) + int(given.get("more", 0))
    return LEVELS[min(more, len(LEVELS) - 1)]


def log_to_stderr() -> None:
    """Let what the layers log from the chosen level on be a line each on stderr, without
    tracebacks. It begins with the time where a level was asked for, and in a verb that follows."""
    import logging

    logger = logging.getLogger("tieredstore")
    for handler in list(logger.handlers):
        if handler.get_name() == _KEY:
            logger.removeHandler(handler)
    level = chosen_level()
    number: int = logging.getLevelNamesMapping()[level.upper()]
    logger.addHandler(_make_handler(number, with_time=level != _DEFAULT or _is_following()))
    # Unless it is asked for, what is too much is not even put together.
    logger.setLevel(number if level != _DEFAULT else logging.NOTSET)


def stamp() -> str:
    """Return the time as lines of a log begin with it, a space behind."""
    from tieredstore.clock import SYSTEM_CLOCK
    from tieredstore.scan.times import format_time

    return f"{format_time(SYSTEM_CLOCK.now_ms())} "


def _make_handler(level: int, *, with_time: bool) -> logging.Handler:
    import logging

    context = click.get_current_context(silent=True)
    shown: set[str] = set() if context is None else context.meta.setdefault(f"{_KEY}.shown", set())

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            text = " ".join(record.getMessage().split())
            if record.name in _ONCE:
                if text in shown:
                    return
                shown.add(text)
            time = stamp() if with_time else ""
            click.echo(f"{time}tieredstore: {record.levelname.lower()}: {text}", err=True)

    handler = Lines(level)
    handler.set_name(_KEY)
    return handler


def _is_following() -> bool:
    """Told by --follow, or by the --every of an export, which follows too."""
    context = click.get_current_context(silent=True)
    return context is not None and any(context.params.get(name) for name in ("follow", "every"))


def _count_more(context: click.Context, _option: click.Parameter, count: int) -> None:
    given = context.meta.setdefault(_KEY, {})
    given["more"] = given.get("more", 0) + count


def _choose(context: click.Context, _option: click.Parameter, level: str | None) -> None:
    if level is not None:
        context.meta.setdefault(_KEY, {})["level"] = level
