"""What somebody may have meant by a word that is not known."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

import click

from tieredstore.errors import Unnamed

_MOST = 3
_LEAST_LIKENESS = 0.65


def hint_at(word: str, known: Iterable[str]) -> str:
    """Return `; did you mean …?` with the likeliest first, or nothing where none is like it."""
    likely = find_likely(word, known)
    return f"; did you mean {' or '.join(map(repr, likely))}?" if likely else ""


def find_likely(word: str, known: Iterable[str]) -> list[str]:
    """Return the words that it may have been, the likeliest first: those that it is the beginning
    of, the shortest first; where there is none, those that are written much like it."""
    import difflib

    names = {name.casefold(): name for name in known}
    typed = word.casefold()
    begun = sorted((name for name in names if name.startswith(typed)), key=len)
    likely = begun[:_MOST] or difflib.get_close_matches(typed, names, _MOST, _LEAST_LIKENESS)
    return [names[name] for name in likely]


def describe_option(error: click.NoSuchOption) -> str:
    """Return the text of click's error with the options that were meant, the likeliest first. Its
    own stand in the order of the alphabet."""
    context = error.ctx
    if context is None:
        return error.format_message()
    names = (
        name
        for parameter in context.command.get_params(context)
        for name in parameter.opts
        if name.startswith("--")
    )
    name = error.option_name
    return f"No such option {name!r}{hint_at(name, names) if name.startswith('--') else ''}"


def offer_conf(callback: Callable[..., Any]) -> Callable[..., Any]:
    """Let the errors of a command that miss a name say which broker.conf may have it. A command
    gets all its options by name."""

    @wraps(callback)
    def call(*args: Any, **given: Any) -> Any:
        try:
            return callback(*args, **given)
        except Unnamed as error:
            error.args = (f"{error}{hint_at_conf(given, 'config')}",)
            raise
        except UnnamedOption as error:
            text = f"{error.message}{hint_at_conf(given, '')}"
            raise UnnamedOption(text, error.ctx) from None

    return call


class UnnamedOption(click.UsageError):
    """An option is missing that is a name."""


def hint_at_conf(given: Mapping[str, Any], option: str) -> str:
    """Return which broker.conf may have what is missing, where none is given and one lies beside
    the store or state directory that is. given: options, and their values. option: the one that is
    missing."""
    from tieredstore.scan.location import find_conf_beside

    named = {
        name.rpartition("__")[2]: value
        for name, value in given.items()
        if isinstance(value, str | Path) and str(value)  # click has an object for what is not given
    }
    folders = [Path(named[name]) for name in ("store", "state") if name in named]
    path = next(filter(None, map(find_conf_beside, folders)), None)
    if path is None or "config" in named:
        return ""
    quoted = shlex.quote(str(path))
    return f"; maybe --config {quoted}" if option.endswith("config") else f"; {quoted} may say it"
