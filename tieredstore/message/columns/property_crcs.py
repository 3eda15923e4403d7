"""The CRCs of whole records, of many records of one buffer at once."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.message.buffers import Buffer, view_unaligned
from tieredstore.message.columns.records import RecordColumns
from tieredstore.message.crc import CRC_BLOCK_SIZE, property_crc_matches

_CRC_NAME: Final = int.from_bytes(b"__CRC32#", "big")


def have_property_crcs(buffer: Buffer, columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Tell which records end in a CRC of the whole record: bool[n]."""
    ends = columns.positions + columns.sizes
    named: npt.NDArray[np.bool_] = view_unaligned(buffer, ">u8")[ends - CRC_BLOCK_SIZE] == _CRC_NAME
    return named


def check_property_crcs(buffer: Buffer, columns: RecordColumns) -> npt.NDArray[np.bool_]:
    """Check the CRC of the whole record of those that have one: bool[n]. A record without one
    passes."""
    good = ~have_property_crcs(buffer, columns)
    for row in np.flatnonzero(~good).tolist():
        position, size = int(columns.positions[row]), int(columns.sizes[row])
        good[row] = property_crc_matches(buffer, position, size) is not False
    return good
