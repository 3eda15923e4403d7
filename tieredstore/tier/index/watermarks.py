"""How far each queue's keys are surely in the index, across crashes.

The file `tiered_index_file/watermarks.json` is ours: its name has no digits only, so Java ignores
it. It is written after the index data that it speaks of is on disk, never before. It also keeps
what the index files themselves do not say: their capacity, and how many items are on disk.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from tieredstore.disk.errors import RETRY_LATER, translate_os_error, wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt, Invalid

FORMAT_VERSION = 1
FILE_NAME = "watermarks.json"

_Count = Annotated[int, msgspec.Meta(ge=0)]


class FileState(msgspec.Struct, frozen=True):
    """A local index file when the watermarks were written.

    slots, max_items: its capacity; synced_items: items that were on disk; covered_items: items
    known to be below their queues' watermarks.
    """

    slots: Annotated[int, msgspec.Meta(ge=1)]
    max_items: Annotated[int, msgspec.Meta(ge=2)]
    synced_items: _Count
    covered_items: _Count


class _Document(msgspec.Struct, frozen=True):
    version: int
    clean: bool
    # rows of (topic id, queue id, commit log offset)
    watermarks: list[tuple[int, int, _Count]]
    files: dict[int, FileState]


class _Version(msgspec.Struct):
    version: int


@dataclass(slots=True)
class Watermarks:
    """What the file says.

    indexed_until: (topic id, queue id) -> tiered commit log offset (bytes) up to which all keys
    are in the index; files: by begin timestamp; clean: whether the writer stopped in order.
    """

    indexed_until: dict[tuple[int, int], int] = field(default_factory=dict)
    files: dict[int, FileState] = field(default_factory=dict)
    clean: bool = False


def load_watermarks(directory: Path) -> Watermarks:
    """Read the file of an index directory; nothing known where there is none.

    Raises Invalid when a newer version wrote it, Corrupt when it cannot be understood, and
    Unavailable when it cannot be read.
    """
    path = directory / FILE_NAME
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Watermarks()
    except OSError as error:
        raise translate_os_error(error, "read", path, invalid=RETRY_LATER) from error
    try:
        version = msgspec.json.decode(data, type=_Version).version
        if version > FORMAT_VERSION:
            raise Invalid(
                f"{path}: format version {version}, expected at most {FORMAT_VERSION}: "
                "a newer release wrote it",
                path=str(path),
            )
        document = msgspec.json.decode(data, type=_Document)
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{path}: not a watermark file: {error}", path=str(path)) from error
    marks = {(topic_id, queue_id): offset for topic_id, queue_id, offset in document.watermarks}
    return Watermarks(marks, dict(document.files), document.clean)


def save_watermarks(directory: Path, watermarks: Watermarks) -> None:
    """Write the file: temporary file, sync, rename. Raises Unavailable."""
    rows = [
        (topic_id, queue_id, offset)
        for (topic_id, queue_id), offset in sorted(watermarks.indexed_until.items())
    ]
    document = _Document(FORMAT_VERSION, watermarks.clean, rows, watermarks.files)
    path = directory / FILE_NAME
    with wrap_os_errors("replace", path):
        FILES.replace_file(path, msgspec.json.encode(document))
