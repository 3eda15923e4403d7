"""Determine the type of a message (as in a topic's `message.type`), and apply its priority."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tieredstore.message import properties as props
from tieredstore.message.encoding import Message

_DELAYS: Final = frozenset(
    (props.DELAY, props.TIMER_DELIVER_MS, props.TIMER_DELAY_SEC, props.TIMER_DELAY_MS)
)
_PRIORITY: Final = props.PRIORITY.encode()
_MARK: Final = _PRIORITY + b"\x01"


def find_message_type(properties: Mapping[str, str]) -> str:
    """Return the type of a message from its decoded properties, by Java's rules. A message has only
    one type: a delayed message with a priority, for example, is a DELAY message."""
    if properties.get(props.TRAN_MSG, "").lower() == "true":
        return "TRANSACTION"
    if not _DELAYS.isdisjoint(properties):
        return "DELAY"
    if props.SHARDING_KEY in properties:
        return "FIFO"
    if props.PRIORITY in properties:
        return "PRIORITY"
    return "LITE" if props.LITE_TOPIC in properties else "NORMAL"


def apply_priority(message: Message, write_queue_nums: int) -> None:
    """Set the queue of a message from its priority: the queue with that id, or the last queue if
    the priority is higher. A message of another type than PRIORITY loses its priority. A priority
    that is not a non-negative integer is ignored. `write_queue_nums`: number of queues, at least
    1."""
    if message.properties.find(_MARK) < 0:
        return
    priority = props.find_integer(message.properties, _PRIORITY, 32)
    if priority is None or priority < 0:
        return
    if find_message_type(props.decode_properties(message.properties)) == "PRIORITY":
        message.queue_id = min(priority, write_queue_nums - 1)
    else:
        message.properties = props.remove_property(message.properties, _PRIORITY)
