"""Watermarks: for each queue, the offset below which all keys are in the index, even after a crash.
They are in `tiered_index_file/watermarks.json`, which Java ignores because its name is not a
number. The file is written only after the index data is on disk. It also records what the index
files lack: their capacity and the number of items on disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import msgspec

from tieredstore.disk.errors import RETRY_LATER, translate_os_error, wrap_os_errors
from tieredstore.disk.file_operations import FILES, cut_zeros
from tieredstore.errors import Corrupt, Invalid
from tieredstore.message.index.tiered import unsealed_size

FORMAT_VERSION = 1
JAVA_DEFAULT_CAPACITY = (5_000_000, 20_000_000)
FILE_NAME = "watermarks.json"

_Count = Annotated[int, msgspec.Meta(ge=0)]


class FileState(msgspec.Struct, frozen=True):
    """State of a local index file when the watermarks were written.

    `slots`, `max_items`: capacity of the file. `synced_items`: number of items on disk.
    `covered_items`: number of items known to be below the watermarks of their queues. `since_ms`:
    time of the first keys in the file (epoch ms), or 0 if unknown.
    """

    slots: Annotated[int, msgspec.Meta(ge=1)]
    max_items: Annotated[int, msgspec.Meta(ge=2)]
    synced_items: _Count
    covered_items: _Count
    since_ms: _Count = 0


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
    """Content of the watermark file.

    `indexed_until`: tiered commit log offset (bytes) below which all keys are in the index, by
    (topic id, queue id).
    `files`: states of local files, by begin timestamp.
    `clean`: whether the writer stopped cleanly.
    """

    indexed_until: dict[tuple[int, int], int] = field(default_factory=dict)
    files: dict[int, FileState] = field(default_factory=dict)
    clean: bool = False


def load_watermarks(directory: Path) -> Watermarks:
    """Read the watermark file of an index directory. Returns empty watermarks if the file is
    missing. Raises Invalid if a newer version wrote it, Corrupt if it cannot be parsed, and
    Unavailable if it cannot be read."""
    path = directory / FILE_NAME
    try:
        data = cut_zeros(path.read_bytes())
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


def find_capacity(
    size_bytes: int, state: FileState | None, configured: tuple[int, int]
) -> tuple[int, int] | None:
    """Return the number of slots and items of a local index file, or None. The numbers come from
    the watermarks (`state`), the configuration or Java's defaults, whichever match the file
    size."""
    known = (state.slots, state.max_items) if state else configured
    choices = [known, configured, JAVA_DEFAULT_CAPACITY]
    choices += [(slots, items + 1) for slots, items in choices[1:]]  # of a full one of 5.1
    return next((one for one in choices if unsealed_size(*one) == size_bytes), None)


def load_file_states(directory: Path) -> dict[int, FileState]:
    """Read the states of local index files from the watermarks, for a reader. Returns an empty dict
    if the file cannot be parsed. Raises Unavailable."""
    try:
        return load_watermarks(directory).files
    except (Corrupt, Invalid):
        return {}


def save_watermarks(directory: Path, watermarks: Watermarks) -> None:
    """Write the watermarks durably, with a temporary file that is synced and renamed. Raises
    Unavailable."""
    rows = [
        (topic_id, queue_id, offset)
        for (topic_id, queue_id), offset in sorted(watermarks.indexed_until.items())
    ]
    document = _Document(FORMAT_VERSION, watermarks.clean, rows, watermarks.files)
    path = directory / FILE_NAME
    with wrap_os_errors("replace", path):
        FILES.replace_file(path, msgspec.json.encode(document))
