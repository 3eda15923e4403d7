"""State of a target: its export positions, which are committed together with the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.exporting.partition import BY_TOPIC_AND_DAY, Partition
from tieredstore.jobs.exporting.request import Accept, ExportRequest
from tieredstore.jobs.exporting.targets.storage import Folder
from tieredstore.scan.location import TierLocation
from tieredstore.tier_url import show_url

COMPACTED_VERSION = 3
"""Format version of an export state. 3: a plain Parquet target that was compacted, so that commit
numbers differ from export numbers. 2: the identity has one of `_LATER_NAMES`. 1: all other states,
which earlier versions of this program can also continue."""
VERSION = COMPACTED_VERSION


class Position(msgspec.Struct, frozen=True, array_like=True):
    """Exported position of a queue. `next_offset`: queue offset of the first message that is not
    exported. `marked_offset`, `physical_offset`, `store_timestamp_ms`: queue offset, commit log
    offset and store time of the last exported and readable message. They show whether the queue was
    recreated, and are None without such a message. In states of earlier versions `marked_offset` is
    None, and means the offset before `next_offset`."""

    next_offset: int
    physical_offset: int | None = None
    store_timestamp_ms: int | None = None
    marked_offset: int | None = None

    @property
    def last_offset(self) -> int:
        """Queue offset of the message that identifies the queue."""
        return self.next_offset - 1 if self.marked_offset is None else self.marked_offset

    def move_to(self, next_offset: int) -> Position:
        """Return this position with another `next_offset`. The message that identifies the queue
        stays the same."""
        return Position(
            next_offset, self.physical_offset, self.store_timestamp_ms, self.last_offset
        )


@dataclass(frozen=True, slots=True)
class TargetState:
    """State of the target after its last export. `sequence`: number of the export, from 1 (0 before
    the first). `export`: id of the last export. `identity`: identity of the exported tier.
    `queues`: positions by `broker/topic/queueId`. `taken_from`: start offset of each queue, for a
    target without duplicates. From there to the position, every message was exported or is a
    duplicate."""

    sequence: int = 0
    export: str = ""
    identity: dict[str, object] = field(default_factory=dict)
    queues: dict[str, Position] = field(default_factory=dict)
    version: int = 1
    taken_from: dict[str, int] | msgspec.UnsetType = msgspec.UNSET


class ColumnStatistics(msgspec.Struct, frozen=True, array_like=True):
    """Statistics of a plain column in a data file. `nulls`: rows without a value. `least`, `most`:
    bounds of the values, times in µs, texts by their first characters. None if unknown."""

    nulls: int
    least: int | str | None = None
    most: int | str | None = None


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file, as returned by the task. `name`: name in the folder of the tasks. `statistics`:
    statistics of the plain columns. `row_groups`: start of each row group, in bytes."""

    name: str
    partition: Partition
    rows: int
    size_bytes: int
    statistics: dict[str, ColumnStatistics] = field(default_factory=dict)
    row_groups: list[int] = field(default_factory=list)


class Target(Protocol):
    """Table or folder that receives an export."""

    @property
    def file_columns(self) -> tuple[str, ...]:
        """Columns of the data files. The values of the other columns are in the partition."""

    def prepare(self) -> None:
        """Check that the target can be exported into, and finish the work of a killed export. Does
        not create the target. Raises Invalid for a location with foreign data, Unavailable."""

    def make(self) -> None:
        """Create the target if missing. Raises the errors of `prepare`."""

    def load(self) -> TargetState:
        """Read the current state, or the initial state if the target is missing. Raises Corrupt,
        Unavailable."""

    def folder(self, base: int, export: str) -> Folder:
        """Return the folder that the tasks of an export write to. Readers of the target do not see
        it. `base`: the target's sequence before the export."""

    def commit(self, state: TargetState, files: Sequence[DataFile]) -> str | None:
        """Atomically add the files and set the state, unless another export has changed the
        target's sequence. Return the name of the commit, or None. Raises Unavailable."""

    def find_commit(self, state: TargetState) -> str:
        """Publish the commit that stored `state`, if necessary, and return its name."""

    def discard(self, folder: Folder, names: Sequence[str]) -> None:
        """Try to remove files that belong to no commit."""


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
    """Return the values that all exports into one target must share: tier, chosen queues, and form
    of the rows."""
    return {
        "tier": show_url(location.url),
        "cluster": location.config.broker_cluster_name,
        "broker": location.broker,
        **request.describe_selection(),
        "columns": list(request.column_names),
        **request.describe_form(),
    }


def version_of(identity: Mapping[str, object]) -> int:
    """Return the format version of an export state: 1 if earlier versions of this program know all
    keys of `identity`, else 2."""
    return 1 if identity.keys().isdisjoint(_LATER_NAMES) else 2


def require_columns(
    where: str, ours: Sequence[str], found: Sequence[str], required: Sequence[str]
) -> None:
    """Raise Invalid if a table lacks columns of the export, or requires values in others."""
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
_CHOICES = ("topics", "topic_pattern", "brokers", "queue_ids", "broker")
_ACCEPTED_BY = {"tier": Accept.MOVED, **dict.fromkeys(_CHOICES, Accept.TOPICS)}


def require_same(
    state: TargetState, identity: Mapping[str, object], request: ExportRequest
) -> None:
    """Raise Invalid if the target contains an export of another source."""
    if not state.sequence:
        return
    for name in {**identity, **state.identity}:
        expected, found = (of.get(name, _DEFAULTS.get(name)) for of in (state.identity, identity))
        way = _ACCEPTED_BY.get(name)
        if expected != found and (way is None or way not in request.accept):
            hint = "Export into another target" if way is None else f"--accept {way} continues"
            raise Invalid(
                f"{request.target}: holds an export of another {name}: expected {expected}, found "
                f"{found}. {hint}"
            )
