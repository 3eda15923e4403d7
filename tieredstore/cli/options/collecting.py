"""Options that reach a command together, as one value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])
Settings = Mapping[str, Any]
"""What `click.option` takes, and `flag`, the option's name on the command line."""


def collect(
    name: str, kind: Callable[..., object], options: Mapping[str, Settings]
) -> Callable[[Command], Command]:
    """Return a decorator that adds options to a command, which gets `kind(field=value, …)` as its
    keyword `name`. options: field -> settings, in the order of `--help`."""
    names = {f"{name}__{field}": field for field in options}

    def decorate(command: Command) -> Command:
        @wraps(command)
        def call(**given: Any) -> Any:
            fields = {names[key]: given.pop(key) for key in names}
            return command(**given, **{name: kind(**fields)})

        decorated: Any = call
        for key, settings in reversed([(key, dict(options[names[key]])) for key in names]):
            decorated = click.option(settings.pop("flag"), key, **settings)(decorated)
        result: Command = decorated
        return result

    return decorate
