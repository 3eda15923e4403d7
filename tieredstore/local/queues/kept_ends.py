"""Where the consume queues in files were at a clean stop, so that the next start reads no unit.

A file in the store's folder, which Java ignores, has for each queue its numbers and stamps of its
folder and its files. It counts for a store that was stopped cleanly and in which nobody was since:
the log has to begin and end where it did, and all stamps have to be the same.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Final

import msgspec

from tieredstore.disk.file_operations import FILES, Stamp, make_stamp
from tieredstore.local.queues.interface import LogSpan

KEPT_FILE: Final = "tieredstore.queues.json"
_FORMAT: Final = 1
_log = logging.getLogger(__name__)


class KeptQueue(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One queue. start, end: bytes, of its first file and behind its last one; the offsets are
    those of `ConsumeQueue`. stamps: of its folder, then of each file."""

    topic: str
    queue_id: int
    start: int
    end: int
    min_offset: int
    max_offset: int
    max_physical_offset: int
    stamps: list[Stamp]


class KeptEnds(msgspec.Struct, frozen=True):
    """The file. file_size: of the queues' files (bytes); folders: those above the queues' own, by
    topic, and that of all as ""."""

    log: LogSpan
    file_size: int
    folders: dict[str, Stamp]
    queues: list[KeptQueue]
    format: int = _FORMAT


def find_stamp(path: str) -> Stamp:
    """Find the stamp of a file or folder. Raises OSError."""
    return make_stamp(os.stat(path))  # noqa: PTH116 - asked often for each of very many queues


def keep_ends(root: Path, ends: KeptEnds) -> None:
    """Write the file, when nothing is written to the queues any more. Without room the next start
    reads the queues."""
    try:
        FILES.replace_file(root / KEPT_FILE, msgspec.json.encode(ends))
    except OSError as error:
        _log.info("%s: not written: %s", root / KEPT_FILE, error)


def find_kept_ends(root: Path) -> KeptEnds | None:
    """Read the file; None when there is none that can be read."""
    path = root / KEPT_FILE
    try:
        found = msgspec.json.decode(FILES.read(path), type=KeptEnds)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        _log.info("%s: not read: %s", path, error)
        return None
    return found if found.format == _FORMAT else None
