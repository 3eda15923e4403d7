"""Listing of the segments of a Posix tier. Most folders of a tier contain only one or two known
folders. Some file systems count subfolders in a folder's number of links. There, one call shows
that a folder has no others, instead of the five calls for reading it."""

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
"""Number of links of an empty folder, on file systems that count subfolders."""
_QUEUE_TYPES = (FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE)


def list_clusters(root: str) -> list[str]:
    """Return the names of the clusters that have a folder below `root`. Raises Invalid."""
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
    Other files and folders are skipped. Raises Unavailable if an existing folder cannot be read.

    `expected`: ids of the queues that probably exist, by broker and topic.
    """
    # Folders to read, with their names from the broker's on. No nested generators, which would cost
    # time for each segment.
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
    """Return the segments of one path and type, as found in their folder."""
    found = []
    for entry in entries:
        base_offset = naming.parse_segment_file_name(entry.name)
        status = None if base_offset is None else _find_file(entry)
        if base_offset is not None and status is not None:
            name = SegmentId(path, segment_type, base_offset)
            stamp = hash((status.st_ino, status.st_mtime_ns))
            found.append(SegmentListing(name, status.st_size, stamp=stamp))
    return found


def _read_expected(
    directory: str, queue_ids: Sequence[str], calls: PosixCalls
) -> list[tuple[str, FileSegmentType, list[os.DirEntry[str]]]] | None:
    """List the files of a topic's expected queues, without reading the folders above them. Return
    None if the topic may have other folders, or if a folder cannot be read."""
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
        return None  # reading the folders one by one reports the fault
    return found


def _entries(directory: str, calls: PosixCalls) -> list[os.DirEntry[str]]:
    try:
        return calls.scan(directory)
    except FileNotFoundError:
        return []  # never created, or deleted since its parent was read
    except OSError as error:
        raise translate_os_error(error, "list", directory, invalid=RETRY_LATER) from error


def _fits(name: str, depth: int) -> bool:
    if depth < 2:
        return naming.is_name(name)
    return naming.is_queue_id(name) if depth == 2 else naming.parse_type_name(name) is not None


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        raise translate_os_error(error, "list", entry.path, invalid=RETRY_LATER) from error


def _find_file(entry: os.DirEntry[str]) -> os.stat_result | None:
    """Return the status of a file, or None if the entry is not a file or no longer exists."""
    try:
        found = entry.stat()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise translate_os_error(error, "list", entry.path, invalid=RETRY_LATER) from error
    return found if stat.S_ISREG(found.st_mode) else None
