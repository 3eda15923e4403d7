"""JSON as fastjson writes it. Integer keys have no quotes, so the text is not valid JSON."""

from __future__ import annotations

import re
from typing import Final

_BARE_KEY: Final = re.compile(rb'("(?:[^"\\]|\\.)*")|([{,]\s*)(-?\d+)(?=\s*:)')


def quote_integer_keys(data: bytes) -> bytes:
    """Return the JSON text `data` with quotes around its integer keys. Strings are unchanged."""
    return _BARE_KEY.sub(lambda m: m[1] or m[2] + b'"' + m[3] + b'"', data)
