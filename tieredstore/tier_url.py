"""Where a tier is, as people write it: `file:///dir`, `s3://bucket/prefix?region=…`, `some/dir`.

One rule of quoting: what has `://` is a URL and is percent-decoded once; anything else is a path
and is taken as it is. A URL shows up in errors, logs and process lists, so a secret in one is
refused and never shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tieredstore.errors import Invalid

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_SCHEME_AND_COLON = re.compile(_SCHEME.pattern + ":")


@dataclass(frozen=True, slots=True)
class TierUrl:
    """A URL in parts, percent-decoded. `authority` has no user and no password."""

    scheme: str
    authority: str
    path: str
    query: Mapping[str, str]

    def __str__(self) -> str:
        """Without the query, whose values are nobody's business in a message."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def quoted(self) -> str:
        """The same as a URL again, for what decodes one."""
        return f"{self.scheme}://{_quote(self.authority + self.path)}"


def file_url(path: str | os.PathLike[str]) -> str:
    """Return the URL of a folder, whatever characters its path has; it is made absolute."""
    return f"file://{_quote(str(Path(path).absolute()))}"


def as_url(tier: str | os.PathLike[str]) -> str:
    """Return the URL of a tier that may be given as the path of its folder. What is neither is
    returned as it is, for `parse_tier_url` to refuse."""
    text = os.fspath(tier)
    is_path = text and "://" not in text and not _SCHEME_AND_COLON.match(text)
    return file_url(text) if is_path else text


def _quote(path: str) -> str:
    return quote(path, safe="/@:+,=~", errors="surrogateescape")


def _unquote(text: str) -> str:
    """Bytes that are no UTF-8 become what the names of such files are in Python."""
    return unquote(text, errors="surrogateescape")


def parse_tier_url(text: str) -> TierUrl:
    """Parse a tier's URL. Raises Invalid for what is no URL, has a user or password, or a parameter
    twice."""
    scheme, separator, rest = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        # what is mistyped may have a query with a secret
        shown = re.split("[?#]", show_url(text), maxsplit=1)[0]
        raise Invalid(
            f"tier {shown!r}: expected a URL such as file:///dir or s3://bucket/prefix, or the "
            "path of a folder (./ in front of a name with a colon)"
        )
    if scheme == "file":
        # a folder may have any name: `?` and `#` are characters of it
        return TierUrl("file", "", _unquote(rest), {})
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        pairs = parse_qsl(
            parts.query, keep_blank_values=True, strict_parsing=bool(parts.query), errors="strict"
        )
    except ValueError:
        raise Invalid(f"tier {show_url(text)!r}: not a valid URL") from None
    if "@" in parts.netloc:
        raise Invalid(
            f"tier {show_url(text)!r}: a user or password in a URL is refused, since shells, "
            "process lists and logs keep it: give keys in --config, or use the environment"
        )
    query = dict(pairs)
    if len(query) < len(pairs):
        raise Invalid(f"tier {show_url(text)!r}: a parameter is given twice")
    if parts.fragment:
        raise Invalid(f"tier {show_url(text)!r}: a URL of a tier has no fragment (#)")
    return TierUrl(scheme, _unquote(parts.netloc), _unquote(parts.path), query)


def show_url(text: str) -> str:
    """Return a URL without user, password, query and fragment. A folder's name is shown whole, as a
    URL or as a path."""
    scheme, separator, rest = text.partition("://")
    if scheme == "file" or not _SCHEME_AND_COLON.match(text):
        return text
    scheme, separator, rest = re.split("[?#]", text, maxsplit=1)[0].partition("://")
    if "@" in rest:
        rest = "…@" + rest.rpartition("@")[2]
    return scheme + separator + rest
