"""The `checkpoint` file: up to which store time things are on disk.

Format: `docs/formats/checkpoint.md`.
"""

from __future__ import annotations

import os
import struct
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from tieredstore.disk.errors import translate_os_error
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.sync import sync_file
from tieredstore.errors import Corrupt

CHECKPOINT_FILE: Final = "checkpoint"
CHECKPOINT_SIZE_BYTES: Final = 4096
_FIELDS: Final = struct.Struct(">6q")


@dataclass(slots=True)
class Checkpoint:
    """Store times in epoch ms, offsets in bytes of the commit log; 0 where nothing is known.

    physic_msg_timestamp_ms, logics_msg_timestamp_ms: the commit log, the consume queues are on disk
    up to this store time. index_msg_timestamp_ms: end of the last full index file on disk.
    """

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def flushed_timestamp_ms(self) -> int:
        """Messages up to this store time are on disk, with their consume queue units."""
        return min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms)

    def to_bytes(self) -> bytes:
        """Make the 4,096 bytes of the file."""
        return _FIELDS.pack(*astuple(self)).ljust(CHECKPOINT_SIZE_BYTES, b"\0")


def read_checkpoint(root: Path) -> Checkpoint:
    """Read the store's checkpoint, all zeros when it has none or an empty one. Raises Corrupt on a
    short file or a negative field."""
    path = root / CHECKPOINT_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    except OSError as error:
        raise translate_os_error(error, "read", path) from error
    if not data:  # made, and not written yet
        return Checkpoint()
    if len(data) < _FIELDS.size:
        raise Corrupt(
            f"{path}: expected {CHECKPOINT_SIZE_BYTES} bytes, found {len(data)}", path=str(path)
        )
    fields = _FIELDS.unpack_from(data)
    if min(fields[:3]) < 0:
        raise Corrupt(f"{path}: expected times from 0 on, found {fields[:3]}", path=str(path))
    return Checkpoint(*fields)


def write_checkpoint(root: Path, checkpoint: Checkpoint) -> None:
    """Write it, to disk when this returns: a new one under another name first, then in place, as
    Java does. All that changes lies in one sector, which a disk writes whole or not at all.

    Raises Exhausted when there is no room or no descriptor, Unavailable, Invalid.
    """
    path = root / CHECKPOINT_FILE
    data = checkpoint.to_bytes()
    try:
        if FILES.size(path) != CHECKPOINT_SIZE_BYTES:
            FILES.replace_file(path, data)
            return
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise translate_os_error(error, "write", path) from error
    try:
        try:
            os.pwrite(fd, data, 0)
        except OSError as error:
            raise translate_os_error(error, "write", path) from error
        try:
            sync_file(fd)
        except OSError as error:
            raise translate_os_error(error, "sync", path, is_sync=True) from error
    finally:
        os.close(fd)


def checkpoint_time_ns(root: Path) -> int:
    """Return when the checkpoint was last written, 0 when there is none: an owner that came and
    went between two looks has changed it, though the files of the log may be the same."""
    try:
        return (root / CHECKPOINT_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise translate_os_error(error, "read", root / CHECKPOINT_FILE) from error
