"""Functions that declare options. Several options can be passed to a command as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., object])
Settings = Mapping[str, Any]
"""Arguments of `click.option`. The key `flag` has the option's name on the command line."""


def collect(
    name: str, kind: Callable[..., object], options: Mapping[str, Settings]
) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command. The command receives `kind(field=value,
    …)` as the keyword argument `name`. `options`: settings of the option for each field, in the
    order of `--help`."""
    names = {f"{name}__{field}": field for field in options}

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**given: object) -> object:
            fields = {names[key]: given.pop(key) for key in names}
            return command(**given, **{name: kind(**fields)})

        decorated: Any = call
        for key, settings in reversed([(key, dict(options[names[key]])) for key in names]):
            decorated = click.option(settings.pop("flag"), key, **settings)(decorated)
        result: Command = decorated
        return result

    return decorate


def value(
    flag: str, metavar: str | None, help: str, *, name: str = "", **settings: Any
) -> Callable[[Command], Command]:
    """Add an option with a value, whose default is shown in the help. `name`: keyword argument of
    the command, or short form of the option. `settings`: arguments of `click.option`."""
    settings = {"show_default": "default" in settings, **settings}
    return click.option(flag, *filter(None, [name]), metavar=metavar, help=help, **settings)


def switch(flag: str, help: str, *, name: str = "") -> Callable[[Command], Command]:
    """Add an option without a value."""
    return click.option(flag, *filter(None, [name]), is_flag=True, help=help)


def choice(
    flag: str, values: Sequence[str], help: str, **settings: Any
) -> Callable[[Command], Command]:
    """Add an option that accepts one of several words. `settings`: as in `value`."""
    return value(flag, None, help, type=click.Choice(values), **settings)


def number(
    flag: str, low: int | None, high: int | None, help: str, *, metavar: str = "N", **settings: Any
) -> Callable[[Command], Command]:
    """Add an option for an integer from `low` to `high`. `settings`: as in `value`."""
    kind = int if low is high is None else click.IntRange(low, high)
    return value(flag, metavar, help, type=kind, **settings)


def path(
    flag: str,
    metavar: str,
    help: str,
    *,
    dir_okay: bool = True,
    file_okay: bool = True,
    **settings: Any,
) -> Callable[[Command], Command]:
    """Add an option for a path. `settings`: as in `value`."""
    kind = click.Path(path_type=Path, dir_okay=dir_okay, file_okay=file_okay)
    return value(flag, metavar, help, type=kind, **settings)
