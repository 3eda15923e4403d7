"""Messages of a tier as rows: all messages in ranges, or the last messages of queues."""

from __future__ import annotations

import heapq
from contextlib import closing
from itertools import chain, groupby
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.errors import Corrupt

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from tieredstore.cli.messages.choice import MessageChoice
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.findings import OnFinding
    from tieredstore.scan.plan import ScanRange
    from tieredstore.scan.read.batch import MessageBatch
    from tieredstore.scan.rows import BodyForm

    RowsOf = Callable[[MessageBatch, BodyForm, tuple[str, ...]], Iterator[dict[str, object]]]
    from collections.abc import Iterator, Sequence

    from tieredstore.cli.messages.choice import MessageRequest
    from tieredstore.scan.catalogue import QueueFiles

    Placed: TypeAlias = tuple[int, int, int, dict[str, object]]
    """Row with its sort key: store time (epoch ms), index of the queue, queue offset, row."""


MESSAGE_COLUMNS = ("queue_id", "queue_offset", "store_timestamp", "tags", "keys", "msg_id", "body")
"""Columns of a table of messages. JSON output has every field."""
_FEW = 4096
"""Number of messages below which importing pyarrow takes longer than it saves."""


def message_rows(
    provider: SegmentProvider,
    ranges: Iterable[ScanRange],
    choice: MessageChoice,
    body: BodyForm,
    names: tuple[str, ...],
    on_finding: OnFinding,
    *,
    reverse: bool = False,
) -> Generator[dict[str, object]]:
    """Yield the rows of matching messages in ranges of queues. Each row has at least the given
    fields. The first rows are built one at a time, and later ones from whole batches if pyarrow is
    installed, which is faster. `reverse`: read the ranges of each queue backwards. Raises Corrupt,
    Unavailable, and Expired if messages expire during the read."""
    from tieredstore.scan.read.batches import read_batches, read_batches_backwards
    from tieredstore.scan.read.small_ranges import read_small_ahead

    codes = choice.tags_codes
    rows_of: RowsOf = make_rows_singly
    count = 0

    def read(one: ScanRange, tell: OnFinding) -> Generator[MessageBatch]:
        read_range = read_batches_backwards if reverse else read_batches
        return read_range(provider, one, on_finding=tell, tags_codes=codes)

    batches = read_small_ahead(
        provider,
        _reverse_queues(ranges) if reverse else ranges,
        lambda one: one.size_bytes,
        read,
        on_finding,
    )
    with closing(batches):
        for batch in batches:
            chosen = choice.select(batch)
            rows = rows_of(chosen, body, names)
            yield from reversed(list(rows)) if reverse else rows
            count += len(chosen)
            if count >= _FEW:
                rows_of = _choose_rows_of()


def _reverse_queues(ranges: Iterable[ScanRange]) -> Iterator[ScanRange]:
    for _, group in groupby(ranges, key=lambda one: one.queue.path):
        yield from reversed(list(group))


def make_rows_singly(
    batch: MessageBatch,
    body: BodyForm,
    names: tuple[str, ...],  # noqa: ARG001
) -> Iterator[dict[str, object]]:
    """Yield the rows of a batch with all fields, one message at a time."""
    from tieredstore.scan.rows import message_row

    for message in batch.messages():
        yield message_row(message, batch.queue.broker, body)


def _choose_rows_of() -> RowsOf:
    try:
        from tieredstore.scan.arrow.rows import batch_rows
    except ImportError:
        return make_rows_singly
    return batch_rows


MOST_MESSAGES = 10_000
"""Maximum number of messages that `last_rows` can return, because it holds them in memory."""
_FEW_LAST = 100
"""Maximum number of messages per queue for which `last_rows` reads queues concurrently over a
network."""


def last_rows(
    provider: SegmentProvider,
    queues: Sequence[QueueFiles],
    asked: MessageRequest,
    count: int,
) -> tuple[list[dict[str, object]], Corrupt | None]:
    """Return the rows of the `count` matching messages with the latest store times, ordered by
    store time. Also returns the first error for damage among them, or None. Only rows after the
    damage are returned.

    Each queue is read backwards until `count` messages are found. An earlier message is not found
    even if it has a later store time, because a clock was set back. Memory: twice `count` messages,
    or a bounded multiple if `count` is small. Raises Unavailable."""
    from tieredstore.scan.ahead import map_ahead

    def read(numbered: tuple[int, QueueFiles]) -> tuple[list[Placed], Corrupt | None]:
        placed: list[Placed] = []
        try:
            placed.extend(_read_last(provider, *numbered, asked, count))
        except Corrupt as error:
            return placed, error
        return placed, None

    numbered = list(enumerate(queues))
    each = map_ahead(provider, read, numbered) if count <= _FEW_LAST else map(read, numbered)
    found: list[Placed] = []
    failure: Corrupt | None = None
    for placed, error in each:
        failure = failure or error
        found = heapq.nlargest(count, chain(found, placed), key=lambda one: one[:3])
    return [row for _, _, _, row in reversed(found)], failure


def _read_last(
    provider: SegmentProvider,
    number: int,
    queue: QueueFiles,
    asked: MessageRequest,
    count: int,
) -> Iterator[Placed]:
    from tieredstore.scan.plan import plan
    from tieredstore.scan.read.batches import read_batches_backwards

    left = count
    for one in reversed(list(plan(provider, [queue], asked.bounds))):
        if not left:
            return
        batches = read_batches_backwards(
            provider,
            one,
            on_finding=asked.on_finding,
            tags_codes=asked.choice.tags_codes,
            first_units=left,
            ahead=False,
        )
        with closing(batches):
            for batch in batches:
                chosen = asked.choice.select(batch)
                chosen = chosen.rows(slice(max(len(chosen) - left, 0), None))
                left -= len(chosen)
                times, offsets = chosen.columns.store_timestamps, chosen.queue_offsets
                rows = make_rows_singly(chosen, asked.body, ())
                for time_ms, offset, row in zip(times, offsets, rows, strict=True):
                    yield int(time_ms), number, int(offset), row
                if not left:
                    return
