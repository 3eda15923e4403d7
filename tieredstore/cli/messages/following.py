"""Messages as they arrive. Each round of reads continues where the previous one ended."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tieredstore.cli.messages.loss import warn_of_loss
from tieredstore.errors import Refused, Unavailable

if TYPE_CHECKING:
    from tieredstore.cli.messages.choice import MessageRequest
    from tieredstore.errors import Corrupt
    from tieredstore.message.record import StoredMessage
    from tieredstore.scan.catalogue import QueueFiles
    from tieredstore.scan.opening import OpenTier

_log = logging.getLogger(__name__)

Row: TypeAlias = dict[str, object]
_Mark: TypeAlias = tuple[int, int, int]
"""Mark of a message: its store time, physical offset and body CRC. If the mark at a queue offset
changes, the queue was recreated."""
_SLEEP_SECONDS: Final = 0.1


class Feed(Protocol):
    """Source of messages that remembers its position in each queue. `lacks_messages`: True if some
    stored messages are not read, because the store was not stopped cleanly or damage hides the
    queue of a message. `failure`: error for damage among the latest messages, raised after their
    rows."""

    lacks_messages: bool
    failure: Corrupt | None

    def read_last(self, count: int) -> list[Row]:
        """Return the rows of the `count` matching messages with the latest store times. Later reads
        start after all existing messages."""

    def read_next(self) -> Iterator[Row]:
        """Yield the rows of matching messages that arrived since the last read, queue by queue."""


class StopFlag:
    """Flag set by a signal handler to stop a feed."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> None:
        """Wait for `seconds` or until the flag is set."""
        end = time.monotonic() + seconds
        while not self._is_set and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLEEP_SECONDS))


def follow(feed: Feed, stop: StopFlag, every_seconds: float) -> Iterator[Row]:
    """Yield the rows of existing and new messages of a feed until `stop` is set. Temporary errors
    are retried, except in the first read. Raises permanent errors."""
    has_begun = False
    while not stop.is_set():
        try:
            for row in feed.read_next():
                yield row
                if stop.is_set():
                    return
        except Unavailable as error:
            if not has_begun or isinstance(error, Refused):
                raise
            _log.warning("%s: retrying", error)
        has_begun = True
        stop.wait(every_seconds)


@dataclass(slots=True)
class _Position:
    """Position in a queue. `end`: queue offset after the last message read. `mark`: queue offset
    and `_Mark` of that message or of an earlier one. `stamps`, `log_start`: change stamps of the
    segments and start of the commit log (bytes) when the mark was last compared."""

    end: int = 0
    mark: tuple[int, _Mark] | None = None
    stamps: tuple[object, ...] = ()
    log_start: int = 0


class TierFeed:
    """Messages of a tier that a writer may be extending. Each round lists the tier."""

    def __init__(self, opened: OpenTier, request: MessageRequest) -> None:
        self._opened = opened
        self._request = request
        self._positions: dict[str, _Position] = {}
        self._there: set[str] | None = None  # queues of the last round
        self.lacks_messages = False
        self.failure: Corrupt | None = None

    def read_last(self, count: int) -> list[Row]:
        from tieredstore.cli.messages.rows import last_rows

        queues = self._choose()
        asked = self._request
        rows, self.failure = last_rows(self._opened.provider, queues, asked, count)
        for queue in queues:
            position = self._positions[queue.path] = _Position()
            _, _, position.end = self._find_end(queue, position)
        return rows

    def read_next(self) -> Iterator[Row]:
        from tieredstore.cli.messages.rows import message_rows
        from tieredstore.scan.plan import plan

        if self.failure is not None:
            raise self.failure
        provider, asked = self._opened.provider, self._request
        for listed in self._choose():
            position = self._positions.setdefault(listed.path, _Position())
            queue, begin, end = self._find_end(listed, position)
            if end <= begin:
                continue
            low = max(begin, asked.bounds.from_offset or 0)
            bounds = replace(asked.bounds, from_offset=low, until_offset=end)
            names = tuple({*asked.names, "queue_offset"})
            rows = message_rows(
                provider,
                plan(provider, [queue], bounds),
                asked.choice,
                asked.body,
                names,
                asked.on_finding,
            )
            with closing(rows):
                for row in rows:
                    position.end = int(str(row["queue_offset"])) + 1
                    yield row
            position.end = end

    def _choose(self) -> list[QueueFiles]:
        """Return the queues to read. After the first round, requested queues may be missing because
        they were deleted or have expired."""
        from tieredstore.cli.messages.choice import choose_queues

        asked, opened, before = self._request, self._opened, self._there
        found = choose_queues(
            opened.catalogue(),
            asked.topics,
            asked.queue_id,
            opened.broker,
            may_be_gone=before is not None,
        )
        self._there = {queue.path for queue in found}
        for path in sorted((before or set()) - self._there):
            _log.warning("%s: the queue is gone from the tier", path)
        return found

    def _find_end(self, queue: QueueFiles, position: _Position) -> tuple[QueueFiles, int, int]:
        """Return the queue, the offset at which to continue, and the end of its complete messages.
        The last units may have no message yet. If the message at an offset has changed since it was
        read, the queue was recreated and is read from its start."""
        from tieredstore.scan.expired import open_queue
        from tieredstore.scan.read.tail import find_committed_end, read_message

        path, begin = queue.path, position.end
        if queue.consume_queue_max_offset < begin:
            _log.warning("%s: it ends in front of offset %d: recreated", path, begin)
            position.end = begin = 0
        is_same = position.stamps == queue.stamps  # as a recreated queue may have as many messages
        if queue.consume_queue_max_offset <= begin and (is_same or not begin):
            return queue, begin, begin
        with open_queue(self._opened.provider, queue) as reader:
            offset, mark = position.mark or (0, None)
            known = None if mark is None else read_message(reader, offset)
            if known is not None and _mark(known) != mark:
                _log.warning("%s: another message is at offset %d: recreated", path, offset)
                position.end = begin = 0
            elif begin and queue.commit_log_min_offset > position.log_start:
                first = max(begin, self._request.bounds.from_offset or 0)
                warn_of_loss(path, first, reader.min_offset())
            end = find_committed_end(reader, floor=begin)
            last = read_message(reader, end - 1) if end > begin else None
            if last is not None:
                position.mark = end - 1, _mark(last)
            position.stamps, position.log_start = queue.stamps, queue.commit_log_min_offset
            return reader.queue, begin, end


def _mark(message: StoredMessage) -> _Mark:
    return message.store_timestamp_ms, message.physical_offset, message.body_crc
