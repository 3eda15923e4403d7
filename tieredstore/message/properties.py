"""The properties of a record: `name 0x01 value 0x02` repeated (`docs/formats/properties.md`)."""

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
"""Length that the i16 in front of the properties can say."""

KEYS = "KEYS"
TAGS = "TAGS"
WAIT = "WAIT"
DELAY = "DELAY"
RETRY_TOPIC = "RETRY_TOPIC"
REAL_TOPIC = "REAL_TOPIC"
REAL_QID = "REAL_QID"
TRAN_MSG = "TRAN_MSG"
PGROUP = "PGROUP"
MIN_OFFSET = "MIN_OFFSET"
MAX_OFFSET = "MAX_OFFSET"
ORIGIN_MESSAGE_ID = "ORIGIN_MESSAGE_ID"
RECONSUME_TIME = "RECONSUME_TIME"
MSG_REGION = "MSG_REGION"
TRACE_ON = "TRACE_ON"
UNIQ_KEY = "UNIQ_KEY"
MAX_RECONSUME_TIMES = "MAX_RECONSUME_TIMES"
INNER_NUM = "INNER_NUM"
INNER_BASE = "INNER_BASE"
DUP_INFO = "DUP_INFO"
CHECK_IMMUNITY_TIME_IN_SECONDS = "CHECK_IMMUNITY_TIME_IN_SECONDS"
TRAN_PREPARED_QUEUE_OFFSET = "TRAN_PREPARED_QUEUE_OFFSET"
TRANSACTION_ID = "__transactionId__"
TRANSACTION_CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
CLUSTER = "CLUSTER"
POP_CK = "POP_CK"
FIRST_POP_TIME = "1ST_POP_TIME"
SHARDING_KEY = "__SHARDINGKEY"
INNER_MULTI_DISPATCH = "INNER_MULTI_DISPATCH"
INNER_MULTI_QUEUE_OFFSET = "INNER_MULTI_QUEUE_OFFSET"
TIMER_DELAY_SEC = "TIMER_DELAY_SEC"
TIMER_DELAY_MS = "TIMER_DELAY_MS"
TIMER_DELIVER_MS = "TIMER_DELIVER_MS"
TIMER_OUT_MS = "TIMER_OUT_MS"
TIMER_ENQUEUE_MS = "TIMER_ENQUEUE_MS"
TIMER_DEQUEUE_MS = "TIMER_DEQUEUE_MS"
TIMER_ROLL_TIMES = "TIMER_ROLL_TIMES"
TIMER_DEL_UNIQKEY = "TIMER_DEL_UNIQKEY"
BORN_HOST = "__BORNHOST"
BORN_TIMESTAMP = "BORN_TIMESTAMP"
DLQ_ORIGIN_TOPIC = "DLQ_ORIGIN_TOPIC"
DLQ_ORIGIN_MESSAGE_ID = "DLQ_ORIGIN_MESSAGE_ID"
CRC32 = "__CRC32#"

# What Character.isWhitespace accepts: no no-break spaces, unlike str.strip().
_JAVA_WHITESPACE = (
    " \t\n\x0b\x0c\r\x1c\x1d\x1e\x1f\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2008\u2009"
    "\u200a\u2028\u2029\u205f\u3000"
)


def decode_properties(buffer: Buffer) -> dict[str, str]:
    """Decode all properties, by Java's rules: a pair without a name, separator or value is dropped,
    the last 0x02 may be missing, the last of equal names wins, bytes that are no UTF-8 become
    U+FFFD."""
    text = str(buffer, "utf-8", "replace")
    properties: dict[str, str] = {}
    for pair in text.split("\x02"):
        name, _, value = pair.partition("\x01")
        if name and value:
            properties[name] = value
    return properties


def encode_properties(properties: Mapping[str, str]) -> bytes:
    """Encode properties as the bytes that `decode_properties` reads back, in the mapping's order.

    Empty values are not written, since no reader would see them. Raises Invalid for a name or value
    that would change the meaning of its neighbours, and for more than MAX_PROPERTIES_BYTES.
    """
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
    """Find the bytes of one value, without decoding the others; None when it is absent or empty."""
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
        # A name may overlap itself ("AA" in "AAA"), so look again from one byte earlier.
        start = data.rfind(marked, 0, start + len(marked) - 1)
    return None


def find_text(buffer: Buffer, name: bytes) -> str | None:
    """Find one value as text, as `find_property` does."""
    value = find_property(buffer, name)
    return None if value is None else value.decode("utf-8", "replace")


def remove_property(data: bytes, name: bytes) -> bytes:
    """Remove a name (every occurrence) from the properties; what is left keeps its bytes."""
    marked = name + b"\x01"
    if marked not in data:
        return data
    return b"".join(pair for pair in _pairs_with_separator(data) if not pair.startswith(marked))


def set_property(data: bytes, name: bytes, value: bytes) -> bytes:
    """Give a name one value, behind the other properties; they keep their bytes."""
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
    """Split a KEYS value into its keys: parted by single spaces, empty ones dropped, order kept.

    A value of nothing but white space (as Java sees it) holds no key.
    """
    if value is None or is_blank(value):
        return []
    if KEY_SEPARATOR not in value:
        return [value]
    return [key for key in value.split(KEY_SEPARATOR) if key]


def has_empty_key(value: str) -> bool:
    """Tell whether Java's `split` finds an empty key in a KEYS value: in front of a key, never
    behind the last one."""
    return not is_blank(value) and "" in value.rstrip(KEY_SEPARATOR).split(KEY_SEPARATOR)


def is_blank(value: str | None) -> bool:
    """Tell whether a text is blank, as Java's StringUtils.isBlank says."""
    # isspace() knows more white space than Java, and answers at the first other character.
    return not value or (value.isspace() and not value.strip(_JAVA_WHITESPACE))
