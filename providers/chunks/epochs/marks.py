"""Identity of a tier and marks of its writers, inside the epoch objects. Each writer copies the
identity into its epoch, so the newest epochs contain it without an extra object."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

import orjson

from tieredstore.contracts.objects import ObjectClient
from tieredstore.contracts.tier_identity import TierMark, WriterKind, WriterMark
from tieredstore.providers.chunks.manifests.epoch_manifest import FORMAT_VERSION, check_format
from tieredstore.timestamps import format_time

MAX_OWNER_BYTES: Final = 4_096
EPOCH_NAME: Final = re.compile(r"([0-9]{20})(\.released)?", re.ASCII)
_STORE_NAME: Final = re.compile(r"([0-9]{20})\.store", re.ASCII)


def describe_last_writer(client: ObjectClient, folder: str) -> str | None:
    """Return a description of the current or last owner of the newest epoch in a folder, or None
    without an epoch."""
    number, _ = find_latest_epoch(client, folder)
    if not number:
        return None
    holder = read_holder(client, folder, number)
    since = holder.get("since_ms")
    when = format_time(since) if isinstance(since, int) else "an unknown time"
    return f"{holder['owner']} since {when}"


def find_latest_epoch(client: ObjectClient, folder: str, known: int = 0) -> tuple[int, bool]:
    """Return the number of the newest epoch, or 0 without one, and whether it was released. The
    search begins at the earlier epoch `known`. If it finds nothing, the folder now belongs to
    another tier, and all epochs are listed."""
    start_after = f"{folder}/{known - 1:020d}.released" if known > 0 else ""
    found = _find_latest_behind(client, folder, start_after)
    return found if found[0] or not start_after else _find_latest_behind(client, folder, "")


def find_stores(client: ObjectClient, folder: str, known: int) -> tuple[int, frozenset[int]]:
    """Return the number of the newest epoch, and the epochs whose owner has become a store since it
    took the epoch. `known`: as in `find_latest_epoch`. Earlier epochs are omitted."""
    start_after = f"{folder}/{known - 1:020d}.store" if known > 0 else ""
    names = _list_names(client, folder, start_after)
    latest, _ = _find_latest(names)
    if not latest and start_after:
        names = _list_names(client, folder, "")
        latest, _ = _find_latest(names)
    matches = (match for name in names if (match := _STORE_NAME.fullmatch(name)) is not None)
    return latest, frozenset(int(match[1]) for match in matches)


def _find_latest_behind(client: ObjectClient, folder: str, start_after: str) -> tuple[int, bool]:
    return _find_latest(_list_names(client, folder, start_after))


def _list_names(client: ObjectClient, folder: str, start_after: str) -> list[str]:
    return [found.key.rpartition("/")[2] for found in client.list(f"{folder}/", start_after)]


def _find_latest(names: list[str]) -> tuple[int, bool]:
    matches = [match for name in names if (match := EPOCH_NAME.fullmatch(name)) is not None]
    latest = max((int(match[1]) for match in matches), default=0)
    return latest, any(int(match[1]) == latest and match[2] for match in matches)


def read_holder(client: ObjectClient, folder: str, number: int) -> dict[str, object]:
    content = client.get_range(f"{folder}/{number:020d}", 0, MAX_OWNER_BYTES)
    try:
        found = orjson.loads(content or b"{}")
    except orjson.JSONDecodeError:
        found = {}
    if not isinstance(found, dict):
        found = {}
    check_format(found.get("format", FORMAT_VERSION), folder)
    return {"owner": "unknown", **found}


_MOST_WRITERS: Final = 256
_MOST_UNMARKED: Final = 16
"""Maximum number of epochs without a mark that are read to find the identity. Epochs of an older
version have no mark."""


def describe_mark(mark: WriterMark | None) -> dict[str, object]:
    """Return the fields that an epoch object stores for a writer's mark. `mark`: None for a job,
    because a job has no mark."""
    if mark is None:
        return {"kind": WriterKind.JOB.value}
    return {"tier": mark.identity, "kind": mark.kind.value, "store": mark.store}


def is_store(holder: Mapping[str, object]) -> bool | None:
    """Return whether the owner of an epoch was a store, according to the epoch's object. Return
    None for a store that was still starting. Objects of older versions lack this information and
    count as stores."""
    kind = holder.get("kind")
    return None if kind == WriterKind.STARTING.value else kind != WriterKind.JOB.value


def read_marks(
    number: int,
    since: int,
    stores: Collection[int],
    read_holder: Callable[[int], Mapping[str, object]],
) -> TierMark:
    """Return the identity of a tier, and the marks of the writers of epochs `since` to `number`,
    the newest epoch. With `since` 0, read only the newest mark, and older ones if they are needed
    for the identity. `stores`: epochs whose owner has become a store since it took the epoch.
    Raises the errors of `read_holder`."""
    identity: str | None = None
    writers: dict[int, WriterMark | None] = {}
    first = max(min(since or number, number), number - _MOST_WRITERS + 1, 1)
    for current in range(number, 0, -1):
        if current < first and (identity is not None or number - current >= _MOST_UNMARKED):
            break
        holder = read_holder(current)
        found = _parse_mark(holder)
        if found is not None and found.kind is WriterKind.STARTING and current in stores:
            found = replace(found, kind=WriterKind.STORE)
        if found is not None and found.identity and identity is None:
            identity = found.identity
        writers[current] = found
    older = min(writers) - 1
    older_store = max((it for it in stores if it <= older), default=0)
    return TierMark(identity, number, writers, older=older, older_store=older_store)


def _parse_mark(holder: Mapping[str, object]) -> WriterMark | None:
    """Parse a mark. Returns None for an epoch of an older version."""
    kind, token = holder.get("kind"), holder.get("token")
    if kind not in set(WriterKind) or not isinstance(token, str):
        return None
    return WriterMark(
        str(holder.get("tier") or ""), token, WriterKind(str(kind)), str(holder.get("store") or "")
    )
