"""Settings in a broker.conf, checked by all parts that read it: the store, the broker and
plugins."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from tieredstore import java_settings, registry
from tieredstore.broker.settings import BROKER_FIELDS_BY_KEY, show_value
from tieredstore.config import FIELDS_BY_KEY, ConfLine, parse_setting, read_conf_lines
from tieredstore.errors import Invalid
from tieredstore.properties import fields_by_key, find_near_setting, is_secret, parse_value

_NAMES: Mapping[str, Callable[[str], object]] = {
    "tieredBackendServiceProvider": registry.provider_class,
    "tieredMetadataServiceProvider": registry.check_metadata_store,
    "messageStorePlugIn": lambda names: [registry.store_plugin(n) for n in names.split(",") if n],
}
"""Keys of a broker.conf whose values name plugins, with a function that raises Invalid for an
unknown plugin."""
_UNKNOWN: Final = "unknown"
_LOGGED_PREFIXES: Final = ("tiered", "readAhead")


class Level(enum.StrEnum):
    """Severity of a finding. A note is about a key of Java's that this project ignores."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Given(NamedTuple):
    """Value that overrides a key of the file. `origin`: source of the value."""

    value: str | None
    origin: str


class Finding(NamedTuple):
    """Finding about a line of a file."""

    level: Level
    line: int
    key: str
    problem: str


def read_with_findings(path: Path) -> tuple[list[ConfLine], list[Finding]]:
    """Read the lines of a broker.conf. Returns them with the findings, in line order. Raises
    Invalid if the file is not a broker.conf."""
    lines = read_conf_lines(path)
    last = {line.key: line.number for line in lines}
    plugin_fields = find_plugin_fields(lines)
    findings = []
    for line in lines:
        if last[line.key] != line.number:
            problem = f"does not count: line {last[line.key]} has the key again"
            findings.append(Finding(Level.WARNING, line.number, line.key, problem))
        else:
            findings += [
                Finding(level, line.number, line.key, problem)
                for level, problem in _judge(line, plugin_fields)
            ]
    return lines, findings


def find_plugin_fields(lines: Sequence[ConfLine]) -> dict[str, msgspec.structs.FieldInfo]:
    """Return the settings of this project's providers and of the provider named in the
    broker.conf."""
    named = [line.value for line in lines if line.key == "tieredBackendServiceProvider"]
    fields: dict[str, msgspec.structs.FieldInfo] = {}
    for name in (*registry.PROVIDERS, *named):
        try:
            declared = registry.plugin_settings(name)
        except Invalid:  # a library of it is missing. Its name is judged at its line
            continue
        if declared is not None:
            fields |= fields_by_key(declared)
    return fields


def list_effective(
    lines: Sequence[ConfLine],
    findings: Sequence[Finding],
    origin: str,
    given: Mapping[str, Given],
) -> Iterator[dict[str, object]]:
    """Yield each setting with its effective value, its source and its findings. Settings with
    unknown keys follow without values, because a misspelt setting may be a secret. `origin`: name
    of the file. `given`: settings that override those of the file."""
    plugin_fields = find_plugin_fields(lines)
    of_file = {line.key: line for line in lines}
    said = {(finding.key, finding.line): finding.problem for finding in findings}
    fields = {**FIELDS_BY_KEY, **BROKER_FIELDS_BY_KEY, **plugin_fields}
    for key in (*fields, *(key for key in of_file if key not in fields)):
        line, info = of_file.get(key), fields.get(key)
        if key in given:
            value, where = given[key]
        elif line is not None:
            value, where = line.value, f"{origin}:{line.number}"
        else:
            value, where = None, "default"
        yield {
            "key": key,
            "value": None if info is None else _show(info, value),
            "origin": where,
            "problem": said.get((key, line.number)) if line and key not in given else None,
        }


def _show(info: msgspec.structs.FieldInfo, value: str | None) -> str:
    if value is None:
        default = info.default
        if info.default_factory is not msgspec.NODEFAULT:
            default = info.default_factory()
        value = default.name if isinstance(default, enum.Enum) else show_value(default)
    return "a secret" if value and is_secret(info) else value


def _judge(
    line: ConfLine, plugin_fields: Mapping[str, msgspec.structs.FieldInfo]
) -> Iterator[tuple[Level, str]]:
    key, value = line.key, line.value
    problem = _find_error(key, value, plugin_fields)
    if problem is not None:
        yield Level.ERROR, problem
    refused_value, reason = java_settings.REFUSED_VALUES.get(key, ("", ""))
    if reason and value.lower() == refused_value.lower():
        yield Level.ERROR, f"{value} is refused by a broker: {reason}"
    elif key in java_settings.DECLINED_SETTINGS:
        yield Level.WARNING, f"declined: {java_settings.DECLINED_SETTINGS[key]}"
    elif key in java_settings.UNUSED_SETTINGS:
        yield Level.NOTE, f"no effect: {java_settings.UNUSED_SETTINGS[key]}"
    elif key in java_settings.REMOVED_SETTINGS:
        yield Level.WARNING, f"no longer a setting: {java_settings.REMOVED_SETTINGS[key]}"
    elif key not in FIELDS_BY_KEY and key not in BROKER_FIELDS_BY_KEY and key not in plugin_fields:
        if key in java_settings.SETTINGS_ELSEWHERE:
            yield Level.NOTE, "without effect here"
        else:
            yield Level.WARNING, describe_unknown(key, plugin_fields)


def _find_error(
    key: str, value: str, plugin_fields: Mapping[str, msgspec.structs.FieldInfo]
) -> str | None:
    try:
        if key in FIELDS_BY_KEY:
            parse_setting(key, value, "")
        for fields in (BROKER_FIELDS_BY_KEY, plugin_fields):
            if key in fields:
                parse_value(fields[key], value, "")
        if key in _NAMES and value:
            _NAMES[key](value)
    except Invalid as error:
        return str(error).removeprefix(": ").removeprefix(f"{key}: ").removeprefix(f"{key}=")
    return None


def list_unknown(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield the findings about unknown keys that a broker does not log at startup."""
    for finding in findings:
        if finding.problem.startswith(_UNKNOWN) and not finding.key.startswith(_LOGGED_PREFIXES):
            yield finding


def describe_unknown(key: str, plugin_fields: Mapping[str, object]) -> str:
    known = {*FIELDS_BY_KEY, *java_settings.SETTINGS_ELSEWHERE, *plugin_fields}
    near = find_near_setting(key, sorted(known))
    return (
        f"{_UNKNOWN}, did you mean {near}?"
        if near
        else f"{_UNKNOWN}: no part of it or of Java reads it"
    )
