"""Strings of a `broker.conf` become typed values, for the core's settings and for plugins'.

A plugin declares its settings as a frozen msgspec struct, a field a setting:

    class AcmeSettings(msgspec.Struct, frozen=True, kw_only=True):
        PREFIXES: ClassVar = ("acmeTier",)
        bucket: Annotated[str, Meta(description="…")] = field(name="acmeTierBucket", default="")
        password: Annotated[str, Meta(description="…", extra=SECRET)] = field(…)

    class AcmeProvider:
        SETTINGS = AcmeSettings

`from_config` gets its values by `read_settings(AcmeSettings, config.plugin_properties)`; the
registry warns about names with one of the PREFIXES that no field has. The Python names of the
fields are the parameters of the tier's URL.
"""

from __future__ import annotations

import difflib
import enum
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from tieredstore.errors import Invalid

SECRET: Mapping[str, bool] = {"secret": True}
"""`Meta(extra=SECRET)` marks a key whose value is never shown and never taken from a URL."""

_ANY = re.compile(".*", re.DOTALL)
_JAVA_LITERALS = {
    bool: re.compile("true|false", re.IGNORECASE),
    int: re.compile(r"[+-]?\d+", re.ASCII),
    float: re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII),
}


class PluginProperties(Mapping[str, str]):
    """The properties that are not the core's. Values may be secrets: the repr has the keys alone.

    origin: where they are from, for messages; origins: of those that are from elsewhere.
    """

    def __init__(
        self,
        values: Mapping[str, str] | None = None,
        origin: str = "config",
        origins: Mapping[str, str] | None = None,
    ) -> None:
        self._values = dict(values or {})
        self.origin = origin
        self._origins = dict(origins or {})

    def __getitem__(self, key: str) -> str:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PluginProperties) and self._values == other._values

    def __repr__(self) -> str:
        return f"PluginProperties({', '.join(sorted(self._values))})"

    def with_values(self, values: Mapping[str, str], origin: str) -> PluginProperties:
        """Return a copy in which `values`, which are from `origin`, win."""
        origins = {**self._origins, **dict.fromkeys(values, origin)}
        return PluginProperties({**self._values, **values}, self.origin, origins)

    def find_origin(self, key: str) -> str:
        """Find where a property is from."""
        return self._origins.get(key, self.origin)


_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def fields_by_key(declared: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Map each Java key to its field."""
    return {info.encode_name: info for info in msgspec.structs.fields(declared)}


def get_meta(info: msgspec.structs.FieldInfo) -> msgspec.Meta:
    """Return the annotation of a field: description, limits, whether it is a secret."""
    for part in typing.get_args(info.type):
        if isinstance(part, msgspec.Meta):
            return part
    return msgspec.Meta()


def is_secret(info: msgspec.structs.FieldInfo) -> bool:
    return bool((get_meta(info).extra or {}).get("secret"))


def make_extra(*, runtime: bool) -> dict[str, Any] | None:
    """Return the `extra` of a key's annotation. runtime: whether it may be changed while a broker
    runs (`mqadmin updateBrokerConfig`): who needs it reads it each time."""
    return {"runtime": True} if runtime else None


def is_runtime(info: msgspec.structs.FieldInfo) -> bool:
    return bool((get_meta(info).extra or {}).get("runtime"))


def read_settings(declared: type[_Settings], properties: PluginProperties) -> _Settings:
    """Read the declared settings with the values that the properties have. Raises Invalid."""
    known = fields_by_key(declared)
    values = {
        known[key].name: parse_value(known[key], value, properties.find_origin(key))
        for key, value in properties.items()
        if key in known
    }
    return declared(**values)


def find_unknown_settings(
    names: Iterable[str],
    prefixes: tuple[str, ...],
    known: Iterable[str],
    find_origin: Callable[[str], str],
) -> list[str]:
    """Return a line for each name with one of the prefixes that is not known, with the nearest
    match. find_origin: tells where a name is from."""
    candidates = sorted(known)
    lines = []
    for name in names:
        if name.startswith(prefixes) and name not in candidates:
            close = difflib.get_close_matches(name, candidates, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            lines.append(f"{find_origin(name)}: unknown key {name}{hint}")
    return lines


def find_near_setting(name: str, names: Iterable[str]) -> str | None:
    """Find the one of `names` that `name` most likely misspells; letters' case does not count."""
    folded = {other.casefold(): other for other in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.8)
    return folded[close[0]] if close else None


def query_properties(
    declared: type[msgspec.Struct], query: Mapping[str, str], shown_url: str
) -> dict[str, str]:
    """Return the properties that the parameters of a tier's URL mean: a field's Python name each.

    Raises Invalid for an unknown one and for a secret, which has no place in a URL: shells,
    process lists and logs keep it.
    """
    fields = {info.name: info for info in msgspec.structs.fields(declared)}
    found = {}
    for name, value in query.items():
        info = fields.get(name)
        if info is None:
            close = difflib.get_close_matches(name, sorted(fields), n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise Invalid(f"tier {shown_url}: unknown parameter {name!r}{hint}")
        if is_secret(info):
            raise Invalid(
                f"tier {shown_url}: {name} is a secret and is not taken from a URL: give "
                f"{info.encode_name} in --config, or use the environment or a profile"
            )
        found[info.encode_name] = value
    return found


def base_type(annotation: Any) -> type[Any]:
    """Return the type below its annotations."""
    arguments = typing.get_args(annotation)
    base: type[Any] = arguments[0] if arguments else annotation
    return base


def parse_value(info: msgspec.structs.FieldInfo, value: str, origin: str) -> object:
    """Parse one value, written as Java reads it. Raises Invalid naming key and origin, never a
    secret."""
    key, kind = info.encode_name, base_type(info.type)
    shown = "a secret" if is_secret(info) else repr(value)
    if not _JAVA_LITERALS.get(kind, _ANY).fullmatch(value):
        raise Invalid(f"{origin}: {key}: expected a {kind.__name__}, found {shown}", path=origin)
    if issubclass(kind, enum.Enum):
        # by its value, or by its name
        names = {str(name): member for name, member in kind.__members__.items()}
        if value in names:
            return names[value]
    try:
        return msgspec.convert(value, info.type, strict=False)
    except msgspec.ValidationError as error:
        reason = "not valid" if is_secret(info) else str(error)
        raise Invalid(f"{origin}: {key}={shown}: {reason}", path=origin) from None
