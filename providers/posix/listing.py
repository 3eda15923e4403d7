"""Finds the segments of a Posix tier by their names, in one walk.

Most of the folders of a tier hold nothing but one or two others. A file system that counts a
folder's folders (its links) tells with one call that these are the ones that are expected, where
reading it takes five; where the count is another one, or none is kept, the folder is read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence

from tieredstore.contracts.segment import FileSegmentType, SegmentId, SegmentListing
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.errors import Invalid
from tieredstore.providers import naming
from tieredstore.providers.posix.calls import PosixCalls

_FOLDER_DEPTH = 4  # broker, topic, queue id, TYPE
_TOPIC_DEPTH = 2
_OWN_LINKS = 2
"""Of a folder without folders, where they are counted."""
_QUEUE_TYPES = (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)


def list_clusters(root: str) -> list[str]:
    """List the names of the clusters that have a folder below `root`. Raises Invalid."""
    try:
        names = sorted(os.listdir(root))  # noqa: PTH208
    except FileNotFoundError:
        raise Invalid(f"tier file://{root}: no such directory", path=root) from None
    except NotADirectoryError:
        raise Invalid(f"tier file://{root}: not a directory", path=root) from None
    return [found for name in names if (found := naming.parse_cluster_directory_name(name))]


def list_segments(
    cluster_directory: str,
    wanted: tuple[str, ...],
    calls: PosixCalls,
    expected: Mapping[tuple[str, ...], Sequence[str]],
) -> Iterator[SegmentListing]:
    """Yield the segments below the folders `wanted` (broker, topic, queue id, as many as given).

    expected: by broker and topic, the ids of queues that are probably there, and alone there.
    Files and folders that are not named like a segment's are left out. Raises Unavailable when a
    folder that is there cannot be read.
    """
    # Folders to be read, with their names from the broker's on. No generator in a generator: each
    # would cost something for each segment.
    waiting: list[tuple[str, tuple[str, ...]]] = [(cluster_directory, ())]
    while waiting:
        directory, above = waiting.pop()
        depth = len(above)
        if depth < len(wanted):
            name = wanted[depth]
            waiting.append((f"{directory}/{name}", (*above, name)))
            continue
        if depth == _TOPIC_DEPTH and (queue_ids := expected.get(above)):
            found = _read_expected(directory, queue_ids, calls)
            if found is not None:
                for queue_id, segment_type, entries in found:
                    path = f"{above[0]}/{above[1]}/{queue_id}"
                    yield from _list_folder(path, segment_type, entries)
                continue
        entries = _entries(directory, calls)
        if depth < _FOLDER_DEPTH:
            waiting += [
                (entry.path, (*above, entry.name))
                for entry in entries
                if _fits(entry.name, depth) and _is_directory(entry)
            ]
            continue
        named = naming.parse_type_name(above[3])
        if named is not None:
            yield from _list_folder("/".join(above[:3]), named, entries)


def _list_folder(
    path: str, segment_type: FileSegmentType, entries: list[os.DirEntry[str]]
) -> list[SegmentListing]:
    """The segments of a path and type, as their folder has them."""
    found = []
    for entry in entries:
        base_offset = naming.parse_segment_file_name(entry.name)
        size_bytes = None if base_offset is None else _size_of_file(entry)
        if base_offset is not None and size_bytes is not None:
            found.append(SegmentListing(SegmentId(path, segment_type, base_offset), size_bytes))
    return found


def _read_expected(
    directory: str, queue_ids: Sequence[str], calls: PosixCalls
) -> list[tuple[str, FileSegmentType, list[os.DirEntry[str]]]] | None:
    """Read the folders with the files of a topic's queues; None where the topic has others, or
    where that cannot be told."""
    found = []
    try:
        if calls.stat(directory).st_nlink != _OWN_LINKS + len(queue_ids):
            return None
        for queue_id in queue_ids:
            queue = f"{directory}/{queue_id}"
            if calls.stat(queue).st_nlink != _OWN_LINKS + len(_QUEUE_TYPES):
                return None
            found += [
                (queue_id, segment_type, calls.scan(f"{queue}/{segment_type.name}"))
                for segment_type in _QUEUE_TYPES
            ]
    except OSError:
        return None  # reading one folder after the other says what is wrong
    return found


def _entries(directory: str, calls: PosixCalls) -> list[os.DirEntry[str]]:
    try:
        return calls.scan(directory)
    except FileNotFoundError:
        return []  # never made, or deleted since its parent was read
    except OSError as error:
        raise translate_os_error(error, "list", directory, invalid=RETRY_LATER) from error


def _fits(name: str, depth: int) -> bool:
    """Whether a folder at that depth can belong to a tier."""
    if depth < 2:
        return naming.is_name(name)
    return naming.is_queue_id(name) if depth == 2 else naming.parse_type_name(name) is not None


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        raise translate_os_error(error, "list", entry.path, invalid=RETRY_LATER) from error


def _size_of_file(entry: os.DirEntry[str]) -> int | None:
    """None for what is no file, or was deleted since the folder was read."""
    try:
        found = entry.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_os_error(error, "list", entry.path, invalid=RETRY_LATER) from error
    return found.st_size if stat.S_ISREG(found.st_mode) else None
