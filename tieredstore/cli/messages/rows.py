"""Messages of a tier as rows."""

from __future__ import annotations

from contextlib import closing
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

    from tieredstore.cli.messages.choice import MessageChoice
    from tieredstore.contracts.segment import SegmentProvider
    from tieredstore.errors import TieredStoreError
    from tieredstore.scan.catalogue import QueueFiles
    from tieredstore.scan.findings import OnFinding
    from tieredstore.scan.plan import ScanRange
    from tieredstore.scan.read.batch import MessageBatch
    from tieredstore.scan.rows import BodyForm

    RowsOf = Callable[[MessageBatch, BodyForm, tuple[str, ...]], Iterator[dict[str, object]]]

MESSAGE_COLUMNS = ("queue_id", "queue_offset", "store_timestamp", "tags", "keys", "msg_id", "body")
"""What a table shows; JSON has every field."""
_FEW = 4096
"""Messages for which pyarrow is not worth its import."""


def message_rows(
    provider: SegmentProvider,
    ranges: Iterable[ScanRange],
    choice: MessageChoice,
    body: BodyForm,
    names: tuple[str, ...],
    *,
    reverse: bool = False,
) -> Generator[dict[str, object]]:
    """Yield the rows of the wanted messages of some ranges, with these fields at least. After the
    first ones whole batches become rows, where pyarrow is installed. reverse: the ranges of each
    queue are read from their ends, the last one first. Raises Corrupt, Unavailable, also for
    messages that expire meanwhile."""
    from tieredstore.errors import Corrupt
    from tieredstore.scan.findings import raise_on_damage
    from tieredstore.scan.read.batches import read_batches, read_batches_backwards
    from tieredstore.scan.read.small_ranges import read_small_ahead

    codes = choice.tags_codes
    rows_of: RowsOf = make_rows_singly
    count = 0
    queues: dict[tuple[str | None, int | None], QueueFiles] = {}

    def read(one: ScanRange, tell: OnFinding) -> Generator[MessageBatch]:
        queues[one.queue.topic, one.queue.queue_id] = one.queue
        read_range = read_batches_backwards if reverse else read_batches
        return read_range(provider, one, on_finding=tell, tags_codes=codes)

    batches = read_small_ahead(
        provider,
        _reverse_queues(ranges) if reverse else ranges,
        lambda one: one.size_bytes,
        read,
        raise_on_damage,
    )
    with closing(batches):
        try:
            for batch in batches:
                chosen = choice.select(batch)
                rows = rows_of(chosen, body, names)
                yield from reversed(list(rows)) if reverse else rows
                count += len(chosen)
                if count >= _FEW:
                    rows_of = _choose_rows_of()
        except Corrupt as error:
            _refuse_expired(provider, queues.get((error.topic, error.queue_id)), error)
            raise


def _refuse_expired(
    provider: SegmentProvider, queue: QueueFiles | None, error: TieredStoreError
) -> None:
    """Raise Unavailable if segments of a queue have gone since its messages were planned: what
    looks like damage has expired."""
    from tieredstore.errors import Unavailable
    from tieredstore.scan.catalogue import list_again

    if queue is None:
        return
    now = list_again(provider, queue)
    left = {extent.id for extent in (*now.commit_log, *now.consume_queue)}
    known = (*queue.commit_log, *queue.consume_queue)
    if any(extent.listing is not None and extent.id not in left for extent in known):
        text = f"{queue.path}: messages expired while they were read; run again"
        raise Unavailable(text, path=queue.path) from error


def _reverse_queues(ranges: Iterable[ScanRange]) -> Iterator[ScanRange]:
    """The ranges of each queue, the last one first."""
    for _, group in groupby(ranges, key=lambda one: one.queue.path):
        yield from reversed(list(group))


def make_rows_singly(
    batch: MessageBatch,
    body: BodyForm,
    names: tuple[str, ...],  # noqa: ARG001
) -> Iterator[dict[str, object]]:
    """Yield the rows of a batch, one message at a time, with all fields."""
    from tieredstore.scan.rows import message_row

    for message in batch.messages():
        yield message_row(message, batch.queue.broker, body)


def _choose_rows_of() -> RowsOf:
    try:
        from tieredstore.scan.arrow.rows import batch_rows
    except ImportError:
        return make_rows_singly
    return batch_rows
