"""A load of a real client on a broker that is killed again and again; gives its history."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.clients.program import ClientProcess
from tests.kit.queue_checker.checker import Delivered, History, Place, Sent

TOPIC = "Checked"
GROUPS = 8
PAUSE_MS = 10
BETWEEN_KILLS_S = 20.0
CATCH_UP_S = 120.0


def run_load(
    client: ClientProcess,
    broker: BrokerProcess,
    *,
    kills: int,
    between_kills_s: float = BETWEEN_KILLS_S,
    on_kill: Callable[[int], object] = lambda _number: None,
) -> History:
    """Send and consume while the broker is killed every `between_kills_s` and started again;
    afterwards wait until the consumer has everything, and read all queues from their beginning.

    client: runs `Loads`, `Collectors` and `Readers`. on_kill: is called with the number of each
    kill while no broker runs.
    """
    namesrv = broker.namesrv
    client.call("start_load", namesrv=namesrv, topic=TOPIC, groups=GROUPS, pause_ms=PAUSE_MS)
    client.call("collect", name="live", namesrv=namesrv, group="live", topics=[TOPIC], orderly=True)
    for number in range(kills):
        time.sleep(between_kills_s)
        broker.kill()
        on_kill(number)
        broker.start()
    time.sleep(between_kills_s / 2)
    sent = [_sent(row) for row in client.call("stop_load")]
    consumed = _consume_all(client, {one.body for one in sent if one.is_acknowledged})
    client.call("start_reader", namesrv=namesrv, group="readers")
    return History(sent, read_all(client), consumed)


def read_all(client: ClientProcess) -> dict[int, list[Delivered]]:
    """Each queue from its beginning to its end, as a pulling consumer gets it."""
    read = {}
    for queue_id in range(client.call("queues", topic=TOPIC)):
        queue: dict[str, Any] = {"topic": TOPIC, "queue_id": queue_id}
        first, end = client.call("min_offset", **queue), client.call("max_offset", **queue)
        rows = client.call("read_queue", **{**queue, "from": first}, until=end)
        read[queue_id] = [Delivered(body, Place(queue_id, offset)) for offset, body in rows]
    return read


def _sent(row: list[object]) -> Sent:
    group, number, *answer = row
    assert isinstance(group, str)
    assert isinstance(number, int)
    if len(answer) == 1:  # what went wrong
        return Sent(group, number, False)
    return Sent(group, number, True, Place(*answer))  # type: ignore[arg-type]


def _consume_all(client: ClientProcess, wanted: Iterable[str]) -> list[Delivered]:
    """What the live consumer has once it has all of these; what it has when they do not come."""
    missing = set(wanted)
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        rows = client.call("places", topic=TOPIC)
        missing -= {body for body, _, _ in rows}
        if not missing or time.monotonic() > deadline:
            return [Delivered(body, Place(queue, offset)) for body, queue, offset in rows]
        time.sleep(0.5)
