"""Suggestions for misspelt words, such as options."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path

import click

from tieredstore.errors import Unnamed

_MOST = 3
_LEAST_LIKENESS = 0.65


def hint_at(word: str, known: Iterable[str]) -> str:
    """Return the suffix "did you mean …?" with the most likely words, likeliest first. Empty if no
    word is likely."""
    likely = find_likely(word, known)
    return f"; did you mean {' or '.join(map(repr, likely))}?" if likely else ""


def find_likely(word: str, known: Iterable[str]) -> list[str]:
    """Return the known words that the user may have meant. These are the words that start with
    `word`, shortest first, or else words with a similar spelling."""
    import difflib

    names = {name.casefold(): name for name in known}
    typed = word.casefold()
    begun = sorted((name for name in names if name.startswith(typed)), key=len)
    likely = begun[:_MOST] or difflib.get_close_matches(typed, names, _MOST, _LEAST_LIKENESS)
    return [names[name] for name in likely]


def describe_option(error: click.NoSuchOption) -> str:
    """Return the message of click's error with the likely options, likeliest first. Click would
    sort them alphabetically."""
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


def offer_conf(callback: Callable[..., object]) -> Callable[..., object]:
    """Decorate a command so that errors about a missing tier, folder or file point to a broker.conf
    that may name it. The command receives all options as keyword arguments."""

    @wraps(callback)
    def call(*args: object, **given: object) -> object:
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
    """Raised if a required option for a tier, a folder or a file is missing."""


def hint_at_conf(given: Mapping[str, object], option: str) -> str:
    """Return a hint at a broker.conf that may name the missing value. Empty if a configuration is
    given, or if the store or state directory has no broker.conf nearby. `given`: options and their
    values. `option`: the missing option."""
    from tieredstore.scan.location import find_conf_beside

    named = {
        name.rpartition("__")[2]: value
        for name, value in given.items()
        if isinstance(value, str | Path) and str(value)  # click has an object for a missing value
    }
    folders = [Path(named[name]) for name in ("store", "state") if name in named]
    path = next(filter(None, map(find_conf_beside, folders)), None)
    if path is None or "config" in named:
        return ""
    quoted = shlex.quote(str(path))
    return f"; maybe --config {quoted}" if option.endswith("config") else f"; {quoted} may say it"
