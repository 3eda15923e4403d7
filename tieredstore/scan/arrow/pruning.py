"""What a condition over columns leaves of a table: which numbers and times it may be true for.

Arrow says nothing of what an expression is made of, but tells which parts of a dataset it may be
true for, by what is known of each part. So parts are made up, smaller and smaller ones.
"""

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
"""Queue ids that are tried one by one."""
_MOST_STEPS: Final = 1000
_LAST_NUMBER: Final = 2**62
_LAST_TIME_US: Final = 253_402_300_799_999_999
"""The last microsecond of the year 9999."""


class Narrowing(NamedTuple):
    """What may be wanted: queue ids (None for all), queue offsets [from, until) and store times
    [since, until) in epoch ms, None where there is no border."""

    queue_ids: tuple[int, ...] | None = None
    from_offset: int | None = None
    until_offset: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    is_empty: bool = False


NOTHING: Final = Narrowing(is_empty=True)


def find_columns(condition: pc.Expression | None, schema: pa.Schema) -> list[str]:
    """Return the columns that a condition may name, and maybe others that it does not."""
    if condition is None:
        return []
    words = set(re.findall(r"\w+", str(condition)))
    return [name for name in schema.names if name in words]


def narrow(condition: pc.Expression | None, schema: pa.Schema) -> Narrowing:
    """Return what a condition leaves; every row for which it is true is within. schema: of all
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
    if "store_timestamp" in named:
        times = prober.find_hull("store_timestamp", 0, _LAST_TIME_US)
        if times is None:
            return NOTHING
    low, high = offsets or (0, _LAST_NUMBER)
    first_us, last_us = times or (0, _LAST_TIME_US)
    return Narrowing(
        None if queues is None else prober.find_numbers("queue_id", *queues),
        low or None,
        None if high == _LAST_NUMBER else high + 1,
        first_us // 1000 or None,
        None if last_us == _LAST_TIME_US else last_us // 1000 + 1,
    )


class _Prober:
    """Asks Arrow whether a condition may be true where one column is within given values."""

    def __init__(self, condition: pc.Expression, schema: pa.Schema) -> None:
        self._condition = condition
        self._schema = schema
        self._format = ds.IpcFileFormat()
        self._files = pa.fs.LocalFileSystem()  # that never opens anything

    def find_hull(self, name: str, low: int, high: int) -> tuple[int, int] | None:
        """Return the smallest and the largest value of a column, of [low, high], for which the
        condition may be true; None where it never is."""
        first = self._find_end(name, low, high, is_last=False)
        if first is None:
            return None
        last = self._find_end(name, first, high, is_last=True)
        return first, first if last is None else last

    def _find_end(self, name: str, low: int, high: int, *, is_last: bool) -> int | None:
        """Return the smallest value of [low, high] for which the condition may be true, or the
        largest; after many steps one that may lie beyond it. None where it never is."""
        waiting = [(low, high)]  # the next one is the last of them
        for _ in range(_MOST_STEPS):
            if not waiting:
                return None
            span = waiting.pop()
            if span[0] == span[1]:
                return span[0]
            # It may be true for none of the parts: what Arrow says of more values is less sure.
            parts = _cut(*span)
            kept = [part for part, may in zip(parts, self._ask(name, parts), strict=True) if may]
            waiting += kept if is_last else reversed(kept)
        return waiting[-1][is_last] if waiting else None

    def find_numbers(self, name: str, low: int, high: int) -> tuple[int, ...] | None:
        """Return the values of [low, high] for which the condition may be true; None for all where
        they are too many to be tried."""
        if high - low >= _MOST_QUEUES:
            return None
        values = range(low, high + 1)
        may_be = self._ask(name, [(value, value) for value in values])
        return tuple(value for value, may in zip(values, may_be, strict=True) if may)

    def _ask(self, name: str, spans: Sequence[tuple[int, int]]) -> list[bool]:
        """For each span of values, both ends included, whether the condition may be true."""
        kind = self._schema.field(name).type
        field = pc.field(name)
        parts = [
            self._format.make_fragment(
                str(number),
                self._files,
                partition_expression=(field >= pa.scalar(low, kind))
                & (field <= pa.scalar(high, kind)),
            )
            for number, (low, high) in enumerate(spans)
        ]
        table = ds.FileSystemDataset(parts, self._schema, self._format, self._files)
        kept = {int(part.path) for part in table.get_fragments(filter=self._condition)}
        return [number in kept for number in range(len(spans))]


def _cut(low: int, high: int) -> list[tuple[int, int]]:
    """Cut [low, high] into parts that are about as large."""
    step = -(-(high - low + 1) // _PARTS)
    return [(start, min(start + step - 1, high)) for start in range(low, high + 1, step)]
