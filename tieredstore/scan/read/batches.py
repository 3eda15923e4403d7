"""Reads a planned range in batches of bounded size, checks every record, and gives columns.

What is checked: the unit (size, place), the record behind it (size, magic, queue offset, queue id,
topic, physical offset, inner lengths) and, unless the caller does without, its body CRC. A record
that fails is reported and left out: it is never served.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tieredstore.contracts.block_checksums import BlocksDamaged, distrust_tags
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.errors import Corrupt
from tieredstore.message.layout import CODA_SIZE, MIN_RECORD_SIZE
from tieredstore.scan.ahead import waits_for_network
from tieredstore.scan.catalogue import QueueFiles
from tieredstore.scan.extents import QueueReader, Units
from tieredstore.scan.findings import Finding, OnFinding, damage, raise_on_damage
from tieredstore.scan.holes import make_lost_finding
from tieredstore.scan.intervals import Interval, subtract_intervals
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batch import Bools, Int64s, MessageBatch, UnitRun
from tieredstore.scan.read.damaged_blocks import leave_out_damaged, tell_blocks, trust_tags
from tieredstore.scan.read.read_ahead import LoadedRun, load_ahead
from tieredstore.scan.read.record_checks import check_run, place_of
from tieredstore.scan.time_search.search import narrow_by_time

BATCH_BYTES = 4 << 20
"""Commit log bytes of one batch, at most (one message at least)."""
BATCH_ROWS = 1 << 13
"""Messages of one batch, at most: the fields of so many stay in a processor's cache."""
UNITS_PER_READ = 1 << 14
_FIRST_UNITS = 1 << 11
"""The first read of a range is short: reading messages begins behind it."""
_GAP_BYTES = 64 << 10
"""Bytes between two messages that are read along rather than skipped."""


def read_batches(
    provider: SegmentProvider,
    scan_range: ScanRange,
    *,
    batch_bytes: int = BATCH_BYTES,
    on_finding: OnFinding = raise_on_damage,
    body_crcs: bool = True,
    tags_codes: frozenset[int] | None = None,
) -> Generator[MessageBatch]:
    """Read one range in batches, time bounds applied.

    tags_codes: leave out messages whose unit says that they have no tag with one of these hashes;
    those that are left may have other tags. Damage goes to `on_finding`, which by default raises
    Corrupt at the first; when it returns, the record concerned is left out and reading goes on.
    Memory: one batch and 16,384 units, on an object store four more batches, which are being read
    meanwhile. Raises Unavailable.
    """
    with QueueReader(provider, scan_range.queue) as reader:

        def runs_of(tell: OnFinding) -> Iterator[UnitRun]:
            for units in unit_blocks(reader, scan_range, on_finding=tell):
                yield from _wanted_runs(reader, units, tags_codes, batch_bytes)

        for run, load in load_runs(provider, reader, runs_of, on_finding):
            batch = read_checked_run(reader, run, load, on_finding, body_crcs=body_crcs)
            if batch is None:
                continue
            batch = _in_time(batch, scan_range)
            if len(batch):
                yield batch
            del batch  # the next read may then have its memory


def read_batches_backwards(
    provider: SegmentProvider,
    scan_range: ScanRange,
    *,
    batch_bytes: int = BATCH_BYTES,
    on_finding: OnFinding = raise_on_damage,
    tags_codes: frozenset[int] | None = None,
    first_units: int = _FIRST_UNITS,
    ahead: bool = True,
) -> Generator[MessageBatch]:
    """Do `read_batches` from the end of the range: the last batch first, the messages of each in
    the order of their offsets. Nothing in front of what is asked for is read, but for units.

    first_units: messages of the first read; ahead: whether batches are read before they are asked
    for, over a network. Damage in up to 16,384 units is told before their messages.
    """
    with QueueReader(provider, scan_range.queue) as reader:

        def runs_of(tell: OnFinding) -> Iterator[UnitRun]:
            for part in _parts_from_end(reader, scan_range, first_units):
                runs: list[UnitRun] = []
                for units in unit_blocks(reader, part, on_finding=tell):
                    runs.extend(_wanted_runs(reader, units, tags_codes, batch_bytes))
                yield from reversed(runs)

        if ahead:
            loaded = load_runs(provider, reader, runs_of, on_finding)
        else:
            loaded = _load_here(reader, runs_of, on_finding)
        for run, load in loaded:
            batch = read_checked_run(reader, run, load, on_finding)
            if batch is None:
                continue
            batch = _in_time(batch, scan_range)
            if len(batch):
                yield batch


def _parts_from_end(
    reader: QueueReader, scan_range: ScanRange, first_units: int
) -> Iterator[ScanRange]:
    """Cut a range into growing parts, the last one first."""
    low, high = scan_range.from_offset, scan_range.until_offset
    if not scan_range.is_searched:
        since_ms, until_ms = scan_range.since_ms, scan_range.until_ms
        low, high = narrow_by_time(reader, low, high, since_ms=since_ms, until_ms=until_ms)
    count = min(max(first_units, 1), UNITS_PER_READ)
    while low < high:
        start = max(low, high - count)
        yield replace(scan_range, from_offset=start, until_offset=high, is_searched=True)
        high, count = start, min(2 * count, UNITS_PER_READ)


def _wanted_runs(
    reader: QueueReader, units: UnitRun, tags_codes: frozenset[int] | None, batch_bytes: int
) -> Iterator[UnitRun]:
    wanted = _with_tags(units, tags_codes)
    if wanted is not None:
        yield from runs_of_units(reader.queue, wanted, batch_bytes)


def _in_time(batch: MessageBatch, scan_range: ScanRange) -> MessageBatch:
    """The messages within the time bounds of the range."""
    if scan_range.since_ms is not None:
        batch = batch.select(batch.columns.store_timestamps >= scan_range.since_ms)
    if scan_range.until_ms is not None:
        batch = batch.select(batch.columns.store_timestamps < scan_range.until_ms)
    return batch


def load_runs(
    provider: SegmentProvider,
    reader: QueueReader,
    runs_of: Callable[[OnFinding], Iterator[UnitRun]],
    on_finding: OnFinding,
) -> Iterator[LoadedRun]:
    """Yield the runs that `runs_of` makes, each with the read of its bytes; from a network, some
    runs ahead."""
    if waits_for_network(provider):
        return load_ahead(runs_of, lambda run: _prepare_run(reader, run), on_finding)
    return _load_here(reader, runs_of, on_finding)


def _load_here(
    reader: QueueReader,
    runs_of: Callable[[OnFinding], Iterator[UnitRun]],
    on_finding: OnFinding,
) -> Iterator[LoadedRun]:
    return (LoadedRun(run, _prepare_run(reader, run)) for run in runs_of(on_finding))


def unit_blocks(
    reader: QueueReader,
    scan_range: ScanRange,
    *,
    on_finding: OnFinding = raise_on_damage,
    units_per_read: int = UNITS_PER_READ,
) -> Iterator[UnitRun]:
    """Yield the usable units of a range as they are read: those that name bytes which one commit
    log segment has. They are not fit to be read in one piece."""
    start, end = scan_range.from_offset, scan_range.until_offset
    if not scan_range.is_searched:
        since_ms, until_ms = scan_range.since_ms, scan_range.until_ms
        start, end = narrow_by_time(reader, start, end, since_ms=since_ms, until_ms=until_ms)
    spans = reader.queue.unit_spans()
    lost = subtract_intervals(start, end, spans)
    for first, last in lost:
        on_finding(make_lost_finding(reader.queue, first, last))
    for first, count in _blocks(subtract_intervals(start, end, lost), units_per_read):
        try:
            damaged: list[BlocksDamaged] = []
            units = reader.read_units(first, count, damaged)
        except Corrupt as error:
            segment, position = reader.unit_place(first)
            on_finding(
                damage(
                    "units-missing",
                    f"units {first} to {first + count - 1} cannot be read: {error}",
                    segment=segment,
                    position=position,
                    queue_offset=first,
                    messages=count,
                )
            )
            continue
        for one in damaged:
            tell_blocks(one, on_finding, queue_offset=first)
        if damaged:
            units = distrust_tags(units, first, damaged)
        usable = _usable(reader, units, first, on_finding)
        if usable is not None:
            yield usable


def _blocks(spans: Iterable[Interval], units_per_read: int) -> Iterator[tuple[int, int]]:
    """Yield first unit and number of each read."""
    most = _FIRST_UNITS
    for start, end in spans:
        first = start
        while first < end:
            count = min(most, end - first)
            yield first, count
            first, most = first + count, units_per_read


def find_usable_units(reader: QueueReader, units: Units, first: int) -> tuple[UnitRun, Bools]:
    """Return the units from queue offset `first` on, and which of them name bytes that one commit
    log segment has."""
    offsets = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    bases, ends = _borders(reader.queue)
    owner = _owners(bases, offsets)
    # A unit may name the coda at the end of an old segment: its message begins the next one.
    offsets[offsets == ends[owner] - CODA_SIZE] += CODA_SIZE
    usable = find_whole_records(reader.queue, offsets, sizes)
    if not usable.all() and reader.see_growth():
        usable = find_whole_records(reader.queue, offsets, sizes)
    numbers = np.arange(first, first + len(units), dtype=np.int64)
    return UnitRun(numbers, offsets, sizes, units["tags_code"].astype(np.int64)), usable


def _usable(reader: QueueReader, units: Units, first: int, on_finding: OnFinding) -> UnitRun | None:
    found, usable = find_usable_units(reader, units, first)
    if usable.all():
        return found
    for group in runs_of_rows(np.flatnonzero(~usable)):
        row = int(group[0])
        last = first + int(group[-1])
        offset, size = int(found.offsets[row]), int(found.sizes[row])
        on_finding(make_unusable_finding(reader, offset, size, first + row, last))
    return found.take(usable) if usable.any() else None


def _with_tags(units: UnitRun, tags_codes: frozenset[int] | None) -> UnitRun | None:
    """The units that may be of messages with those tags; None when there is none."""
    if tags_codes is None:
        return units
    codes = units.tags_codes
    # What is no i32 is no hash: the time of a delayed message, or a place in an extension.
    mask = np.isin(codes, list(tags_codes)) | (codes != codes.astype(np.int32))
    return units.take(mask) if mask.any() else None


def runs_of_units(queue: QueueFiles, units: UnitRun, batch_bytes: int) -> Iterator[UnitRun]:
    for part in cut_runs(queue, units.offsets, units.sizes, batch_bytes):
        yield units.take(part)


def _borders(queue: QueueFiles) -> tuple[Int64s, Int64s]:
    """First byte of each commit log segment, and the one behind its last."""
    bases = [extent.base_offset for extent in queue.commit_log] or [0]
    ends = [extent.end_offset for extent in queue.commit_log] or [0]
    return np.array(bases, dtype=np.int64), np.array(ends, dtype=np.int64)


def _owners(bases: Int64s, offsets: Int64s) -> Int64s | np.int64:
    """The segment of each offset by its number; one number when it is the same for all. Those in
    front of the first segment are given to it."""
    if len(bases) == 1:
        return np.int64(0)
    if len(offsets):
        ends = np.array([offsets.min(), offsets.max()])
        first, last = np.maximum(np.searchsorted(bases, ends, side="right") - 1, 0)
        if first == last:
            return np.int64(first)
    owners: Int64s = np.maximum(np.searchsorted(bases, offsets, side="right") - 1, 0)
    return owners


def find_whole_records(queue: QueueFiles, offsets: Int64s, sizes: Int64s) -> Bools:
    """Return bool[n]: whether one commit log segment has all bytes [offset, offset + size)."""
    bases, ends = _borders(queue)
    owner = _owners(bases, offsets)
    whole: Bools = (sizes >= MIN_RECORD_SIZE) & (offsets >= bases[owner])
    whole &= offsets <= ends[owner] - sizes  # a sum could pass 2^63
    return whole


def cut_runs(
    queue: QueueFiles, offsets: Int64s, sizes: Int64s, batch_bytes: int = BATCH_BYTES
) -> Iterator[slice]:
    """Cut whole records into runs to be read in one piece: within one segment, rising, without
    large gaps, at most `batch_bytes` (one record at least)."""
    bases, _ = _borders(queue)
    owner = _owners(bases, offsets)
    ends = offsets + sizes
    gap = offsets[1:] - ends[:-1]
    cut = (gap < 0) | (gap > _GAP_BYTES)
    if isinstance(owner, np.ndarray):
        cut |= owner[1:] != owner[:-1]
    for low, high in pairwise([0, *(np.flatnonzero(cut) + 1).tolist(), len(offsets)]):
        start = low
        while start < high:
            limit = offsets[start] + batch_bytes
            stop = start + int(np.searchsorted(ends[start:high], limit, side="right"))
            stop = min(max(stop, start + 1), start + BATCH_ROWS)
            yield slice(start, stop)
            start = stop


def runs_of_rows(rows: npt.NDArray[np.intp]) -> list[npt.NDArray[np.intp]]:
    """Split ascending numbers where one is missing."""
    if not len(rows):
        return []
    return np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)


def make_unusable_finding(
    reader: QueueReader, offset: int, size: int, first: int, last: int
) -> Finding:
    """Make the finding that the units of queue offsets `first` to `last` name no whole record; the
    first of them says `offset` and `size`."""
    segment, position = reader.unit_place(first)
    end = reader.queue.commit_log_max_offset
    until = "" if first == last else f" (and all units up to queue offset {last})"
    messages = last - first + 1
    if size < MIN_RECORD_SIZE:
        return damage(
            "unit-invalid",
            f"consume queue unit with an impossible message size{until}",
            segment=segment,
            position=position,
            queue_offset=first,
            expected=f"at least {MIN_RECORD_SIZE}",
            found=str(size),
            messages=messages,
        )
    if offset < reader.queue.commit_log_min_offset:
        return damage(
            "record-expired",
            f"consume queue unit of a message before the commit log's start{until}",
            segment=segment,
            position=position,
            queue_offset=first,
            expected=f"at least {reader.queue.commit_log_min_offset}",
            found=str(offset),
            messages=messages,
        )
    return damage(
        "record-missing",
        f"consume queue unit of a message that no commit log segment holds whole{until}",
        segment=segment,
        position=position,
        queue_offset=first,
        expected=f"bytes {offset} to {offset + size}",
        found=f"a commit log that ends at {end}",
        messages=messages,
    )


def _prepare_run(reader: QueueReader, run: UnitRun) -> Callable[[], memoryview]:
    start = run.start
    extent = reader.commit_log.extent_at(start)
    end = run.end if extent is None else min(run.end + CODA_SIZE, extent.end_offset)
    return reader.commit_log.prepare_checked(start, end - start)  # of one segment


def read_checked_run(
    reader: QueueReader,
    run: UnitRun,
    load: Callable[[], memoryview],
    on_finding: OnFinding,
    *,
    body_crcs: bool = True,
) -> MessageBatch | None:
    """Read and check the messages of one run; None when none of them is good."""
    start = run.start
    try:
        buffer = load()
    except BlocksDamaged as error:
        buffer = error.found
        rest = leave_out_damaged(reader.queue, error, run, on_finding, body_crcs=body_crcs)
        if rest is None:
            return None
        run = rest
    except Corrupt as error:
        on_finding(
            damage(
                "record-missing",
                f"messages up to queue offset {int(run.queue_offsets[-1])} cannot be read: {error}",
                segment=place_of(reader.queue, run.start)[0],
                queue_offset=int(run.queue_offsets[0]),
                messages=len(run.queue_offsets),
            )
        )
        return None
    batch = check_run(reader.queue, buffer, start, run, on_finding, body_crcs=body_crcs)
    return None if batch is None else trust_tags(batch)
