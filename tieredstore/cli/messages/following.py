"""Messages as they come: round by round, each behind what the one before it has read."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from tieredstore.errors import Unavailable

if TYPE_CHECKING:
    from tieredstore.cli.messages.request import MessageRequest
    from tieredstore.scan.catalogue import QueueFiles
    from tieredstore.scan.opening import OpenTier

_log = logging.getLogger(__name__)

Row: TypeAlias = dict[str, object]
_SLEEP_SECONDS: Final = 0.1


class Feed(Protocol):
    """Where messages come from; it knows up to where each queue was read."""

    def read_last(self, count: int) -> list[Row]:
        """Return the `count` wanted messages that were stored last, and go on behind all that is
        there now."""
        ...

    def read_next(self) -> Iterator[Row]:
        """Yield the wanted messages that are there now and were not read, queue by queue."""
        ...


class StopFlag:
    """Asks a feed to end, from a handler of signals."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        self._is_set = True

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, seconds: float) -> None:
        """Wait so long, or until it is set."""
        end = time.monotonic() + seconds
        while not self._is_set and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, _SLEEP_SECONDS))


def follow(feed: Feed, stop: StopFlag, every_seconds: float) -> Iterator[Row]:
    """Yield what a feed has, and what it gets, until `stop` is set. What cannot be reached for a
    while is tried again, but for the first time. Raises what reading raises."""
    has_begun = False
    while not stop.is_set():
        try:
            for row in feed.read_next():
                yield row
                if stop.is_set():
                    return
        except Unavailable as error:
            if not has_begun:
                raise
            _log.warning("%s; it is tried again", error)
        has_begun = True
        stop.wait(every_seconds)


class TierFeed:
    """The messages of a tier that somebody writes: each round lists it."""

    def __init__(self, opened: OpenTier, request: MessageRequest) -> None:
        self._opened = opened
        self._request = request
        self._ends: dict[str, int] = {}

    def read_last(self, count: int) -> list[Row]:
        from tieredstore.cli.messages.last import last_rows

        queues = self._choose()
        asked = self._request
        rows = last_rows(
            self._opened.provider, queues, asked.bounds, asked.choice, asked.body, count
        )
        self._ends = {queue.path: queue.consume_queue_max_offset for queue in queues}
        return rows

    def read_next(self) -> Iterator[Row]:
        from tieredstore.cli.messages.rows import message_rows
        from tieredstore.scan.plan import plan

        provider, asked = self._opened.provider, self._request
        for listed in self._choose():
            path = listed.path
            begin = self._ends.get(path, 0)
            if listed.consume_queue_max_offset < begin:
                _log.warning("%s: it ends in front of offset %d: made anew", path, begin)
                begin = 0
            queue, end = self._find_end(listed, begin)
            if end <= begin:
                continue
            low = max(begin, asked.bounds.from_offset or 0)
            bounds = replace(asked.bounds, from_offset=low, until_offset=end)
            names = tuple({*asked.names, "queue_offset"})
            rows = message_rows(
                provider, plan(provider, [queue], bounds), asked.choice, asked.body, names
            )
            with closing(rows):
                for row in rows:
                    self._ends[path] = int(str(row["queue_offset"])) + 1
                    yield row
            self._ends[path] = end

    def _choose(self) -> list[QueueFiles]:
        from tieredstore.cli.messages.choice import choose_queues

        asked, opened = self._request, self._opened
        return choose_queues(opened.catalogue(), asked.topics, asked.queue_id, opened.broker)

    def _find_end(self, queue: QueueFiles, begin: int) -> tuple[QueueFiles, int]:
        """The queue, and the offset behind its last message that is whole: of what is written just
        now, units may be there first."""
        from tieredstore.scan.extents import QueueReader
        from tieredstore.scan.segments.tail import find_committed_end

        if queue.consume_queue_max_offset <= begin:
            return queue, begin
        with QueueReader(self._opened.provider, queue) as reader:
            end = find_committed_end(reader, floor=begin)
            return reader.queue, end
