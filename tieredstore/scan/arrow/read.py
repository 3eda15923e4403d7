"""Reader of a planned range as Arrow record batches, with only the requested columns. Each record
is compared with its consume queue unit, and its body with its CRC, unless the options disable this.
`UNIT_COLUMNS` are read from the consume queue alone. Then the only check is that a segment has the
bytes of each message, which may still be damaged."""

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
from tieredstore.scan.arrow.schema import STORE_TIME_MS, UNIT_COLUMNS, choose_columns, schema_of
from tieredstore.scan.expired import open_queue
from tieredstore.scan.findings import OnFinding, raise_on_damage
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batch import MessageBatch, UnitRun
from tieredstore.scan.read.batches import read_batches, unit_blocks
from tieredstore.scan.read.judging import Judge, cut_unwritten_tail
from tieredstore.scan.read.options import DEFAULT_OPTIONS, ReadOptions
from tieredstore.scan.rows import describe_body_error

_UNITS_PER_BATCH = 1 << 16
_INFLATED_BYTES = 64 << 20
INFLATED_COLUMNS = frozenset({"body", "body_length", "body_error"})
"""Columns for which a compressed body must be decompressed."""


def arrow_batches(
    provider: SegmentProvider,
    scan_range: ScanRange,
    columns: Iterable[str] | None = None,
    options: ReadOptions = DEFAULT_OPTIONS,
    *,
    on_finding: OnFinding = raise_on_damage,
    with_time_ms: bool = False,
) -> Generator[pa.RecordBatch]:
    """Yield non-empty record batches of one range in queue offset order, with the schema
    `arrow.schema.schema(columns)`. `with_time_ms`: append the column STORE_TIME_MS. `on_finding`:
    receives damage. By default it raises Corrupt at the first damage, with segment and byte. If it
    returns, the damaged message is omitted. The decompressed bodies of a batch have at most 64 MiB,
    unless there is only one. Raises Invalid for unknown columns, Unavailable."""
    names = choose_columns(columns)
    if with_time_ms:
        names = (*names, STORE_TIME_MS)
    if needs_records(names, scan_range, options):
        batches = _from_records(provider, scan_range, names, options, on_finding)
    else:
        batches = _from_units(provider, scan_range, names, on_finding)
    return batches if options.limit is None else limit_rows(batches, options.limit)


def limit_rows(batches: Generator[pa.RecordBatch], limit: int) -> Generator[pa.RecordBatch]:
    """Yield the first `limit` rows of non-empty batches without reading further batches."""
    with closing(batches):
        while limit > 0:
            batch = next(batches, None)
            if batch is None:
                return
            yield batch.slice(0, limit)
            limit -= batch.num_rows


def needs_records(names: Iterable[str], scan_range: ScanRange, options: ReadOptions) -> bool:
    """Return whether columns need the commit log in addition to the consume queue."""
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
                for part in _inflate_parts(batch, options.body_limit_bytes):
                    yield part.record_batch(names)
        del batch  # the next read may then have its memory


def _select_matching(batch: MessageBatch, options: ReadOptions) -> MessageBatch:
    """Return the messages whose tags and keys match the options. The text of each message is
    compared, because units have only hashes of tags."""
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


def _inflate_parts(batch: MessageBatch, limit_bytes: int) -> Iterator[ArrowColumns]:
    """Yield a batch in parts, with decompressed bodies. A body that cannot be decompressed becomes
    null, with a reason. It is not damage if its CRC is correct, because the producer sent it like
    this."""
    bodies: list[bytes | None] = []
    errors: list[str | None] = []
    first, total = 0, 0
    view, columns = batch.buffer, batch.columns
    for row in np.flatnonzero(find_compressed_rows(batch)).tolist():
        start = int(columns.body_offsets[row])
        stored = view[start : start + int(columns.body_lengths[row])]
        body, problem = None, None
        try:
            body = decompress(stored, int(columns.sys_flags[row]), limit_bytes)
        except Corrupt as error:
            problem = describe_body_error(error)
        size = len(body or b"")
        if bodies and total + size > _INFLATED_BYTES:
            yield ArrowColumns(batch.rows(slice(first, row)), bodies, errors)
            first, bodies, errors, total = row, [], [], 0
        bodies.append(body)
        errors.append(problem)
        total += size
    yield ArrowColumns(batch.rows(slice(first, len(batch))), bodies, errors)


def _from_units(
    provider: SegmentProvider, scan_range: ScanRange, names: tuple[str, ...], on_finding: OnFinding
) -> Generator[pa.RecordBatch]:
    queue = scan_range.queue
    with open_queue(provider, queue) as reader:
        whole = cut_unwritten_tail(reader, scan_range, on_finding)
        tell_judged = Judge(provider, whole, on_finding)
        tell_judged.begin(reader, whole.from_offset, is_large=whole.count > _UNITS_PER_BATCH)
        blocks = unit_blocks(reader, whole, on_finding=tell_judged, units_per_read=_UNITS_PER_BATCH)
        for block in blocks:
            tell_judged.note()
            yield pa.RecordBatch.from_arrays(
                [_unit_column(name, scan_range, block) for name in names], schema=schema_of(names)
            )
        tell_judged.check_generation()


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
