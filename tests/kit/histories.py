"""Generated tiers with every kind of event and damage, and the list of rows that a reader must
find.

    history = build(root, draw(histories()))
    history.rows(since_ms=…)     # the expected rows: a loop over a list, without index or search
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from tests.kit.tier_builder import (
    BROKER,
    CLUSTER,
    START_MS,
    STORE_HOST,
    announce_segment,
    write_segment,
)
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.message.consume_queue import UNIT_SIZE, pack_unit
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.layout import CODA_SIZE, MAGIC_BLANK
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.provider import PosixProvider

COLUMNS = ("topic", "queue_id", "queue_offset", "store_timestamp", "body", "tags", "msg_id", "keys")
"""Columns of the scans whose rows `rows_of` returns."""
LOG, UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE
KINDS = ("body", "head", "unit", "zeros")
"""The damaged bytes of a message: one byte of its body, its magic code, its unit, or the whole
record, which is replaced by zeros."""
TAILS = ("whole", "zeros", "cut", "units")
"""States of a queue's end: whole, last message replaced by zeros, cut within the last message, or a
unit without its message."""


@dataclass(frozen=True)
class QueuePlan:
    """Plan of one queue, whose messages are numbered from 0. `rolls`: messages that begin new
    segments. `steps`: (number, clock change in ms). `odd_times`: (number, store time) of single
    messages. `codas`: messages before which an old writer left a coda. `holes`: (number, count) of
    queue offsets that the dispatcher skipped before a message. `damaged`: (number, kind). `lost`:
    (type, number) of segments missing in the middle. `expired`: counts of segments missing at the
    beginning of the commit log and the consume queue."""

    topic: str
    queue_id: int
    count: int
    first_offset: int
    pace_ms: int
    rolls: frozenset[int] = frozenset()
    steps: tuple[tuple[int, int], ...] = ()
    odd_times: tuple[tuple[int, int], ...] = ()
    codas: frozenset[int] = frozenset()
    holes: tuple[tuple[int, int], ...] = ()
    damaged: tuple[tuple[int, str], ...] = ()
    lost: tuple[tuple[FileSegmentType, int], ...] = ()
    expired: tuple[int, int] = (0, 0)
    tail: str = "whole"

    def times(self) -> list[int]:
        """Store times of the messages, epoch ms."""
        now, found = START_MS, []
        for number in range(self.count):
            now += sum(by for at, by in self.steps if at == number) + self.pace_ms
            found.append(dict(self.odd_times).get(number, now))
        return found


@dataclass(frozen=True)
class Row:
    """A message that a reader must find. The first of its `keys` is the UNIQ_KEY."""

    topic: str
    queue_id: int
    queue_offset: int
    store_ms: int
    body: bytes
    tags: str | None
    keys: tuple[str, ...]

    @property
    def place(self) -> tuple[str, int, int]:
        return self.topic, self.queue_id, self.queue_offset


@dataclass
class History:
    """A tier built from plans, and its expected rows. If `is_damaged`, a reader may fail instead of
    returning them."""

    root: Path
    plans: list[QueuePlan]
    all_rows: list[Row] = field(default_factory=list)
    is_damaged: bool = False

    @property
    def url(self) -> str:
        return f"file://{self.root / 'tier'}"

    @property
    def state(self) -> Path:
        return self.root / "state"

    def rows(
        self,
        *,
        queue_ids: Iterable[int] | None = None,
        from_offset: int | None = None,
        until_offset: int | None = None,
        since_ms: int | None = None,
        until_ms: int | None = None,
        tags: Iterable[str] | None = None,
        keys: Iterable[str] | None = None,
    ) -> list[Row]:
        """Return the expected rows for the given filters, sorted by topic, queue and offset."""
        return sorted(
            (
                row
                for row in self.all_rows
                if (queue_ids is None or row.queue_id in queue_ids)
                and (from_offset is None or row.queue_offset >= from_offset)
                and (until_offset is None or row.queue_offset < until_offset)
                and (since_ms is None or row.store_ms >= since_ms)
                and (until_ms is None or row.store_ms < until_ms)
                and (tags is None or row.tags in set(tags))
                and (keys is None or not set(keys).isdisjoint(row.keys))
            ),
            key=lambda row: row.place,
        )


def rows_of(batches: Iterable[pa.RecordBatch]) -> list[Row]:
    """Return the rows of record batches, sorted by topic, queue and offset."""
    found: list[Row] = []
    for batch in batches:
        times = batch.column(batch.schema.get_field_index("store_timestamp")).view(pa.int64())
        for row, time_us in zip(batch.to_pylist(), times.to_pylist(), strict=True):
            uniq = (row["msg_id"],) if row["msg_id"].startswith("U-") else ()
            found.append(
                Row(
                    row["topic"],
                    row["queue_id"],
                    row["queue_offset"],
                    time_us // 1000,
                    row["body"],
                    row["tags"],
                    (*uniq, *row["keys"]),
                )
            )
    return sorted(found, key=lambda row: row.place)


@st.composite
def queue_plans(draw: st.DrawFn, topic: str, queue_id: int) -> QueuePlan:
    count = draw(st.integers(1, 24))
    number = st.integers(0, count - 1)
    rolls = draw(st.frozensets(st.integers(1, count), max_size=4))
    segments = len([at for at in rolls if at < count]) + 1
    middle = st.tuples(st.sampled_from([LOG, UNITS]), st.integers(1, max(segments - 2, 1)))
    gone = st.integers(0, segments - 1)
    return QueuePlan(
        topic,
        queue_id,
        count,
        first_offset=draw(st.sampled_from([0, 0, 100])),
        pace_ms=draw(st.sampled_from([0, 1, 1_000, 3_600_000])),
        rolls=rolls,
        steps=tuple(draw(st.lists(st.tuples(number, _STEP), max_size=2))),
        odd_times=tuple(draw(st.lists(st.tuples(number, _ODD), max_size=1))),
        codas=draw(st.frozensets(number, max_size=1)),
        holes=tuple((at, draw(st.integers(1, 9))) for at in sorted(rolls) if draw(_RARELY)),
        damaged=tuple(draw(st.lists(st.tuples(number, st.sampled_from(KINDS)), max_size=2))),
        lost=tuple(draw(st.lists(middle, max_size=1))) if segments > 2 and draw(_RARELY) else (),
        expired=(draw(gone), draw(gone)) if draw(_RARELY) else (0, 0),
        tail=draw(st.sampled_from(TAILS)),
    )


_STEP = st.sampled_from([-3_600_000, -5_000, -3, 2_000, 86_400_000])
_ODD = st.sampled_from([-5, 0, START_MS - 7_200_000, START_MS * 3])
_RARELY = st.integers(0, 3).map(lambda number: number == 3)


@st.composite
def histories(draw: st.DrawFn) -> list[QueuePlan]:
    """Draw plans of one to three queues in two topics."""
    names = [("orders", 0), ("orders", 1), ("paid", 0)]
    return [draw(queue_plans(*name)) for name in names[: draw(st.integers(1, 3))]]


@st.composite
def filters(draw: st.DrawFn, plans: list[QueuePlan]) -> dict[str, Any]:
    """Draw arguments for `History.rows` that occur in the history or are close to values that do.
    Readers refuse crossed bounds and unknown queues, so none are drawn."""
    queue_ids = sorted({plan.queue_id for plan in plans})
    times = sorted({time + by for plan in plans for time in plan.times() for by in (0, 1)})
    offsets = st.integers(0, 130)
    choices: dict[str, st.SearchStrategy[Any]] = {
        "since_ms": st.sampled_from(times),
        "until_ms": st.sampled_from(times),
        "from_offset": offsets,
        "until_offset": offsets,
        "queue_ids": st.sampled_from([*((one,) for one in queue_ids), tuple(queue_ids)]),
        "tags": st.sampled_from([("Tag0",), ("Tag1", "none")]),
        "keys": st.lists(
            st.sampled_from(["orders-0-1", "orders-0-7", "orders-1-2", "paid-0-0", "U-paid-0-3"]),
            min_size=1,
            max_size=3,
        ).map(tuple),
    }
    drawn = {name: draw(choices[name]) for name in choices if draw(st.integers(0, 2)) == 0}
    for lower, upper in (("since_ms", "until_ms"), ("from_offset", "until_offset")):
        if lower in drawn and upper in drawn:
            drawn[lower], drawn[upper] = sorted((drawn[lower], drawn[upper]))
    return drawn


def build(root: Path, plans: list[QueuePlan]) -> History:
    """Write the tier and the state that the plans describe."""
    (root / "tier").mkdir(parents=True)
    history = History(root, plans)
    provider = PosixProvider(root / "tier", CLUSTER, fsync=False, checksums=False)
    metadata = DefaultMetadataStore(root / "state/config/tieredStoreMetadata.json", BROKER)
    metadata.load()
    for plan in plans:
        _QueueWriter(history, provider, metadata, plan).write()
    metadata.flush()
    return history


@dataclass
class _Segment:
    """A segment. `base` has the queue offset of its first message, and the commit log position of
    its beginning."""

    base: tuple[int, int]
    log: bytearray = field(default_factory=bytearray)
    units: bytearray = field(default_factory=bytearray)
    times: list[int] = field(default_factory=list)
    rows: list[tuple[Row, bool, int]] = field(default_factory=list)
    """For each message of the segment: its row, whether its record is intact, and the commit log
    offset in its unit."""


class _QueueWriter:
    def __init__(
        self,
        history: History,
        provider: PosixProvider,
        metadata: DefaultMetadataStore,
        plan: QueuePlan,
    ) -> None:
        self._history = history
        self._provider = provider
        self._metadata = metadata
        self._plan = plan
        self._path = f"{BROKER}/{plan.topic}/{plan.queue_id}"

    def write(self) -> None:
        plan = self._plan
        self._metadata.add_topic(plan.topic)
        self._metadata.add_queue(plan.topic, plan.queue_id)
        segments = self._fill()
        gone = set(plan.lost)
        gone |= {(LOG, number) for number in range(plan.expired[0])}
        gone |= {(UNITS, number) for number in range(plan.expired[1])}
        expired = {(LOG, n) for n in range(plan.expired[0])}
        expired |= {(UNITS, n) for n in range(plan.expired[1])}
        # The position in the unit decides whether a message has expired, also after a coda.
        log_start = segments[plan.expired[0]].base[1] if plan.expired[0] else 0
        for number, segment in enumerate(segments):
            for type_, base, data in (
                (LOG, segment.base[1], segment.log),
                (UNITS, segment.base[0] * UNIT_SIZE, segment.units),
            ):
                if (type_, number) not in expired and data:
                    id_ = SegmentId(self._path, type_, base)
                    if (type_, number) not in gone:
                        write_segment(self._provider, id_, bytes(data))
                    announce_segment(self._metadata, id_, len(data), segment.times)
            if (LOG, number) not in gone and (UNITS, number) not in gone:
                self._history.all_rows += [
                    row for row, is_good, named in segment.rows if is_good and named >= log_start
                ]
        if plan.damaged or plan.lost or plan.tail != "whole":
            self._history.is_damaged = True

    def _fill(self) -> list[_Segment]:
        plan = self._plan
        segments = [_Segment((plan.first_offset, 0))]
        offset, end, damaged = plan.first_offset, 0, dict(plan.damaged)
        for number, time_ms in enumerate(plan.times()):
            offset += dict(plan.holes).get(number, 0)
            segment, named = segments[-1], end
            if number in plan.codas:
                segment.log += CODA_SIZE.to_bytes(4, "big") + MAGIC_BLANK.to_bytes(4, "big")
                segment.log += bytes(8)
                end += CODA_SIZE
                named = end if number % 2 else named  # units may name either
            if number in plan.rolls:
                segment = _Segment((offset, end))
                segments.append(segment)
            message = _message(plan, number)
            record = encode_record(message, offset, end, time_ms, store_host=STORE_HOST)
            unit = pack_unit(named, len(record), message.tags_code)
            kind = damaged.get(number)
            if number == plan.count - 1 and plan.tail != "whole":
                kind = plan.tail
            stored = _damage(record, kind)
            segment.log += stored
            segment.units += bytes(UNIT_SIZE) if kind == "unit" else unit
            segment.times.append(time_ms)
            segment.rows.append((_row(plan, message, offset, time_ms), kind is None, named))
            end += len(record)
            offset += 1
        return segments


def _message(plan: QueuePlan, number: int) -> Message:
    name = f"{plan.topic}-{plan.queue_id}-{number}"
    return Message.create(
        plan.topic,
        f"body {name} ".encode() * (1 + number % 3),
        queue_id=plan.queue_id,
        tags=f"Tag{number % 3}" if number % 4 else None,
        keys=[name, "hot"] if number % 5 else [],
        uniq_key=f"U-{name}" if number % 2 else None,
        born_timestamp_ms=START_MS - 10 + number,
        born_host=("fe80::1", 9) if number % 7 == 3 else ("10.1.2.3", 4567),
    )


def _row(plan: QueuePlan, message: Message, offset: int, time_ms: int) -> Row:
    uniq = [message.uniq_key] if message.uniq_key else []
    return Row(
        plan.topic,
        plan.queue_id,
        offset,
        time_ms,
        bytes(message.body),
        message.tags,
        (*uniq, *message.keys),
    )


def _damage(record: bytes, kind: str | None) -> bytes:
    data = bytearray(record)
    match kind:
        case "body":
            data[data.index(b"body ")] ^= 0xFF
        case "head":
            data[4] ^= 0xFF
        case "zeros":
            return bytes(len(record))
        case "cut":
            return record[: len(record) // 2]
        case "units":
            return b""
    return bytes(data)
