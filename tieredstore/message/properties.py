"""Properties of a record: `name 0x01 value 0x02` repeated (`docs/formats/properties.md`)."""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.errors import Invalid
from tieredstore.message.buffers import Buffer
from tieredstore.message.core import IS_COMPILED

if IS_COMPILED:
    from tieredstore.message import _core

NAME_VALUE_SEPARATOR = b"\x01"
PROPERTY_SEPARATOR = b"\x02"
KEY_SEPARATOR = " "
MAX_PROPERTIES_BYTES = 32_767
"""Limit of the properties in bytes: the maximum of their i16 length field."""

_MAX_DIGITS = 1_000
"""Maximum number of digits of a parsed number, including leading zeros."""

KEYS = "KEYS"
TAGS = "TAGS"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
UNIQ_KEY = "UNIQ_KEY"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
SHARDING_KEY = "__SHARDINGKEY"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
PRIORITY = "_SYS_MSG_PRIORITY_"
LITE_TOPIC = "__LITE_TOPIC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
ORIGIN_GROUP = "ORIGIN_GROUP"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"

# Characters that Character.isWhitespace accepts. Unlike str.strip(), no no-break spaces.
_JAVA_WHITESPACE = (
    " \t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009"
    "\u200a\u2028\u2029\u205f\u3000"
)


def decode_properties(buffer: Buffer) -> dict[str, str]:
    """Decode all properties by Java's rules. A pair without a name, separator or value is dropped.
    The last 0x02 may be missing. If a name is repeated, its last value is used. Bytes that are not
    UTF-8 become U+FFFD."""
    text = str(buffer, "utf-8", "replace")
    properties: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties in the mapping's order, as `decode_properties` reads them. Empty values are
    not written, because no reader would see them. Raises Invalid for more than
    MAX_PROPERTIES_BYTES, and for a name or value that would change the meaning of its
    neighbours."""
    if IS_COMPILED:
        compiled = _core.encode_properties(properties)
        if compiled is not None:
            return compiled
    parts: list[str] = []
    for name, value in properties.items():
        if not name or "\x01" in name or "\x02" in name:
            raise Invalid(f"property name {name!r}: expected text without \\x01 and \\x02")
        if "\x02" in value:
            raise Invalid(f"value of property {name}: expected text without \\x02")
        if value:
            parts += (name, "\x01", value, "\x02")
    encoded = "".join(parts).encode("utf-8", "replace")
    if len(encoded) > MAX_PROPERTIES_BYTES:
        raise Invalid(
            f"properties: expected at most {MAX_PROPERTIES_BYTES} bytes, found {len(encoded)}"
        )
    return encoded


def find_property(buffer: Buffer, name: bytes) -> bytes | None:
    """Return the bytes of one value without decoding the other properties, or None if it is missing
    or empty."""
    data = buffer if isinstance(buffer, bytes) else bytes(buffer)
    marked = name + b"\x01"
    start = data.rfind(marked)
    while start >= 0:
        if start == 0 or data[start - 1] == 2:
            begin = start + len(marked)
            end = data.find(b"\x02", begin)
            if end < 0:
                end = len(data)
            if end > begin:
                return data[begin:end]
        # A name may overlap itself, so search again from one byte earlier.
        start = data.rfind(marked, 0, start + len(marked) - 1)
    return None


def find_integer(buffer: Buffer, name: bytes, bits: int = 64) -> int | None:
    """Return one value as a number, by the rules of Java's `parseInt` (32 bits) or `parseLong`
    (64): an optional sign and decimal digits. Returns None if the value is missing or not such a
    number."""
    value = find_property(buffer, name)
    return None if value is None else parse_integer(value, bits)


def parse_integer(value: bytes, bits: int = 64) -> int | None:
    """Parse a number like `find_integer`. Returns None for any other text, however long."""
    digits = value[1:] if value[:1] in (b"+", b"-") else value
    if not digits.isdigit() or len(digits) > _MAX_DIGITS:
        return None
    number = int(value)
    return number if -(1 << bits - 1) <= number < 1 << bits - 1 else None


def parse_number(text: str | bytes | None, bits: int = 64) -> int | None:
    """Parse a nonnegative number that consists only of digits. Returns None for any other text,
    however long, because the value may come from a client."""
    value = text.encode("utf-8", "replace") if isinstance(text, str) else text
    if not value or not value.isdigit():
        return None
    return parse_integer(value, bits)


def find_text(buffer: Buffer, name: bytes) -> str | None:
    """Return one value as text, like `find_property`."""
    value = find_property(buffer, name)
    return None if value is None else value.decode("utf-8", "replace")


def remove_property(data: bytes, name: bytes) -> bytes:
    """Remove every occurrence of a name from the properties, leaving the other bytes unchanged."""
    marked = name + b"\x01"
    if marked not in data:
        return data
    return b"".join(pair for pair in _pairs_with_separator(data) if not pair.startswith(marked))


def set_property(data: bytes, name: bytes, value: bytes) -> bytes:
    """Set a name to one value, after the other properties, whose bytes are unchanged."""
    data = remove_property(data, name)
    if data and not data.endswith(PROPERTY_SEPARATOR):
        data += PROPERTY_SEPARATOR
    return b"".join((data, name, NAME_VALUE_SEPARATOR, value, PROPERTY_SEPARATOR))


def _pairs_with_separator(data: bytes) -> list[bytes]:
    pairs = data.split(b"\x02")
    last = pairs.pop()
    whole = [pair + b"\x02" for pair in pairs]
    return [*whole, last] if last else whole


def split_keys(value: str | None) -> list[str]:
    """Split a KEYS value into its keys at single spaces, in order. Empty keys are dropped. A value
    of only white space (by Java's rules) has no keys."""
    if value is None or is_blank(value):
        return []
    if KEY_SEPARATOR not in value:
        return [value]
    return [key for key in value.split(KEY_SEPARATOR) if key]


def has_empty_key(value: str) -> bool:
    """Return whether Java's `split` of a KEYS value returns an empty key. It does for extra spaces
    before a key, but not after the last key."""
    return not is_blank(value) and "" in value.rstrip(KEY_SEPARATOR).split(KEY_SEPARATOR)


def is_blank(value: str | None) -> bool:
    """Return whether a string is blank by Java's StringUtils.isBlank."""
    # isspace() accepts more characters than Java, and is fast: it stops at the first other
    # character.
    return not value or (value.isspace() and not value.strip(_JAVA_WHITESPACE))
