"""What the lines of a broker.conf mean to all who read one: the store, the broker, the plugins."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from tieredstore import registry
from tieredstore.broker.settings import BROKER_FIELDS_BY_KEY, show_value
from tieredstore.config import FIELDS_BY_KEY, ConfLine, parse_setting, read_conf_lines
from tieredstore.errors import Invalid
from tieredstore.java_settings import (
    DECLINED_SETTINGS,
    REFUSED_VALUES,
    SETTINGS_ELSEWHERE,
    UNUSED_SETTINGS,
)
from tieredstore.properties import fields_by_key, find_near_setting, is_secret, parse_value

_NAMES: Mapping[str, Callable[[str], object]] = {
    "tieredBackendServiceProvider": registry.provider_class,
    "tieredMetadataServiceProvider": registry.check_metadata_store,
    "messageStorePlugIn": lambda names: [registry.store_plugin(n) for n in names.split(",") if n],
}
"""Keys that name plugins, and what raises Invalid where there is none of that name."""


class Level(enum.StrEnum):
    """How bad a finding is. A note: the key is Java's, and means nothing here."""

    ERROR = "error"
    WARNING = "warning"
    NOTE = "note"


class Given(NamedTuple):
    """A value that beats the file's, and where it comes from."""

    value: str | None
    origin: str


class Finding(NamedTuple):
    """Something about one line of a file."""

    level: Level
    line: int
    key: str
    problem: str


def read_with_findings(path: Path) -> tuple[list[ConfLine], list[Finding]]:
    """Read a broker.conf and what is to be said about it, in the order of its lines. Raises Invalid
    for a file that is none."""
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
    """Find the settings of all providers that are installed, and of the one that a file names."""
    named = [line.value for line in lines if line.key == "tieredBackendServiceProvider"]
    fields: dict[str, msgspec.structs.FieldInfo] = {}
    for name in (*registry.PROVIDERS, *named):
        try:
            declared = registry.plugin_settings(name)
        except Invalid:  # a library of it is not there; the name itself is judged at its line
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
    """Yield each setting with the value that counts, where it comes from, and what is to be said
    about it; behind them the lines that no known setting has, without their values: a misspelt
    secret may be one. origin: the file's name; given: settings that beat it."""
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
    refused_value, reason = REFUSED_VALUES.get(key, ("", ""))
    if reason and value.lower() == refused_value.lower():
        yield Level.ERROR, f"{value} is refused by a broker: {reason}"
    elif key in DECLINED_SETTINGS:
        yield Level.WARNING, f"declined: {DECLINED_SETTINGS[key]}"
    elif key in UNUSED_SETTINGS:
        yield Level.NOTE, f"no effect: {UNUSED_SETTINGS[key]}"
    elif key not in FIELDS_BY_KEY and key not in BROKER_FIELDS_BY_KEY and key not in plugin_fields:
        if key in SETTINGS_ELSEWHERE:
            yield Level.NOTE, "not supported"
        else:
            yield Level.WARNING, describe_unknown(key, plugin_fields)


def _find_error(
    key: str, value: str, plugin_fields: Mapping[str, msgspec.structs.FieldInfo]
) -> str | None:
    """Why a value cannot be taken, without the name of the file."""
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


def describe_unknown(key: str, plugin_fields: Mapping[str, object]) -> str:
    """Return what is to be said of a key that nobody knows."""
    known = {*FIELDS_BY_KEY, *SETTINGS_ELSEWHERE, *plugin_fields}
    near = find_near_setting(key, sorted(known))
    return f"unknown; did you mean {near}?" if near else "unknown: nothing here or in Java reads it"
