"""The delay levels of RocketMQ: `messageDelayLevel`."""

from __future__ import annotations

import re
from typing import Final

from tieredstore.errors import Invalid

_DELAY: Final = re.compile(r"(\d+)([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Parse the delays in ms of `messageDelayLevel`, level 1 first. Raises Invalid."""
    delays = []
    for word in text.split():
        match = _DELAY.fullmatch(word)
        if match is None:
            raise Invalid(f"messageDelayLevel: expected a number with s, m, h or d, found {word!r}")
        delays.append(int(match[1]) * _UNITS_MS[match[2]])
    return tuple(delays)
