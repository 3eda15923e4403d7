"""The file `checkpoint`, with the store times up to which messages are on disk in the log, the
queues and the index (`docs/formats/checkpoint.md`)."""

from __future__ import annotations

import os
import struct
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from tieredstore.disk.errors import translate_os_error, wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.disk.sync import sync_file
from tieredstore.errors import Corrupt

CHECKPOINT_FILE: Final = "checkpoint"
CHECKPOINT_SIZE_BYTES: Final = 4096
_FIELDS: Final = struct.Struct(">6q")


@dataclass(slots=True)
class Checkpoint:
    """Content of a checkpoint. Store times are in epoch ms, offsets in bytes of the commit log.
    Unknown values are 0. `physic_msg_timestamp_ms`, `logics_msg_timestamp_ms`: store time up to
    which the commit log and the consume queues are on disk. `index_msg_timestamp_ms`: end time of
    the last full index file on disk."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def flushed_timestamp_ms(self) -> int:
        """Maximum store time of messages that are on disk with their consume queue units."""
        return min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms)

    def to_bytes(self) -> bytes:
        """Return the 4,096 bytes of the file."""
        return _FIELDS.pack(*astuple(self)).ljust(CHECKPOINT_SIZE_BYTES, b"\0")


def read_checkpoint(root: Path) -> Checkpoint:
    """Read the store's checkpoint. All values are 0 if the file is missing or empty. Raises Corrupt
    for a short file or a negative field."""
    path = root / CHECKPOINT_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return Checkpoint()
    except OSError as error:
        raise translate_os_error(error, "read", path) from error
    if not data:  # created but not yet written
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
    """Write the checkpoint durably. The first one is written under another name and renamed. Later
    ones are written in place, as in Java: all changing bytes are in one sector, which a disk writes
    atomically. Raises Exhausted without space or descriptors, Unavailable, Invalid."""
    path = root / CHECKPOINT_FILE
    data = checkpoint.to_bytes()
    with wrap_os_errors("write", path):
        if FILES.size(path) != CHECKPOINT_SIZE_BYTES:
            FILES.replace_file(path, data)
            return
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        with wrap_os_errors("write", path):
            os.pwrite(fd, data, 0)
        with wrap_os_errors("sync", path, is_sync=True):
            sync_file(fd)
    finally:
        os.close(fd)


def checkpoint_time_ns(root: Path) -> int:
    """Return the time of the last write of the checkpoint, or 0 without one. It shows whether an
    owner ran between two reads, even if the log files are unchanged."""
    try:
        return (root / CHECKPOINT_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise translate_os_error(error, "read", root / CHECKPOINT_FILE) from error
