"""What a target remembers of the exports into it, kept there in one commit with the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.exporting.partition import BY_TOPIC_AND_DAY, Partition
from tieredstore.jobs.exporting.request import Accept, ExportRequest
from tieredstore.jobs.exporting.targets.storage import Folder
from tieredstore.scan.location import TierLocation
from tieredstore.tier_url import show_url

COMPACTED_VERSION = 3
"""Of a state of plain Parquet whose files were compacted once: its commits are not numbered by
exports any more. Else 2 of one whose identity has one of `_LATER_NAMES`, and 1 of one without,
which earlier versions of this program go on with."""
VERSION = COMPACTED_VERSION


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Up to where a queue was exported.

    next_offset: of the first message that was not. marked_offset: of the last one that was and that
    could be read; physical_offset, store_timestamp_ms: its place and time, by which a queue that
    was made again is told. None where there was none; of marked_offset alone in states of earlier
    versions, for the message in front of next_offset.
    """

    next_offset: int
    physical_offset: int | None = None
    store_timestamp_ms: int | None = None
    marked_offset: int | None = None

    def move_to(self, next_offset: int) -> Position:
        """Return the same mark with another next offset."""
        marked = self.next_offset - 1 if self.marked_offset is None else self.marked_offset
        return Position(next_offset, self.physical_offset, self.store_timestamp_ms, marked)


@dataclass(frozen=True, slots=True)
class TargetState:
    """The target after its last export. sequence: counts exports, from 1; 0 before the first.
    export: the id of the last one. identity: what the target is a copy of. queues: by
    `broker/topic/queueId`. taken_from: by the same, of a target without duplicates, the first
    offset from which every message up to the queue's position was exported or is a duplicate."""

    sequence: int = 0
    export: str = ""
    identity: dict[str, Any] = field(default_factory=dict)
    queues: dict[str, Position] = field(default_factory=dict)
    version: int = 1
    taken_from: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class ColumnStatistics(msgspec.Struct, frozen=True, array_like=True):
    """Of a plain column in a data file. nulls: rows without a value. least, most: bounds of the
    values, times in µs, texts by their first characters; None where they are not known."""

    nulls: int
    least: int | str | None = None
    most: int | str | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file, as the task wrote it. name: in the folder of the tasks. statistics: of the
    columns that have them. row_groups: bytes in front of each."""

    name: str
    partition: Partition
    rows: int
    size_bytes: int
    statistics: dict[str, ColumnStatistics] = field(default_factory=dict)
    row_groups: list[int] = field(default_factory=list)


class Target(Protocol):
    """A table or folder that is exported into."""

    @property
    def file_columns(self) -> tuple[str, ...]:
        """Columns that data files have; the others stand in their partition."""

    def prepare(self) -> None:
        """Look whether the target can be exported into, and end what an export that was killed left
        undone. Makes none. Raises Invalid for a place that has data of others, Unavailable."""

    def make(self) -> None:
        """Make the target where it is missing. Raises as `prepare`, for another export may have
        made another one."""

    def load(self) -> TargetState:
        """Read the target's state as it is now, that before the first export where there is no
        target. Raises Corrupt, Unavailable."""

    def folder(self, base: int, export: str) -> Folder:
        """Return where the tasks of an export write, so that no reader of the target sees it; base:
        the sequence that the export goes out from."""

    def commit(self, state: TargetState, files: Sequence[DataFile]) -> str | None:
        """Add the files and set the state, at once or not at all, if the target's sequence is still
        the one before; else None. What it returns names the commit. Raises Unavailable."""

    def find_commit(self, state: TargetState) -> str:
        """Return the name of the commit that made `state`, which `load` returned, when the data are
        where readers look for them."""

    def discard(self, folder: Folder, names: Sequence[str]) -> None:
        """Remove files that no commit names. Best effort."""


def decode_state(data: bytes | str, where: str) -> TargetState:
    """Decode the state of a target. Raises Corrupt, and Invalid for a state of a later version."""
    try:
        state: TargetState = msgspec.json.decode(data, type=TargetState)
    except msgspec.DecodeError as error:
        raise Corrupt(f"{where}: not the state of an export: {error}", path=where) from error
    if state.version not in range(1, VERSION + 1):
        raise Invalid(
            f"{where}: written by another version of this program: expected state version 1 to "
            f"{VERSION}, found {state.version}",
            path=where,
        )
    return state


def identity_of(location: TierLocation, request: ExportRequest) -> dict[str, object]:
    """Return what a target is a copy of."""
    return {
        "tier": show_url(location.url),
        "cluster": location.config.broker_cluster_name,
        "broker": location.broker,
        **request.describe_selection(),
        "columns": list(request.column_names),
        **request.describe_form(),
    }


def version_of(identity: Mapping[str, object]) -> int:
    """Return the version of a state with this identity."""
    return 1 if identity.keys().isdisjoint(_LATER_NAMES) else 2


def require_columns(
    where: str, ours: Sequence[str], found: Sequence[str], required: Sequence[str]
) -> None:
    """Raise Invalid where a table lacks columns of the export, or where others that it has need a
    value. Columns that were added to it stay null."""
    missing = [name for name in ours if name not in found]
    needed = [name for name in required if name not in ours]
    if missing:
        raise Invalid(
            f"{where}: a table of other columns: expected {list(ours)}, found {list(found)}"
        )
    if needed:
        raise Invalid(
            f"{where}: column {needed[0]!r} was added and must have a value: expected a column "
            "that may be null"
        )


_DEFAULTS: Mapping[str, object] = {"partition_by": BY_TOPIC_AND_DAY.names}
_LATER_NAMES = frozenset({"partition_by", "body_schema", "body_prefix", "dedup_window_ms"})
_ACCEPTED_BY: Mapping[str, Accept] = {
    "tier": Accept.MOVED,
    "topics": Accept.TOPICS,
    "topic_pattern": Accept.TOPICS,
    "brokers": Accept.TOPICS,
    "queue_ids": Accept.TOPICS,
    "broker": Accept.TOPICS,
}


def require_same(
    state: TargetState, identity: Mapping[str, object], request: ExportRequest
) -> None:
    """Raise Invalid where a target is a copy of something else."""
    if not state.sequence:
        return
    for name in {**identity, **state.identity}:
        expected, found = (of.get(name, _DEFAULTS.get(name)) for of in (state.identity, identity))
        way = _ACCEPTED_BY.get(name)
        if expected != found and (way is None or way not in request.accept):
            hint = "export into another target" if way is None else f"--accept {way} goes on"
            raise Invalid(
                f"{request.target}: holds an export of another {name}: expected {expected}, found "
                f"{found}; {hint}"
            )
