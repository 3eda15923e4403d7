"""The settings of a tier on an fsspec filesystem (`docs/fsspec.md`)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import orjson
from msgspec import Meta, field

from tieredstore.errors import Invalid
from tieredstore.properties import SECRET
from tieredstore.providers.chunks.shared_settings import SharedSettings
from tieredstore.providers.fsspec.errors import is_secret_name

OPTION = "option."
"""Begins the names of URL parameters that are options of the filesystem."""

_NUMBER = re.compile(r"-?(0|[1-9]\d{0,17})", re.ASCII)
_WORDS: Mapping[str, Any] = {"true": True, "false": False, "none": None}


class FsspecSettings(SharedSettings, frozen=True, kw_only=True):
    """Where the tier is and how its filesystem is opened. The repr has no secret."""

    PREFIXES: ClassVar[tuple[str, ...]] = ("tieredStoreFsspec", "tieredStoreChunk")

    place: Annotated[
        str,
        Meta(
            description="Ours. Protocol and path of the tier, such as `gs://bucket/prefix`.",
            pattern=r"^([A-Za-z][A-Za-z0-9+.-]*://.*)?$",
        ),
    ] = field(name="tieredStoreFsspecUrl", default="")
    options: Annotated[
        str,
        Meta(
            description="Ours. Options of the filesystem (fsspec's storage options), a JSON "
            "object. May hold secrets: never in a URL, a log or an error.",
            extra=dict(SECRET),
        ),
    ] = field(name="tieredStoreFsspecOptions", default="")
    atomic_writes: Annotated[
        bool,
        Meta(
            description="Ours. Vouches that a write which is cut short leaves nothing behind, on "
            "a filesystem of which that is not known."
        ),
    ] = field(name="tieredStoreFsspecAtomicWrites", default=False)

    def __repr__(self) -> str:
        protocol, separator, rest = self.place.partition("://")
        return f"FsspecSettings(place={protocol + separator + rest.rpartition('@')[2]!r})"

    def storage_options(self) -> dict[str, Any]:
        """Return the options as a mapping. Raises Invalid for what is no JSON object, without
        showing it."""
        return parse_options(self.options)


def parse_options(text: str) -> dict[str, Any]:
    """Parse storage options out of their JSON text. Raises Invalid without showing it."""
    if not text:
        return {}
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        found = None
    if not isinstance(found, dict):
        raise Invalid("tieredStoreFsspecOptions: expected a JSON object (not shown)")
    return found


def url_options(query: Mapping[str, str], shown_url: str) -> dict[str, Any]:
    """Find the storage options among the parameters of a URL: `option.<name>=<value>`.

    true, false, none and whole numbers are what they say, the rest is text. Raises Invalid for
    what looks like a secret, which has no place in a URL.
    """
    found: dict[str, Any] = {}
    for parameter, value in query.items():
        if not parameter.startswith(OPTION):
            continue
        name = parameter.removeprefix(OPTION)
        if is_secret_name(name):
            raise Invalid(
                f"tier {shown_url}: {parameter} may be a secret and is not taken from a URL: give "
                "tieredStoreFsspecOptions in --config, or use the environment"
            )
        if _NUMBER.fullmatch(value):
            found[name] = int(value)
        else:
            found[name] = _WORDS.get(value.lower(), value)
    return found
