"""The messages of some queues that were stored last."""

from __future__ import annotations

import heapq
from contextlib import closing
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.cli.messages.rows import make_rows_singly

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tieredstore.cli.messages.choice import MessageChoice
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.scan.catalogue import QueueFiles
    from tieredstore.scan.plan import ScanBounds
    from tieredstore.scan.rows import BodyForm

    Placed: TypeAlias = tuple[int, int, int, dict[str, object]]
    """Store time (epoch ms), number of the queue, queue offset, row."""

MOST_MESSAGES = 10_000
"""They are held in memory."""
_FEW = 100
"""Messages of a queue up to which several queues are read at once over a network."""


def last_rows(
    provider: SegmentProvider,
    queues: Sequence[QueueFiles],
    bounds: ScanBounds,
    choice: MessageChoice,
    body: BodyForm,
    count: int,
) -> list[dict[str, object]]:
    """Return the rows of the `count` wanted messages that were stored last, in the order of their
    store times. Each queue is read from its end, until it gave `count` of them: of messages that
    lie in front of these and were stored later, by a clock that was set back, none is found.

    Memory: twice `count` messages, of few a bounded number of times as many. Raises Corrupt,
    Unavailable.
    """
    from tieredstore.scan.ahead import map_ahead

    def read(numbered: tuple[int, QueueFiles]) -> list[Placed]:
        return list(_read_last(provider, *numbered, bounds, choice, body, count))

    numbered = list(enumerate(queues))
    each = map_ahead(provider, read, numbered) if count <= _FEW else map(read, numbered)
    found: list[Placed] = []
    for placed in each:
        found = heapq.nlargest(count, chain(found, placed), key=lambda one: one[:3])
    return [row for _, _, _, row in reversed(found)]


def _read_last(
    provider: SegmentProvider,
    number: int,
    queue: QueueFiles,
    bounds: ScanBounds,
    choice: MessageChoice,
    body: BodyForm,
    count: int,
) -> Iterator[Placed]:
    from tieredstore.scan.plan import plan
    from tieredstore.scan.read.batches import read_batches_backwards

    left = count
    for one in reversed(list(plan(provider, [queue], bounds))):
        if not left:
            return
        batches = read_batches_backwards(
            provider, one, tags_codes=choice.tags_codes, first_units=left, ahead=False
        )
        with closing(batches):
            for batch in batches:
                chosen = choice.select(batch)
                chosen = chosen.rows(slice(max(len(chosen) - left, 0), None))
                left -= len(chosen)
                times, offsets = chosen.columns.store_timestamps, chosen.queue_offsets
                rows = make_rows_singly(chosen, body, ())
                for time_ms, offset, row in zip(times, offsets, rows, strict=True):
                    yield int(time_ms), number, int(offset), row
                if not left:
                    return
