"""Runs loads on a broker that is killed repeatedly, and returns the histories of their topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.clients.program import ClientProcess
from tests.kit.queue_checker.checker import Delivered, History, Outage, Place, Sent
from tests.kit.queue_checker.loads import Load

BETWEEN_KILLS_S = 20.0
CATCH_UP_S = 120.0


def run_loads(
    loads: Sequence[Load],
    read: Callable[[str], Mapping[int, Sequence[Delivered]]],
    broker: BrokerProcess,
    kills: int,
    between_s: float = BETWEEN_KILLS_S,
) -> dict[str, History]:
    """Send and consume while the broker is killed and restarted every `between_s` seconds.
    Afterwards, wait until the consumers have received everything, and read the content of each
    topic by `read`. Return one history per topic."""
    for load in loads:
        load.start(broker)
    outages = []
    for _ in range(kills):
        time.sleep(between_s)
        killed_ms = time.time_ns() // 1_000_000
        broker.kill()
        broker.start()
        outages.append(Outage(killed_ms, time.time_ns() // 1_000_000))
    time.sleep(between_s / 2)
    sent = {load.topic: load.stop_sending() for load in loads}
    deadline = time.monotonic() + CATCH_UP_S
    histories = {}
    for load in loads:
        consumed = _consume_all(load, sent[load.topic], deadline)
        load.stop_consuming()
        histories[load.topic] = History(
            sent[load.topic],
            read(load.topic),
            consumed,
            load.pops,
            outages,
            is_orderly=load.is_orderly,
        )
    return histories


def _consume_all(load: Load, sent: Iterable[Sent], deadline: float) -> list[Delivered] | None:
    """Wait until the consumer has received all acknowledged messages or times out. Return what it
    received."""
    missing = {one.body for one in sent if one.is_acknowledged}
    while True:
        consumed = load.consumed()
        if consumed is None:
            return None
        missing -= {one.body for one in consumed}
        if not missing or time.monotonic() > deadline:
            return consumed
        time.sleep(0.5)


def read_all(
    reader: ClientProcess, broker: BrokerProcess, topic: str
) -> dict[int, list[Delivered]]:
    """Read each queue to its end with a pull consumer."""
    reader.call("start_reader", namesrv=broker.namesrv, group="readers")
    read = {}
    for queue_id in range(reader.call("queues", topic=topic)):
        queue: dict[str, Any] = {"topic": topic, "queue_id": queue_id}
        first, end = reader.call("min_offset", **queue), reader.call("max_offset", **queue)
        rows = reader.call("read_queue", **{**queue, "from": first}, until=end)
        read[queue_id] = [Delivered(body, Place(queue_id, offset)) for offset, body in rows]
    return read
