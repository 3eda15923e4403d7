"""Recall handles: what a producer gets for a timer message, to take it back by."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, NamedTuple

from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.message.record import StoredMessage

_VERSION: Final = "v1"


class RecallHandle(NamedTuple):
    """deliver_ms: a time within the step in which the message is due (epoch ms)."""

    topic: str
    broker_name: str
    deliver_ms: int
    message_id: str

    def encode(self) -> str:
        """Write it as Java does: URL-safe base64."""
        text = " ".join((_VERSION, self.topic, self.broker_name, str(self.deliver_ms)))
        return base64.urlsafe_b64encode(f"{text} {self.message_id}".encode()).decode()


def parse_recall_handle(text: str) -> RecallHandle:
    """Parse what `encode` wrote. Raises Invalid."""
    try:
        decoded = base64.b64decode(text.encode(), altchars=b"-_", validate=True).decode()
        version, topic, broker_name, deliver_ms, message_id = decoded.split(" ")
        if version != _VERSION or len(deliver_ms) > 18:
            raise ValueError(decoded)
        return RecallHandle(topic, broker_name, int(deliver_ms), message_id)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"recall handle {text!r}: expected one that a send returned") from error


def find_recall_handle(stored: StoredMessage | None, broker_name: str) -> str:
    """Make the handle of a message as it was stored; empty when it is no timer message."""
    if stored is None:
        return ""
    out_ms, topic = stored.get_property("TIMER_OUT_MS"), stored.get_property("REAL_TOPIC")
    if out_ms is None or topic is None:
        return ""
    # Times go down to the step before them, so one more stays within it.
    return RecallHandle(topic, broker_name, int(out_ms) + 1, stored.msg_id).encode()


def make_recall_key(topic: str, unique_key: str) -> str:
    """Make the value of TIMER_DEL_UNIQKEY: which message of a topic is taken back."""
    return f"{topic}_{unique_key}"
