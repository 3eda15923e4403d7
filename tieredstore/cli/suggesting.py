"""What somebody may have meant by a word that is not known."""

from __future__ import annotations

from collections.abc import Iterable

import click

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
