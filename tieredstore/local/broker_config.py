"""Configuration files of a broker in its store's `config/`: topics, groups, offsets and
permissions.

If Java keeps them in RocksDB databases, they are converted to the equivalent files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from tieredstore.disk.errors import RETRY_LATER, wrap_os_errors
from tieredstore.disk.file_operations import FILES, cut_zeros
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.java_json import quote_integer_keys
from tieredstore.local.queues.rocksdb.database import CURRENT_FILE, read_family

_CONFIG_DIRECTORY: Final = "config"
_DATA: Final = "default"
_MOST_READS: Final = 3
_VERSION: Final = "kvDataVersion"
_VERSION_KEY: Final = b"kvDataVersionKey"
_FORBIDDEN: Final = "forbidden"
_OTHERS: Final = {
    "metadata": "topics, groups and offsets in one database (useSingleRocksDBForAllConfigs)",
    "rdb": "topics, groups and offsets in a database of another form (configManagerVersion=v2)",
}


_USERS: Final = ("authUsers.json", "users", "auth_user")
"""Files with a broker's users and their passwords: this project's file, and Java's database."""


class _Database(NamedTuple):
    """Database with part of a Java broker's configuration. `folders`: possible names of its folder,
    of which a store has at most one."""

    folders: tuple[str, ...]
    read: Callable[[Path], dict[str, object]]


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Configuration files of a broker. `contents`: bytes by file name in `config/`. `left_out`:
    reasons by name, for files that cannot be read."""

    contents: dict[str, bytes] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


def read_broker_config(root: Path, names: Sequence[str]) -> BrokerConfig:
    """Read a consistent state of each of the broker's configuration files. The broker may be
    running. Raises Unavailable."""
    found = BrokerConfig()
    folder = root / _CONFIG_DIRECTORY
    for name in names:
        data = _read_file(folder / name)
        database = _DATABASES.get(name)
        place = None if database is None else _find_database(folder, database.folders)
        if database is not None and place is not None:
            try:
                table = _read_database(database, place)
            except (TieredStoreError, ValueError, KeyError, TypeError) as error:
                found.left_out[name] = f"{place}: {error}"
                continue
            if data is None or _count_changes(data) <= _count_changes(table):
                data = orjson.dumps(table)
        if data is not None:
            found.contents[name] = data
    for name, reason in _OTHERS.items():
        if (folder / name / CURRENT_FILE).exists():
            found.left_out[name] = f"{folder / name}: {reason} is not read"
    users = [folder / name for name in _USERS if (folder / name).exists()]
    if users:
        found.left_out[_USERS[0]] = (
            f"{users[0]}: users and their passwords are in no backup, because every reader of the "
            "tier could read them. Create them again after a restore"
        )
    return found


def _find_database(folder: Path, names: Sequence[str]) -> Path | None:
    places = [folder / name for name in names if (folder / name / CURRENT_FILE).exists()]
    return places[0] if places else None


def _read_database(database: _Database, folder: Path) -> dict[str, object]:
    """Read a database, and repeat this if the broker deleted a file during the read."""
    for _ in range(_MOST_READS - 1):
        with suppress(Unavailable):
            return database.read(folder)
    return database.read(folder)


def _read_file(path: Path) -> bytes | None:
    """Read a file, or its `.bak` if the file is empty or being replaced."""
    for place in (path, path.with_name(f"{path.name}.bak")):
        with wrap_os_errors("read", place, invalid=RETRY_LATER), suppress(FileNotFoundError):
            if data := cut_zeros(FILES.read(place)):
                return bytes(data)
    return None


def _count_changes(table: bytes | Mapping[str, Any]) -> int:
    try:
        found = orjson.loads(quote_integer_keys(table)) if isinstance(table, bytes) else table
        return int(found["dataVersion"]["counter"])
    except (ValueError, KeyError, TypeError, TieredStoreError):
        return -1


def _read_rows(directory: Path, family: str = _DATA) -> dict[str, Any]:
    rows = read_family(directory, family)
    return {key.decode(): orjson.loads(quote_integer_keys(value)) for key, value in rows}


def _read_version(directory: Path) -> dict[str, Any]:
    version = dict(read_family(directory, _VERSION)).get(_VERSION_KEY)
    return {} if version is None else {"dataVersion": orjson.loads(version)}


def _read_topics(directory: Path) -> dict[str, object]:
    return {**_read_version(directory), "topicConfigTable": _read_rows(directory)}


def _read_groups(directory: Path) -> dict[str, object]:
    return {
        **_read_version(directory),
        "forbiddenTable": _read_rows(directory, _FORBIDDEN),
        "subscriptionGroupTable": _read_rows(directory),
    }


def _read_offsets(directory: Path) -> dict[str, object]:
    rows = _read_rows(directory)
    return {"offsetTable": {key: value["offsetTable"] for key, value in rows.items()}}


def _read_acls(directory: Path) -> dict[str, object]:
    """Return the permissions of all users in the format of this project's `authAcls.json`."""
    return {
        "acls": {
            subject: {
                "subject": subject,
                "policies": [_show_policy(policy) for policy in acl["policies"] or ()],
            }
            for subject, acl in _read_rows(directory).items()
        }
    }


def _show_policy(policy: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "policyType": _POLICY_TYPES[policy["policyType"]],
        "entries": [
            {
                "resource": _show_resource(entry["resource"]),
                "actions": [_ACTIONS[action] for action in entry["actions"]],
                "sourceIps": (entry.get("environment") or {}).get("sourceIps"),
                "decision": _DECISIONS[entry["decision"]],
            }
            for entry in policy["entries"] or ()
        ],
    }


def _show_resource(resource: Mapping[str, Any]) -> str:
    kind = _RESOURCE_TYPES[resource["resourceType"]]
    if kind == _ANY:
        return _ANY
    name = resource.get("resourceName") or ""
    return f"{kind}:{_PATTERNS[resource['resourcePattern']].format(name)}"


_ANY: Final = "*"
# Java writes the codes of its enums. An unknown code raises KeyError: a skipped rule might be one
# that denies.
_POLICY_TYPES: Final = {1: "Custom", 2: "Default"}
_DECISIONS: Final = {1: "Allow", 2: "Deny"}
_RESOURCE_TYPES: Final = {1: _ANY, 2: "Cluster", 4: "Topic", 5: "Group"}
_PATTERNS: Final = {1: _ANY, 2: "{}", 3: "{}*"}
_ACTIONS: Final = {
    1: "All",
    3: "Pub",
    4: "Sub",
    5: "Create",
    6: "Update",
    7: "Delete",
    8: "Get",
    9: "List",
}
_DATABASES: Final[Mapping[str, _Database]] = {
    "topics.json": _Database(("topics",), _read_topics),
    "subscriptionGroup.json": _Database(("subscriptionGroups",), _read_groups),
    "consumerOffset.json": _Database(("consumerOffsets",), _read_offsets),
    "authAcls.json": _Database(("acls", "auth_acl"), _read_acls),
}
