"""A load on a broker that is killed again and again; gives its history."""

from __future__ import annotations

import time
from typing import Any

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.clients.program import ClientProcess
from tests.kit.queue_checker.checker import Delivered, History, Place
from tests.kit.queue_checker.loads import Load

BETWEEN_KILLS_S = 20.0
CATCH_UP_S = 120.0


def run_load(load: Load, reader: ClientProcess, broker: BrokerProcess, kills: int) -> History:
    """Send and consume while the broker is killed every 20 s and started again; afterwards wait
    until the consumer has everything, and read all queues from their beginning.

    reader: runs `Readers`.
    """
    load.start(broker)
    for _ in range(kills):
        time.sleep(BETWEEN_KILLS_S)
        broker.kill()
        broker.start()
    time.sleep(BETWEEN_KILLS_S / 2)
    sent = load.stop_sending()
    missing = {one.body for one in sent if one.is_acknowledged}
    deadline = time.monotonic() + CATCH_UP_S
    while True:
        consumed = load.consumed()
        missing -= {one.body for one in consumed}
        if not missing or time.monotonic() > deadline:
            break
        time.sleep(0.5)
    load.stop_consuming()
    return History(sent, read_all(reader, broker, load.topic), consumed)


def read_all(
    reader: ClientProcess, broker: BrokerProcess, topic: str
) -> dict[int, list[Delivered]]:
    """Each queue from its beginning to its end, as a pulling consumer gets it."""
    reader.call("start_reader", namesrv=broker.namesrv, group="readers")
    read = {}
    for queue_id in range(reader.call("queues", topic=topic)):
        queue: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
        first, end = reader.call("min_offset", **queue), reader.call("max_offset", **queue)
        rows = reader.call("read_queue", **{**queue, "from": first}, until=end)
        read[queue_id] = [Delivered(body, Place(queue_id, offset)) for offset, body in rows]
    return read
