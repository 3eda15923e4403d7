"""Snapshots of consumer offsets: files as brokers keep them, and when they were made."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.errors import Corrupt, Invalid
from tieredstore.java_json import quote_integer_keys
from tieredstore.jobs.advising.loads.observed import Observed
from tieredstore.jobs.advising.loads.workload import Reading
from tieredstore.scan.times import parse_time

_MOST_BYTES: Final = 1 << 30
_TABLES: Final = ("offsetTable", "lmqOffsetTable")


class GroupQueue(NamedTuple):
    """A group, and a queue that it consumes."""

    group: str
    key: QueueKey


@dataclass(frozen=True, slots=True)
class Snapshot:
    """How far groups had consumed at a time, epoch ms: the offsets of their next messages."""

    taken_ms: int
    offsets: Mapping[GroupQueue, int]


def read_snapshots(files: Mapping[Path, int | None]) -> list[Snapshot]:
    """Read `consumerOffset.json` files, with when each was taken (None: when it was last changed),
    in the order of their times. Raises Invalid for fewer than two different times, Corrupt for
    files that are not such."""
    found = sorted(
        (read_snapshot(path, taken_ms) for path, taken_ms in files.items()),
        key=lambda snapshot: snapshot.taken_ms,
    )
    if len({snapshot.taken_ms for snapshot in found}) < 2:
        raise Invalid(
            f"{len(found)} snapshots of consumer offsets: expected at least two, of different "
            "times; name a time with FILE@TIME where the file's own is not the one"
        )
    return found


def read_snapshot(path: Path, taken_ms: int | None = None) -> Snapshot:
    """Read one file. Raises Invalid when it cannot be read, Corrupt for one that is no such."""
    try:
        status = path.stat()
        if status.st_size > _MOST_BYTES:
            raise Corrupt(f"{path}: {status.st_size} bytes are no file of consumer offsets")
        data = path.read_bytes()
    except OSError as error:
        raise Invalid(f"{path}: cannot be read: {error.strerror}", path=str(path)) from error
    if taken_ms is None:
        taken_ms = status.st_mtime_ns // 1_000_000
    return Snapshot(taken_ms, _parse(data, path))


def parse_snapshot_name(text: str, now_ms: int) -> tuple[Path, int | None]:
    """Parse `FILE` or `FILE@TIME`. Raises Invalid for a time that is none."""
    if Path(text).exists() or "@" not in text:
        return Path(text), None
    name, _, time = text.rpartition("@")
    return Path(name), parse_time(time, now_ms)


def _parse(data: bytes, path: Path) -> dict[GroupQueue, int]:
    try:
        file: dict[str, Any] = msgspec.json.decode(quote_integer_keys(data), type=dict[str, Any])
        if not any(table in file for table in _TABLES):
            raise Corrupt(
                f"{path}: expected {_TABLES[0]}, as in consumerOffset.json, found "
                f"{', '.join(list(file)[:5]) or 'nothing'}",
                path=str(path),
            )
        tables = msgspec.convert(
            file.get(_TABLES[0]) or {}, dict[str, dict[int, int]], strict=False
        )
        light = msgspec.convert(file.get(_TABLES[1]) or {}, dict[str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Corrupt(f"{path}: no file of consumer offsets: {error}", path=str(path)) from error
    found: dict[GroupQueue, int] = {}
    for name, queues in tables.items():
        topic, _, group = name.partition("@")
        for queue_id, offset in queues.items():
            found[GroupQueue(group, QueueKey(topic, queue_id))] = offset
    for name, offset in light.items():
        topic, _, group = name.partition("@")
        found[GroupQueue(group, QueueKey(topic, 0))] = offset
    return found


def find_readings(snapshots: Sequence[Snapshot]) -> Iterator[Reading]:
    """Yield what groups read between each two snapshots that follow one another. Who went back
    reads from there on; who is new began somewhere between, and is left out until the next."""
    for before, after in pairwise(snapshots):
        if after.taken_ms <= before.taken_ms:
            continue
        for place, last in after.offsets.items():
            first = before.offsets.get(place)
            if first is not None and first < last:
                times = float(before.taken_ms), float(after.taken_ms)
                yield Reading(place.group, place.key, first, last, *times)


def observe_snapshots(snapshots: Sequence[Snapshot]) -> Observed:
    """Return what happened between the first snapshot and the last one."""
    return Observed(
        float(snapshots[0].taken_ms), float(snapshots[-1].taken_ms), list(find_readings(snapshots))
    )
