"""Unique keys for messages whose producers gave none, in the form of RocketMQ's clients."""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

_SALT: Final = os.urandom(4)
_counter = itertools.count(int.from_bytes(os.urandom(2), "big"))


def make_unique_key(host: bytes) -> str:
    """Make the value of UNIQ_KEY: 32 upper-case hex digits, of address, process, a random number of
    this process, time and a counter. host: as in a record."""
    now_ms = time.time_ns() // 1_000_000
    parts = (
        host[:4],
        (os.getpid() & 0xFFFF).to_bytes(2, "big"),
        _SALT,
        (now_ms & 0xFFFFFFFF).to_bytes(4, "big"),
        (next(_counter) & 0xFFFF).to_bytes(2, "big"),
    )
    return b"".join(parts).hex().upper()
