"""Names of segments as paths, as in Java (`docs/formats/tier-layout.md`). Java escapes nothing. A
name that would not be a safe path component is refused (Invalid), and all others are used
unchanged."""

from __future__ import annotations

import functools
import hashlib
import re
from typing import NamedTuple

from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Invalid
from tieredstore.message.names import find_name_fault

MAX_OFFSET = 2**63 - 1
MAX_QUEUE_ID = 2**31 - 1

_FILE_NAME = re.compile(r"([0-9a-f]{8})([0-9]{20})", re.ASCII)
_CLUSTER_FOLDER = re.compile(r"([0-9a-f]{8})_(.+)", re.DOTALL)
_QUEUE_ID = re.compile(r"0|[1-9][0-9]{0,9}", re.ASCII)


class LogicalPath(NamedTuple):
    """Parts of a logical path `brokerName/topic/queueId`."""

    broker_name: str
    topic: str
    queue_id: str


def hash8(text: str) -> str:
    """Return the first 8 hex digits of the MD5 of the UTF-8 bytes."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]


def cluster_directory_name(cluster: str) -> str:
    """Return `<H8(cluster)>_<cluster>`. Raises Invalid for a name that cannot be a folder name."""
    check_name(cluster, "cluster name")
    name = f"{hash8(cluster)}_{cluster}"
    check_name(name, "cluster folder")
    return name


def parse_cluster_directory_name(name: str) -> str | None:
    """Return the cluster of a folder name, or None for any other name."""
    match = _CLUSTER_FOLDER.fullmatch(name)
    if match is None or not is_name(match[2]) or hash8(match[2]) != match[1]:
        return None
    return match[2]


@functools.lru_cache(maxsize=4096)
def segment_file_name(base_offset: int) -> str:
    """Return `<H8(base offset)><base offset, 20 digits>`."""
    return f"{hash8(str(base_offset))}{base_offset:020d}"


@functools.lru_cache(maxsize=4096)
def parse_segment_file_name(name: str) -> int | None:
    """Return the base offset, or None for any other name."""
    match = _FILE_NAME.fullmatch(name)
    if match is None:
        return None
    base_offset = int(match[2])
    if base_offset > MAX_OFFSET or hash8(str(base_offset)) != match[1]:
        return None
    return base_offset


@functools.lru_cache(maxsize=64)
def parse_type_name(name: str) -> FileSegmentType | None:
    """Return the segment type of a folder name, or None."""
    return FileSegmentType.__members__.get(name)


def check_name(name: str, what: str) -> None:
    """Raise Invalid unless `name` can be one path component."""
    fault = find_name_fault(name)
    if fault is not None:
        raise Invalid(f"{what} {name!r} {fault}" if name else f"{what} {fault}")


def is_name(name: str) -> bool:
    """Return whether `check_name` accepts the name."""
    return find_name_fault(name) is None


def is_queue_id(text: str) -> bool:
    """Return whether a string is a queue id as Java writes it: decimal, no leading zeros, 31
    bits."""
    return _QUEUE_ID.fullmatch(text) is not None and int(text) <= MAX_QUEUE_ID


@functools.lru_cache(maxsize=4096)
def parse_logical_path(path: str) -> LogicalPath:
    """Split a logical path into its three parts. Raises Invalid."""
    parts = path.split("/")
    if len(parts) != 3:
        raise Invalid(
            f"segment path {path!r}: expected brokerName/topic/queueId, found {len(parts)} parts",
            path=path,
        )
    broker_name, topic, queue_id = parts
    for name, what in ((broker_name, "broker name"), (topic, "topic")):
        if not is_name(name):
            check_name(name, f"segment path {path!r}: {what}")
    if not is_queue_id(queue_id):
        raise Invalid(
            f"segment path {path!r}: queue id {queue_id!r} is not an integer from 0 to "
            f"{MAX_QUEUE_ID}",
            path=path,
        )
    return LogicalPath(broker_name, topic, queue_id)


def relative_segment_path(id: SegmentId) -> str:
    """Return `brokerName/topic/queueId/TYPE/<file name>`. Raises Invalid."""
    parse_logical_path(id.path)
    if not 0 <= id.base_offset <= MAX_OFFSET:
        raise Invalid(
            f"segment {id}: base offset must be from 0 to {MAX_OFFSET}", offset=id.base_offset
        )
    return f"{id.path}/{id.type.name}/{segment_file_name(id.base_offset)}"


def parse_prefix(prefix: str) -> tuple[str, ...]:
    """Split the prefix of a listing into whole path components (at most three). Raises Invalid."""
    if not prefix.strip("/"):
        return ()
    parts = tuple(prefix.rstrip("/").split("/"))
    if len(parts) > 3:
        raise Invalid(f"listing prefix {prefix!r}: expected at most brokerName/topic/queueId")
    for part in parts:
        check_name(part, f"listing prefix {prefix!r}: component")
    return parts
