"""JSON as fastjson writes it: maps by integers have keys without quotes, which is not JSON."""

from __future__ import annotations

import re
from typing import Final

_BARE_KEY: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(?=\s*:)')


def quote_integer_keys(data: bytes) -> bytes:
    """Return the text with quotes around integer keys; what is in strings stays."""
    return _BARE_KEY.sub(lambda m: m[1] or m[2] + b'"' + m[3] + b'"', data)
