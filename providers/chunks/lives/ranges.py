"""Ranges of keys, so that a long listing is several that run side by side.

A queue's folder is in one range, so each segment is still listed by one chain of requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from typing import NamedTuple, TypeVar

from tieredstore.providers.chunks.client import ObjectClient, ObjectInfo

LEAST_QUEUES = 250
"""In a range: so many have a page of objects at least."""
_RANGES_A_THREAD = 2
"""Ranges are not of one length: who is done early takes another one."""
_Found = TypeVar("_Found")


class KeyRange(NamedTuple):
    """The keys below `prefix` behind `start`, and below `end` ("": all)."""

    prefix: str
    start: str = ""
    end: str = ""

    def list(self, client: ObjectClient) -> Iterator[ObjectInfo]:
        """Yield the objects; the last page of them may be read in vain."""
        listed = client.list(self.prefix, self.start)
        return takewhile(lambda info: info.key < self.end, listed) if self.end else listed


def split(prefix: str, queue_folders: Sequence[str], threads: int) -> list[KeyRange]:
    """Split the keys below a prefix into ranges with about as many of these folders each, which end
    with "/"."""
    folders = sorted({folder for folder in queue_folders if folder.startswith(prefix)})
    count = max(min(threads * _RANGES_A_THREAD, len(folders) // LEAST_QUEUES), 1)
    bounds = [folders[len(folders) * number // count] for number in range(1, count)]
    starts, ends = ["", *bounds], [*bounds, ""]
    return [KeyRange(prefix, start, end) for start, end in zip(starts, ends, strict=True)]


def map_side_by_side(
    work: Callable[[KeyRange], _Found], ranges: Sequence[KeyRange], threads: int
) -> list[_Found]:
    """Call `work` for each range, in so many threads; without any for a single range. Raises what
    the first range raises that raises anything."""
    if len(ranges) == 1:
        return [work(ranges[0])]
    with ThreadPoolExecutor(min(threads, len(ranges)), "tiered-listing") as pool:
        tasks = [pool.submit(work, found) for found in ranges]
        try:
            return [task.result() for task in tasks]
        finally:
            for task in tasks:
                task.cancel()
