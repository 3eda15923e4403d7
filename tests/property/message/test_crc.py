"""The CRC of large data is computed in pieces, so that the GIL can be released. The result equals
the CRC of the whole data."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tieredstore.message.crc import RELEASING_BYTES, large_crc32, raw_crc32


@given(size=st.integers(0, 20 * RELEASING_BYTES), seed=st.integers(0, 9))
def test_the_crc_in_pieces_is_the_crc(size: int, seed: int) -> None:
    data = random.Random(seed).randbytes(size)
    assert large_crc32(data) == raw_crc32(data)
