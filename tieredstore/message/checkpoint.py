"""The `checkpoint` file of a local store (`docs/formats/checkpoint.md`)."""

from __future__ import annotations

import struct
from dataclasses import astuple, dataclass
from typing import Final

from tieredstore.errors import Corrupt
from tieredstore.message.buffers import Buffer

CHECKPOINT_SIZE: Final = 4096
SAFETY_MARGIN_MS: Final = 3000

_FIELDS: Final = struct.Struct(">6q")


@dataclass(slots=True)
class Checkpoint:
    """What is known to be on disk. Times are epoch ms of store timestamps, offsets bytes in the
    commit log; 0 means never."""

    physic_msg_timestamp_ms: int = 0
    logics_msg_timestamp_ms: int = 0
    index_msg_timestamp_ms: int = 0
    master_flushed_offset: int = 0
    confirm_physical_offset: int = 0
    logics_physical_offset: int = 0

    @property
    def min_timestamp_ms(self) -> int:
        """Commit log and consume queues are on disk up to here, with Java's margin of 3 s."""
        least = min(self.physic_msg_timestamp_ms, self.logics_msg_timestamp_ms)
        return max(0, least - SAFETY_MARGIN_MS)

    def pack(self) -> bytes:
        """The 4,096 bytes of the file."""
        return _FIELDS.pack(*astuple(self)).ljust(CHECKPOINT_SIZE, b"\0")

    @classmethod
    def unpack(cls, buffer: Buffer) -> Checkpoint:
        """Raises Corrupt when the file is shorter than its fields."""
        if len(buffer) < _FIELDS.size:
            raise Corrupt(
                f"checkpoint: expected {CHECKPOINT_SIZE} bytes, found {len(buffer)}", offset=0
            )
        return cls(*_FIELDS.unpack_from(buffer))
