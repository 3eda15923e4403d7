"""Bounds of the rows for which a condition over columns may be true. Arrow does not expose the
structure of a condition, but it reports the fragments of a dataset for which the condition may be
true. This module therefore tests the condition on artificial fragments with smaller and smaller
ranges of values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs

_PARTS: Final = 16
_MOST_QUEUES: Final = 1024
"""Maximum number of queue ids to try one by one."""
_MOST_STEPS: Final = 1000
_LAST_NUMBER: Final = 2**62
_FIRST_TIME_US: Final = -(2**63)
_LAST_TIME_US: Final = 2**63 - 1
"""The largest time of a microseconds column. Larger times are null in the column."""


class Narrowing(NamedTuple):
    """Bounds of the wanted rows: queue ids (None for all), queue offsets [from, until) and store
    times [since, until) in epoch ms. None means no bound."""

    queue_ids: tuple[int, ...] | None = None
    from_offset: int | None = None
    until_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    is_empty: bool = False


NOTHING: Final = Narrowing(is_empty=True)


def find_columns(condition: pc.Expression | None, schema: pa.Schema) -> list[str]:
    """Return the columns that a condition may use, and possibly others."""
    if condition is None:
        return []
    words = set(re.findall(r"\w+", str(condition)))
    return [name for name in schema.names if name in words]


def narrow(condition: pc.Expression | None, schema: pa.Schema) -> Narrowing:
    """Return bounds that contain all rows for which a condition is true. `schema`: schema of all
    columns."""
    if condition is None:
        return Narrowing()
    named = find_columns(condition, schema)
    prober = _Prober(condition, schema)
    queues = times = offsets = None
    if "queue_id" in named:
        queues = prober.find_hull("queue_id", 0, 2**31 - 1)
        if queues is None:
            return NOTHING
    if "queue_offset" in named:
        offsets = prober.find_hull("queue_offset", 0, _LAST_NUMBER)
        if offsets is None:
            return NOTHING
    if "store_timestamp" in named and not prober.may_be_null("store_timestamp"):
        times = prober.find_hull("store_timestamp", _FIRST_TIME_US, _LAST_TIME_US)
        if times is None:
            return NOTHING
    low, high = offsets or (0, _LAST_NUMBER)
    first_us, last_us = times or (_FIRST_TIME_US, _LAST_TIME_US)
    return Narrowing(
        None if queues is None else prober.find_numbers("queue_id", *queues),
        low or None,
        None if high == _LAST_NUMBER else high + 1,
        None if first_us == _FIRST_TIME_US else first_us // 1000,
        None if last_us == _LAST_TIME_US else last_us // 1000 + 1,
    )


class _Prober:
    """Asks Arrow whether a condition may be true for a range of values of one column."""

    def __init__(self, condition: pc.Expression, schema: pa.Schema) -> None:
        self._condition = condition
        self._schema = schema
        self._format = ds.IpcFileFormat()
        self._files = pa.fs.LocalFileSystem()  # that never opens anything

    def find_hull(self, name: str, low: int, high: int) -> tuple[int, int] | None:
        """Return the bounds of the column values in [low, high] for which the condition may be
        true, or None if there are none. If Arrow rejects the comparison of a large integer with a
        fraction, return (low, high)."""
        try:
            first = self._find_end(name, low, high, is_last=False)
            if first is None:
                return None
            last = self._find_end(name, first, high, is_last=True)
        except pa.ArrowException:
            return low, high
        return first, first if last is None else last

    def _find_end(self, name: str, low: int, high: int, *, is_last: bool) -> int | None:
        """Return the smallest value of [low, high] for which the condition may be true, or with
        `is_last` the largest. A long search may return a wider bound. Return None if the condition
        is never true."""
        waiting = [(low, high)]  # the next one is the last of them
        for _ in range(_MOST_STEPS):
            if not waiting:
                return None
            span = waiting.pop()
            if span[0] == span[1]:
                return span[0]
            # It may be true for none of the parts, because Arrow is less exact for more values.
            parts = _cut(*span)
            kept = [part for part, may in zip(parts, self._ask(name, parts), strict=True) if may]
            waiting += kept if is_last else reversed(kept)
        return waiting[-1][is_last] if waiting else None

    def find_numbers(self, name: str, low: int, high: int) -> tuple[int, ...] | None:
        """Return the values of [low, high] for which the condition may be true. None means all
        values, because there are too many to try."""
        if high - low >= _MOST_QUEUES:
            return None
        values = range(low, high + 1)
        may_be = self._ask(name, [(value, value) for value in values])
        return tuple(value for value, may in zip(values, may_be, strict=True) if may)

    def may_be_null(self, name: str) -> bool:
        """Return whether the condition may be true if a column is null."""
        return self._ask_all([pc.field(name).is_null()])[0]

    def _ask(self, name: str, spans: Sequence[tuple[int, int]]) -> list[bool]:
        """Return for each inclusive span of column values whether the condition can be true in
        it."""
        kind = self._schema.field(name).type
        field = pc.field(name)
        return self._ask_all(
            [
                (field >= pa.scalar(low, kind)) & (field <= pa.scalar(high, kind))
                for low, high in spans
            ]
        )

    def _ask_all(self, known: Sequence[pc.Expression]) -> list[bool]:
        """Return for each restriction of a column whether the condition can be true under it."""
        parts = [
            self._format.make_fragment(str(number), self._files, partition_expression=one)
            for number, one in enumerate(known)
        ]
        table = ds.FileSystemDataset(parts, self._schema, self._format, self._files)
        kept = {int(part.path) for part in table.get_fragments(filter=self._condition)}
        return [number in kept for number in range(len(parts))]


def _cut(low: int, high: int) -> list[tuple[int, int]]:
    """Cut [low, high] into parts of nearly equal size."""
    step = -(-(high - low + 1) // _PARTS)
    return [(start, min(start + step - 1, high)) for start in range(low, high + 1, step)]
