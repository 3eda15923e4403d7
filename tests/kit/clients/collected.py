"""Messages that the consumer of a client program has received."""

from __future__ import annotations

import time
from typing import Any

from tests.kit.clients.program import ClientProcess

FAST_CLIENT = (
    "-Drocketmq.client.rebalance.waitInterval=1000",
    "-Drocketmq.client.rebalance.minInterval=200",
)
"""JVM options with which a Java remoting consumer looks for new queues every second instead of
every 20 s."""

Message = dict[str, Any]


def wait_for_messages(
    client: ClientProcess, topic: str, count: int, *, longest_s: float = 60.0
) -> list[Message]:
    """Wait for `count` messages of a topic, and return them by queue and offset. Fails the test if
    they do not arrive."""
    deadline = time.monotonic() + longest_s
    while True:
        found: list[Message] = client.call("collected", topic=topic)
        if len(found) >= count:
            return sorted(found, key=lambda m: (m["queue_id"], m["queue_offset"]))
        assert time.monotonic() < deadline, f"{topic}: {len(found)} of {count} came\n{client.log()}"
        time.sleep(0.1)


def bodies(messages: list[Message]) -> list[str]:
    """Return the text of each message."""
    return [message["body"] for message in messages]
