"""Templates for `--format`: text with field names in braces."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from string import Formatter

from tieredstore.errors import Invalid

_WIDTH = re.compile(r"\d{5,}")
"""Matches a width or precision of 10,000 or more. Such a format is refused, because its result
might exhaust the memory."""
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


class Template:
    r"""Template such as `{queue_id}@{queue_offset}\t{body}`. `\n`, `\t`, `\r`, `\0` and `\\` are
    escapes as in Python. `{{` and `}}` are literal braces. `names`: fields in order of appearance.
    Raises Invalid for an invalid template."""

    def __init__(self, text: str) -> None:
        self._parts: list[tuple[str, str | None, str]] = []
        try:
            for literal, name, spec, conversion in Formatter().parse(text):
                if conversion is not None or "{" in (spec or ""):
                    raise ValueError(f"{name}: expected a field, with a format behind ':' or not")
                if _WIDTH.search(spec or ""):
                    raise ValueError(f"{name}:{spec}: expected a width below 10000")
                self._parts.append((_unescape(literal), name, spec or ""))
        except ValueError as error:
            raise Invalid(f"--format {text!r}: {error}") from None
        self.names = tuple(name for _, name, _ in self._parts if name is not None)

    def fill(self, values: Mapping[str, object], show: Callable[[str, object], str]) -> str:
        """Return the text of the template for one message. `show`: formats a field for which the
        template has no format. Raises Invalid for a format that does not suit the value."""
        found = []
        for literal, name, spec in self._parts:
            found.append(literal)
            if name is not None:
                found.append(_format(name, values[name], spec, show))
        return "".join(found)


def _unescape(literal: str) -> str:
    return re.sub(r"\\([ntr0\\])", lambda found: _ESCAPES[found[1]], literal)


def _format(name: str, value: object, spec: str, show: Callable[[str, object], str]) -> str:
    if not spec:
        return show(name, value)
    try:
        return format(value if isinstance(value, int | str) else show(name, value), spec)
    except ValueError as error:
        raise Invalid(f"--format {{{name}:{spec}}}: {error}") from None
