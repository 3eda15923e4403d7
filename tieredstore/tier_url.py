"""Location of a tier as users write it: `file:///dir`, `s3://bucket/prefix?region=…`, `some/dir`.

A string with `://` is a URL and is percent-decoded once. Any other text is an unquoted path.
Errors, logs and process lists show URLs, so a URL with a secret is refused and never shown.
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
    """Parts of a URL, percent-decoded. `authority` has no user and no password."""

    scheme: str
    authority: str
    path: str
    query: Mapping[str, str]

    def __str__(self) -> str:
        """Return the URL without the query, whose values may be secret."""
        return f"{self.scheme}://{self.authority}{self.path}"

    @property
    def quoted(self) -> str:
        """This location as a percent-encoded URL, for callers that decode it."""
        return f"{self.scheme}://{_quote(self.authority + self.path)}"


def file_url(path: str | os.PathLike[str]) -> str:
    """Return the URL of a folder as an absolute path, which may contain any characters."""
    return f"file://{_quote(str(Path(path).absolute()))}"


def as_url(tier: str | os.PathLike[str]) -> str:
    """Return the URL of a tier. `tier`: a URL or the path of a folder. A string that is neither is
    returned unchanged, and `parse_tier_url` rejects it."""
    text = os.fspath(tier)
    is_path = text and "://" not in text and not _SCHEME_AND_COLON.match(text)
    return file_url(text) if is_path else text


def _quote(path: str) -> str:
    return quote(path, safe="/@:+,=~", errors="surrogateescape")


def _unquote(text: str) -> str:
    """Percent-decode a string. Bytes that are not UTF-8 become surrogate escapes, as in Python's
    file names."""
    return unquote(text, errors="surrogateescape")


def parse_tier_url(text: str) -> TierUrl:
    """Parse a tier's URL. Raises Invalid if the string is not a URL, has a user or password, or
    repeats a parameter."""
    scheme, separator, rest = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        # a mistyped URL may have a query with a secret
        shown = re.split("[?#]", show_url(text), maxsplit=1)[0]
        raise Invalid(
            f"tier {shown!r}: expected a URL such as file:///dir or s3://bucket/prefix, or the "
            "path of a folder (./ in front of a name with a colon)"
        )
    if scheme == "file":
        # a folder may have any name: `?` and `#` are ordinary characters
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
    """Return a URL without user, password, query and fragment. The URL or path of a folder is
    unchanged."""
    scheme, separator, rest = text.partition("://")
    if scheme == "file" or not _SCHEME_AND_COLON.match(text):
        return text
    scheme, separator, rest = re.split("[?#]", text, maxsplit=1)[0].partition("://")
    if "@" in rest:
        rest = "…@" + rest.rpartition("@")[2]
    return scheme + separator + rest
