"""Escape untrusted text and JSON, so that it cannot control a terminal or a spreadsheet."""

from __future__ import annotations

import json
import re
from typing import Final

import orjson

_HOSTILE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and line feed
    "\u061c\u200e\u200f\u2028\u2029\u202a-\u202e\u2066-\u206f\ufff9-\ufffb\U000e0000-\U000e007f]"
)
_OWN_STYLE: Final = re.compile("\x1b\\[(?:0|1|31|32|33)m")
_FORMULA: Final = re.compile(r"[=+\-@\t\r\n\0\uff0b\uff0d\uff1d\uff20]")


def make_harmless(text: str) -> str:
    r"""Escape control characters, and characters that change the direction of text, as `\u001b`.
    Tabs and line feeds are kept. The value of a JSON text does not change."""
    return _HOSTILE.sub(lambda found: json.dumps(found[0])[1:-1], text)


def make_harmless_bytes(data: bytes, *, keeps_styles: bool = False) -> bytes:
    """Escape UTF-8 bytes like `make_harmless`. Invalid UTF-8 is escaped too. `keeps_styles`: True
    to keep colours, for lines whose values are already escaped."""
    text = data.decode(errors="backslashreplace")
    if not _HOSTILE.search(text):
        return text.encode(errors="backslashreplace")
    if not keeps_styles:
        return make_harmless(text).encode(errors="backslashreplace")
    styles = _OWN_STYLE.findall(text)
    parts = [make_harmless(part) for part in _OWN_STYLE.split(text)]
    pieces = [piece for pair in zip(parts, [*styles, ""], strict=True) for piece in pair]
    return "".join(pieces).encode(errors="backslashreplace")


def defuse_formula(text: str) -> str:
    """Prefix an apostrophe to text that a spreadsheet would interpret as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text


def encode(value: object) -> bytes:
    """Encode a value as JSON. Invalid Unicode in strings (foreign file names) is escaped."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()
