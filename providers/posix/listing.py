"""Finds the segments of a Posix tier by their names, in one walk."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator

from tieredstore.contracts.segment import SegmentId, SegmentListing
from tieredstore.disk.errors import RETRY_LATER, translate_os_error
from tieredstore.errors import Invalid
from tieredstore.providers import naming
from tieredstore.providers.posix.calls import PosixCalls

_FOLDER_DEPTH = 4  # broker, topic, queue id, TYPE


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
    cluster_directory: str, wanted: tuple[str, ...], calls: PosixCalls
) -> Iterator[SegmentListing]:
    """Yield the segments below the folders `wanted` (broker, topic, queue id, as many as given).

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
        entries = _entries(directory, calls)
        if depth < _FOLDER_DEPTH:
            waiting += [
                (entry.path, (*above, entry.name))
                for entry in entries
                if _fits(entry.name, depth) and _is_directory(entry)
            ]
            continue
        segment_type = naming.parse_type_name(above[3])
        if segment_type is None:
            continue
        path = "/".join(above[:3])
        for entry in entries:
            base_offset = naming.parse_segment_file_name(entry.name)
            size_bytes = None if base_offset is None else _size_of_file(entry)
            if base_offset is not None and size_bytes is not None:
                yield SegmentListing(SegmentId(path, segment_type, base_offset), size_bytes)


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
