"""Rows of messages, with the same names in the command line, in Arrow and in Spark."""

from __future__ import annotations

import base64
import enum
import hashlib

from tieredstore.errors import Corrupt
from tieredstore.message.compression import DEFAULT_BODY_LIMIT_BYTES
from tieredstore.message.properties import KEYS, TAGS, UNIQ_KEY, split_keys
from tieredstore.message.record import StoredMessage

COLUMNS = (
    "topic",
    "queue_id",
    "queue_offset",
    "msg_id",
    "offset_msg_id",
    "keys",
    "tags",
    "born_timestamp",
    "store_timestamp",
    "body",
    "body_length",
    "properties",
    "stored_length",
    "body_crc",
    "broker",
    "physical_offset",
    "sys_flag",
    "flag",
    "reconsume_times",
    "born_host",
    "store_host",
)
"""Fields of every row, in order. Times in epoch ms. Lengths in bytes: body_length after
decompression, stored_length before it. body_crc is computed before decompression."""
BODY_ERROR = "body_error"
"""Field with the reason why a body cannot be decompressed. Only rows with such a body have this
field, as the last one. Their body and body_length are null."""
ALL_COLUMNS = (*COLUMNS, BODY_ERROR)
"""Fields that a caller may request."""


class BodyForm(enum.StrEnum):
    """Form of the decompressed body in a row: TEXT as UTF-8 (other bytes become U+FFFD), BASE64,
    SHA256 in hex, NONE as null. BYTES unchanged (not for JSON)."""

    TEXT = "text"
    BASE64 = "base64"
    SHA256 = "sha256"
    NONE = "none"
    BYTES = "bytes"


def message_row(
    message: StoredMessage,
    broker: str,
    body_form: BodyForm = BodyForm.TEXT,
    *,
    body_limit_bytes: int = DEFAULT_BODY_LIMIT_BYTES,
) -> dict[str, object]:
    """Return one message as a row for JSON, except for bodies in bytes. BODY_ERROR is set if the
    body does not decompress, or exceeds `body_limit_bytes`."""
    body: bytes | memoryview | None = None
    problem: str | None = None
    try:
        body = message.decode_body(body_limit_bytes)
    except Corrupt as error:
        problem = describe_body_error(error)
    properties = message.properties  # decoded once for all fields that are in it
    offset_message_id = message.offset_message_id
    row: dict[str, object] = {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "msg_id": properties.get(UNIQ_KEY) or offset_message_id,
        "offset_msg_id": offset_message_id,
        "keys": split_keys(properties.get(KEYS)),
        "tags": properties.get(TAGS),
        "born_timestamp": message.born_timestamp_ms,
        "store_timestamp": message.store_timestamp_ms,
        "body": None if body is None else show_body(body, body_form),
        "body_length": None if body is None else len(body),
        "properties": properties,
        "stored_length": message.body_length,
        "body_crc": message.body_crc,
        "broker": broker,
        "physical_offset": message.physical_offset,
        "sys_flag": message.sys_flag,
        "flag": message.flag,
        "reconsume_times": message.reconsume_times,
        "born_host": message.born_host,
        "store_host": message.store_host,
    }
    if problem is not None:
        row[BODY_ERROR] = problem
    return row


def describe_body_error(error: Corrupt) -> str:
    """Return the reason why a body cannot be decompressed, without the position of the record."""
    cause = error.__cause__ if isinstance(error.__cause__, Corrupt) else error
    return str(cause)


def show_body(body: bytes | memoryview, form: BodyForm) -> str | bytes | None:
    """Return a decompressed body in the given form."""
    match form:
        case BodyForm.TEXT:
            return str(body, "utf-8", "replace")
        case BodyForm.BASE64:
            return base64.b64encode(body).decode("ascii")
        case BodyForm.SHA256:
            return hashlib.sha256(body).hexdigest()
        case BodyForm.NONE:
            return None
        case BodyForm.BYTES:
            return bytes(body)
