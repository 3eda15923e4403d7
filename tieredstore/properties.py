"""Conversion of the strings of a `broker.conf` into typed values, for the settings of the core and
of plugins.

A plugin declares its settings as a frozen msgspec struct, with one field for each setting:

    class AcmeSettings(msgspec.Struct, frozen=True, kw_only=True):
        PREFIXES: ClassVar = ("acmeTier",)
        bucket: Annotated[str, Meta(description="…")] = field(name="acmeTierBucket", default="")
        password: Annotated[str, Meta(description="…", extra=SECRET)] = field(…)

    class AcmeProvider:
        SETTINGS = AcmeSettings

`AcmeProvider.from_config` reads the values with `read_settings(AcmeSettings,
config.plugin_properties)`. The registry warns about each name that begins with one of the PREFIXES
but belongs to no field. The Python names of the fields are the parameters of the tier's URL.
"""

from __future__ import annotations

import difflib
import enum
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from tieredstore.errors import Invalid

SECRET: Mapping[str, bool] = {"secret": True}
"""Annotation (`Meta(extra=SECRET)`) of a key whose value is secret. A secret value is never shown,
and never taken from a URL."""
Secret = Annotated[str, msgspec.Meta(extra=dict(SECRET))]
"""Type of a secret text."""

_UNIT = re.compile("_(ms|bytes|hours)$")
_ANY = re.compile("[^\ud800-\udfff]*")  # all that can be encoded
_JAVA_LITERALS = {
    bool: re.compile("true|false", re.IGNORECASE),
    int: re.compile(r"[+-]?\d+", re.ASCII),
    float: re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII),
}


class PluginProperties(Mapping[str, str]):
    """Properties for plugins, which do not belong to `StoreConfig`. Values may be secrets, so the
    repr shows only keys. `origin`: source of the properties, for messages. `origins`: sources of
    single properties that come from elsewhere, by property."""

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
        """Return a copy with some values added or replaced. `origin`: source of the new values."""
        origins = {**self._origins, **dict.fromkeys(values, origin)}
        return PluginProperties({**self._values, **values}, self.origin, origins)

    def find_origin(self, key: str) -> str:
        """Return the source of a property."""
        return self._origins.get(key, self.origin)


_Settings = TypeVar("_Settings", bound=msgspec.Struct)


def make_key(name: str) -> str:
    """Return the default configuration key of a field: its name in camel case, without the unit."""
    first, *others = _UNIT.sub("", name).split("_")
    return first + "".join(map(str.capitalize, others))


def fields_by_key(declared: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    """Map each Java key to its field."""
    return {info.encode_name: info for info in msgspec.structs.fields(declared)}


def list_metas(info: msgspec.structs.FieldInfo) -> list[msgspec.Meta]:
    """Return the annotations of a field, such as its description, limits and secrecy."""
    return [part for part in typing.get_args(info.type) if isinstance(part, msgspec.Meta)]


def is_secret(info: msgspec.structs.FieldInfo) -> bool:
    return any((meta.extra or {}).get("secret") for meta in list_metas(info))


def make_extra(*, runtime: bool) -> dict[str, object] | None:
    """Return the `extra` of a key's annotation. `runtime`: whether the key may change while a
    broker runs (`mqadmin updateBrokerConfig`). Code that uses such a key must read it again each
    time."""
    return {"runtime": True} if runtime else None


def is_runtime(info: msgspec.structs.FieldInfo) -> bool:
    return any((meta.extra or {}).get("runtime") for meta in list_metas(info))


def read_settings(declared: type[_Settings], properties: PluginProperties) -> _Settings:
    """Read the declared settings from the properties. Raises Invalid."""
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
    """Return a warning for each unknown name that begins with one of the prefixes, suggesting the
    nearest known name. `find_origin`: returns the source of a name."""
    candidates = sorted(known)
    lines = []
    for name in names:
        if name.startswith(prefixes) and name not in candidates:
            close = difflib.get_close_matches(name, candidates, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            lines.append(f"{find_origin(name)}: unknown key {name}{hint}")
    return lines


def find_near_setting(name: str, names: Iterable[str]) -> str | None:
    """Return the name in `names` that `name` most likely misspells, ignoring case."""
    folded = {other.casefold(): other for other in names}
    close = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.8)
    return folded[close[0]] if close else None


def query_properties(
    declared: type[msgspec.Struct], query: Mapping[str, str], shown_url: str
) -> dict[str, str]:
    """Return the properties that the parameters of a tier's URL set. Parameters are Python names of
    fields. Raises Invalid for an unknown parameter, and for a secret, because shells, process lists
    and logs show URLs."""
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


def is_plain_text(info: msgspec.structs.FieldInfo) -> bool:
    """Return whether a setting accepts any text, including blanks."""
    return base_type(info.type) is str and not any(meta.pattern for meta in list_metas(info))


def base_type(annotation: Any) -> type[Any]:
    """Return the type without its annotations."""
    arguments = typing.get_args(annotation)
    base: type[object] = arguments[0] if arguments else annotation
    return base


def parse_value(info: msgspec.structs.FieldInfo, value: str, origin: str) -> object:
    """Parse one value as Java does. Raises Invalid with key and origin, never showing a secret."""
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
