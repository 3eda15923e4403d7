"""Reader of a planned range, in batches of columns. It checks every unit (size, position), record
(size, magic, queue offset, queue id, topic, physical offset, inner lengths) and, unless disabled,
body CRC. A record that fails is reported and never served."""

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
from tieredstore.scan.catalogue import Interval, QueueFiles, subtract_intervals
from tieredstore.scan.expired import open_queue
from tieredstore.scan.extents import QueueReader, Units
from tieredstore.scan.findings import Finding, OnFinding, damage, raise_on_damage
from tieredstore.scan.holes import make_lost_finding
from tieredstore.scan.plan import ScanRange
from tieredstore.scan.read.batch import (
    Bools,
    Int64s,
    MessageBatch,
    UnitRun,
    deliver_in_order,
    find_borders,
    find_owners,
    find_whole_records,
)
from tieredstore.scan.read.damaged_blocks import leave_out_damaged, tell_blocks, trust_tags
from tieredstore.scan.read.judging import Judge
from tieredstore.scan.read.read_ahead import LoadedRun, load_ahead
from tieredstore.scan.read.record_checks import check_run, place_of
from tieredstore.scan.time_search.search import narrow_by_heads

BATCH_BYTES = 4 << 20
"""Maximum commit log bytes of one batch (a batch has at least one message)."""
BATCH_ROWS = 1 << 13
"""Maximum number of messages of one batch. Their fields fit into a processor's cache."""
UNITS_PER_READ = 1 << 14
_FIRST_UNITS = 1 << 11
"""Number of units in the first read of a range. This read is small, because the caller waits for it
before it gets the first message."""
_GAP_BYTES = 64 << 10
"""Maximum gap between two messages, bytes. The bytes in such a gap are read too, so that one read
covers both messages."""


def read_batches(
    provider: SegmentProvider,
    scan_range: ScanRange,
    *,
    batch_bytes: int = BATCH_BYTES,
    on_finding: OnFinding = raise_on_damage,
    body_crcs: bool = True,
    tags_codes: frozenset[int] | None = None,
) -> Generator[MessageBatch]:
    """Read one range in batches, within its time bounds. `tags_codes`: omit messages whose unit has
    none of these tag hashes. Others may still have different tags. `on_finding`: receives damage.
    By default it raises Corrupt at the first damage. If it returns, the damaged record is omitted.
    Memory: one batch and 16,384 units. On an object store, four more batches are read ahead. Raises
    Unavailable."""
    queue = scan_range.queue
    with open_queue(provider, queue) as reader:
        tell_judged = Judge(provider, scan_range, on_finding)
        tell_judged.begin(reader, scan_range.from_offset)

        def runs_of(tell: OnFinding) -> Iterator[UnitRun]:
            for units in unit_blocks(reader, scan_range, on_finding=tell):
                tell_judged.note_units()
                yield from _wanted_runs(reader, units, tags_codes, batch_bytes)

        for run, load in load_runs(provider, reader, runs_of, tell_judged):
            for batch in _read_run(reader, run, load, tell_judged, body_crcs=body_crcs):
                tell_judged.note(batch)
                wanted = batch.within(scan_range.since_ms, scan_range.until_ms)
                del batch
                if len(wanted):
                    yield wanted
                del wanted  # the next read may then have its memory
        tell_judged.check_generation()


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
    """Read a range like `read_batches`, but the last batch first. Within a batch, messages are in
    offset order. A caller that stops early reads no earlier messages. `first_units`: number of
    units in the first read. `ahead`: read ahead over a network. Damage is reported after the
    messages of higher offsets."""
    queue = scan_range.queue
    with open_queue(provider, queue) as reader:
        tell_judged = Judge(provider, scan_range, on_finding)
        tell_judged.begin(reader, scan_range.from_offset)

        def runs_of(tell: OnFinding) -> Iterator[UnitRun]:
            for part in _parts_from_end(reader, scan_range, first_units):
                found: list[UnitRun | Finding] = []
                for units in unit_blocks(reader, part, on_finding=found.append):
                    tell_judged.note_units()
                    found.extend(_wanted_runs(reader, units, tags_codes, batch_bytes))
                for one in reversed(found):
                    if isinstance(one, Finding):
                        tell(one)
                    else:
                        yield one

        if ahead:
            loaded = load_runs(provider, reader, runs_of, tell_judged)
        else:
            loaded = _load_here(reader, runs_of, tell_judged)
        for run, load in loaded:
            for batch in _read_run(reader, run, load, tell_judged, backwards=True):
                tell_judged.note(batch)
                wanted = batch.within(scan_range.since_ms, scan_range.until_ms)
                if len(wanted):
                    yield wanted
        tell_judged.check_generation()


def _read_run(
    reader: QueueReader,
    run: UnitRun,
    load: Callable[[], memoryview],
    on_finding: OnFinding,
    *,
    body_crcs: bool = True,
    backwards: bool = False,
) -> Iterator[MessageBatch]:
    """Read a run of messages like `read_checked_run`, but report damage in the order of the
    messages."""
    findings: list[Finding] = []
    found = read_checked_run(reader, run, load, findings.append, body_crcs=body_crcs)
    return deliver_in_order(found, MessageBatch.rows, findings, on_finding, backwards=backwards)


def _parts_from_end(
    reader: QueueReader, scan_range: ScanRange, first_units: int
) -> Iterator[ScanRange]:
    """Divide a range into parts, and yield the last part first. Parts grow up to a limit."""
    low, high = scan_range.from_offset, scan_range.until_offset
    if not scan_range.is_searched:
        since_ms, until_ms = scan_range.since_ms, scan_range.until_ms
        low, high = narrow_by_heads(reader, low, high, since_ms, until_ms)
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


def load_runs(
    provider: SegmentProvider,
    reader: QueueReader,
    runs_of: Callable[[OnFinding], Iterator[UnitRun]],
    on_finding: OnFinding,
) -> Iterator[LoadedRun]:
    """Yield the runs of units that `runs_of` finds, each with a function that reads its messages.
    Over a network, the next runs are read ahead."""
    if waits_for_network(provider):
        return load_ahead(runs_of, lambda run: _prepare_run(reader, run), on_finding)
    return _load_here(reader, runs_of, on_finding)


def _load_here(
    reader: QueueReader, runs_of: Callable[[OnFinding], Iterator[UnitRun]], on_finding: OnFinding
) -> Iterator[LoadedRun]:
    return (LoadedRun(run, _prepare_run(reader, run)) for run in runs_of(on_finding))


def unit_blocks(
    reader: QueueReader,
    scan_range: ScanRange,
    *,
    on_finding: OnFinding = raise_on_damage,
    units_per_read: int = UNITS_PER_READ,
) -> Iterator[UnitRun]:
    """Yield the usable units of a range, whose messages are each in one commit log segment."""
    start, end = scan_range.from_offset, scan_range.until_offset
    if not scan_range.is_searched:
        since_ms, until_ms = scan_range.since_ms, scan_range.until_ms
        start, end = narrow_by_heads(reader, start, end, since_ms, until_ms)
    lost = subtract_intervals(start, end, reader.queue.unit_spans())
    for first, count in _blocks(subtract_intervals(start, end, lost), units_per_read):
        while lost and lost[0][0] < first:
            on_finding(make_lost_finding(reader.queue, *lost.pop(0)))
        try:
            damaged: list[BlocksDamaged] = []
            units = reader.read_units(first, count, damaged)
        except Corrupt as error:
            segment, position = reader.unit_place(first)
            text = f"units {first} to {first + count - 1} cannot be read: {error}"
            on_finding(damage("units-missing", text, segment, position, first, messages=count))
            continue
        for one in damaged:
            tell_blocks(one, on_finding, queue_offset=first)
        if damaged:
            units = distrust_tags(units, first, damaged)
        yield from _usable(reader, units, first, on_finding)
    for interval in lost:
        on_finding(make_lost_finding(reader.queue, *interval))


def _blocks(spans: Iterable[Interval], units_per_read: int) -> Iterator[tuple[int, int]]:
    """Divide spans of units into reads. Yield the first queue offset and number of units of
    each."""
    most = _FIRST_UNITS
    for start, end in spans:
        first = start
        while first < end:
            count = min(most, end - first)
            yield first, count
            first, most = first + count, units_per_read


def find_usable_units(reader: QueueReader, units: Units, first: int) -> tuple[UnitRun, Bools]:
    """Return units as a `UnitRun`, and a mask of those whose messages are each in one segment.
    `first`: queue offset of the first unit."""
    offsets = units["physical_offset"].astype(np.int64)
    sizes = units["size"].astype(np.int64)
    bases, ends = find_borders(reader.queue)
    owner = find_owners(bases, offsets)
    # A unit may name the coda at the end of an old segment: its message begins the next one.
    offsets[offsets == ends[owner] - CODA_SIZE] += CODA_SIZE
    usable = find_whole_records(reader.queue, offsets, sizes)
    if not usable.all() and reader.see_growth():
        usable = find_whole_records(reader.queue, offsets, sizes)
    numbers = np.arange(first, first + len(units), dtype=np.int64)
    return UnitRun(numbers, offsets, sizes, units["tags_code"].astype(np.int64)), usable


def _usable(
    reader: QueueReader, units: Units, first: int, on_finding: OnFinding
) -> Iterator[UnitRun]:
    found, usable = find_usable_units(reader, units, first)
    findings: list[Finding] = []
    for group in runs_of_rows(np.flatnonzero(~usable)):
        row = int(group[0])
        last = first + int(group[-1])
        offset, size = int(found.offsets[row]), int(found.sizes[row])
        findings.append(make_unusable_finding(reader, offset, size, first + row, last))
    if findings:
        found = found.take(usable)
    yield from deliver_in_order(found, UnitRun.take, findings, on_finding)


def _with_tags(units: UnitRun, tags_codes: frozenset[int] | None) -> UnitRun | None:
    """Return the units of messages that may have one of the tags, or None if no unit matches."""
    if tags_codes is None:
        return units
    codes = units.tags_codes
    # A code above 32 bits is not a hash, but the time of a delayed message, or an extension's
    # position.
    mask = np.isin(codes, list(tags_codes)) | (codes != codes.astype(np.int32))
    return units.take(mask) if mask.any() else None


def runs_of_units(queue: QueueFiles, units: UnitRun, batch_bytes: int) -> Iterator[UnitRun]:
    for part in cut_runs(queue, units.offsets, units.sizes, batch_bytes):
        yield units.take(part)


def cut_runs(
    queue: QueueFiles, offsets: Int64s, sizes: Int64s, batch_bytes: int = BATCH_BYTES
) -> Iterator[slice]:
    """Divide records into runs that are read together. A run is in one segment, in ascending order
    without large gaps, with at most `batch_bytes`. A larger record becomes a separate run."""
    bases, _ = find_borders(queue)
    owner = find_owners(bases, offsets)
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
    """Divide ascending numbers into runs of consecutive numbers."""
    if not len(rows):
        return []
    return np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1)


def make_unusable_finding(
    reader: QueueReader, offset: int, size: int, first: int, last: int
) -> Finding:
    """Return the finding that the units `first` to `last` refer to no whole record. `offset`,
    `size`: fields of the first of them."""
    segment, position = reader.unit_place(first)
    queue = reader.queue
    begin, end = queue.commit_log_min_offset, queue.commit_log_max_offset
    kind, what = "record-missing", "of a message that no commit log segment holds whole"
    expected, found = f"bytes {offset} to {offset + size}", f"a commit log that ends at {end}"
    if size < MIN_RECORD_SIZE:
        kind, what = "unit-invalid", "with an impossible message size"
        expected, found = f"at least {MIN_RECORD_SIZE}", str(size)
    elif offset < begin:
        kind, what = "record-expired", "of a message before the commit log's start"
        expected, found = f"at least {begin}", str(offset)
    until = "" if first == last else f" (and all units up to queue offset {last})"
    text, count = f"consume queue unit {what}{until}", last - first + 1
    return damage(
        kind, text, segment, position, first, expected=expected, found=found, messages=count
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
    """Read and check the messages of one run. Return None if no message is intact."""
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
                place_of(reader.queue, run.start)[0],
                queue_offset=int(run.queue_offsets[0]),
                messages=len(run.queue_offsets),
            )
        )
        return None
    batch = check_run(reader.queue, buffer, start, run, on_finding, body_crcs=body_crcs)
    return None if batch is None else trust_tags(batch)
