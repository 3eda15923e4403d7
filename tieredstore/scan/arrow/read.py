"""Reads a planned range as Arrow record batches, with what was asked for and no more.

Every record is compared with its consume queue unit, and its body with its CRC unless the options
say otherwise. Columns that the consume queue alone answers (`UNIT_COLUMNS`) are read from it alone:
then nothing says whether the messages behind the units are whole, only that a segment has them.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import closing

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.compression import decompress
from tieredstore.scan.arrow.buffers import Bools, make_constant_text
from tieredstore.scan.arrow.columns import ArrowColumns, find_compressed_rows
from tieredstore.scan.arrow.schema import UNIT_COLUMNS, choose_columns, schema_of
from tieredstore.scan.extents import QueueReader
from tieredstore.scan.findings import Finding, OnFinding, damage, raise_on_damage
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batch import MessageBatch, UnitRun
from tieredstore.scan.read.batches import read_batches, unit_blocks
from tieredstore.scan.read.options import DEFAULT_OPTIONS, ReadOptions
from tieredstore.scan.read.record_checks import place_of

_UNITS_PER_BATCH = 1 << 16
_INFLATED_BYTES = 64 << 20
INFLATED_COLUMNS = frozenset({"body", "body_length"})
"""Of a compressed body, what it is after its decompression."""


def arrow_batches(
    provider: SegmentProvider,
    scan_range: ScanRange,
    columns: Iterable[str] | None = None,
    options: ReadOptions = DEFAULT_OPTIONS,
    *,
    on_finding: OnFinding = raise_on_damage,
) -> Generator[pa.RecordBatch]:
    """Record batches of one range in queue offset order, none of them empty; their schema is
    `arrow_schema.schema(columns)`.

    Damage goes to `on_finding`, which by default raises Corrupt at the first and names segment and
    byte; when it returns, the message is left out. A batch holds bodies that inflate to 64 MiB
    together, or one body. Raises Invalid for unknown columns, Unavailable.
    """
    names = choose_columns(columns)
    if needs_records(names, scan_range, options):
        batches = _from_records(provider, scan_range, names, options, on_finding)
    else:
        batches = _from_units(provider, scan_range, names, on_finding)
    return batches if options.limit is None else limit_rows(batches, options.limit)


def limit_rows(batches: Generator[pa.RecordBatch], limit: int) -> Generator[pa.RecordBatch]:
    """Yield the first rows of batches that are not empty, at most `limit`; no batch is read behind
    them."""
    with closing(batches):
        while limit > 0:
            batch = next(batches, None)
            if batch is None:
                return
            yield batch.slice(0, limit)
            limit -= batch.num_rows


def needs_records(names: Iterable[str], scan_range: ScanRange, options: ReadOptions) -> bool:
    """Tell whether the commit log has to be read, beside the consume queue."""
    return (
        not UNIT_COLUMNS.issuperset(names)
        or scan_range.since_ms is not None
        or scan_range.until_ms is not None
        or options.tags is not None
        or options.keys is not None
        or options.verify_records
    )


def _from_records(
    provider: SegmentProvider,
    scan_range: ScanRange,
    names: tuple[str, ...],
    options: ReadOptions,
    on_finding: OnFinding,
) -> Generator[pa.RecordBatch]:
    inflate = not INFLATED_COLUMNS.isdisjoint(names)
    for found in read_batches(
        provider,
        scan_range,
        batch_bytes=options.batch_bytes,
        on_finding=on_finding,
        body_crcs=options.body_crcs,
        tags_codes=options.tags_codes,
    ):
        batch = _select_matching(found, options)
        del found
        if len(batch):
            if not inflate or not find_compressed_rows(batch).any():
                yield ArrowColumns(batch).record_batch(names)
            else:
                for part, bodies in _inflate_parts(batch, options.body_limit_bytes, on_finding):
                    yield ArrowColumns(part, bodies).record_batch(names)
        del batch  # the next read may then have its memory


def _select_matching(batch: MessageBatch, options: ReadOptions) -> MessageBatch:
    """The messages that have the tags and keys themselves: units only have hashes."""
    if options.tags is None and options.keys is None:
        return batch
    properties = ArrowColumns(batch).properties
    mask = np.ones(len(batch), np.bool_)
    if options.tags is not None:
        mask &= _is_in(properties.values(b"TAGS"), options.tags)
    if options.keys is not None:
        has_key = _is_in(properties.values(b"UNIQ_KEY"), options.keys)
        keys = properties.keys()
        owners = pc.list_parent_indices(keys).to_numpy()
        has_key[owners[_is_in(keys.flatten(), options.keys)]] = True
        mask &= has_key
    return batch.select(mask)


def _is_in(values: pa.Array, wanted: tuple[str, ...]) -> Bools:
    found: Bools = pc.is_in(values, pa.array(wanted, pa.string())).to_numpy(zero_copy_only=False)
    return found.copy()


def _inflate_parts(
    batch: MessageBatch, limit_bytes: int, on_finding: OnFinding
) -> Iterator[tuple[MessageBatch, list[bytes]]]:
    """Parts of a batch with the inflated bodies of their compressed rows; rows whose body does not
    inflate are reported and left out."""
    good = np.ones(len(batch), np.bool_)
    bodies: list[bytes] = []
    first, total = 0, 0

    def part(end: int) -> MessageBatch:
        return batch.rows(slice(first, end)).select(good[first:end])

    view, columns = batch.buffer, batch.columns
    for row in np.flatnonzero(find_compressed_rows(batch)).tolist():
        start = int(columns.body_offsets[row])
        stored = view[start : start + int(columns.body_lengths[row])]
        try:
            body = decompress(stored, int(columns.sys_flags[row]), limit_bytes)
        except Corrupt as error:
            good[row] = False
            on_finding(_make_inflate_finding(batch, row, error))
            continue
        if bodies and total + len(body) > _INFLATED_BYTES:
            yield part(row), bodies
            first, bodies, total = row, [], 0
        bodies.append(body)
        total += len(body)
    last = part(len(batch))
    if len(last):
        yield last, bodies


def _make_inflate_finding(batch: MessageBatch, row: int, error: Corrupt) -> Finding:
    segment, base = place_of(batch.queue, batch.base_offset)
    return damage(
        "record-sys-flag",
        f"the body does not decompress ({error})",
        segment=segment,
        position=base + int(batch.columns.body_offsets[row]),
        queue_offset=int(batch.queue_offsets[row]),
    )


def _from_units(
    provider: SegmentProvider, scan_range: ScanRange, names: tuple[str, ...], on_finding: OnFinding
) -> Generator[pa.RecordBatch]:
    with QueueReader(provider, scan_range.queue) as reader:
        blocks = unit_blocks(
            reader, scan_range, on_finding=on_finding, units_per_read=_UNITS_PER_BATCH
        )
        for block in blocks:
            yield pa.RecordBatch.from_arrays(
                [_unit_column(name, scan_range, block) for name in names],
                schema=schema_of(names),
            )


def _unit_column(name: str, scan_range: ScanRange, units: UnitRun) -> pa.Array:
    queue, count = scan_range.queue, len(units.offsets)
    match name:
        case "topic":
            return make_constant_text(queue.topic, count)
        case "broker":
            return make_constant_text(queue.broker, count)
        case "queue_id":
            return pa.array(np.full(count, queue.queue_id, np.int32))
        case "queue_offset":
            return pa.array(units.queue_offsets)
        case _:
            return pa.array(units.offsets)
