"""A damaged message on disk prevents neither the delivery of later messages nor a start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.kit.client_sessions import NotingSession
from tests.kit.local_stores import START_MS
from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.clock import ManualClock
from tieredstore.message.encoding import Message
from tieredstore.message.record import StoredMessage

BODIES = [b"first one", b"the bad one", b"third one", b"the last one"]


def damage(root: Path, body: bytes = BODIES[1]) -> None:
    """Change one byte of a body in the commit log."""
    (path,) = (path for path in (root / "commitlog").iterdir() if body in path.read_bytes())
    with path.open("r+b") as file:
        file.seek(path.read_bytes().index(body))
        file.write(b"\xff")


async def send_all(parts: Producing, **more: Any) -> None:
    for body in BODIES:
        await parts.send(body=body, queue_id=0, **more)


def read_bodies(parts: Producing) -> list[bytes]:
    return [bytes(message.body) for message in parts.read()]


@on_loop
async def test_those_of_a_delay_level(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        await send_all(parts, properties={"DELAY": "1"})
        parts.store.wait_until_dispatched()
        damage(tmp_path)
        clock.advance(5_000)
        await parts.schedule.deliver_due()
        assert read_bodies(parts) == [BODIES[0], *BODIES[2:]]


@on_loop
async def test_timer_messages(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    with producing(tmp_path, clock) as parts:
        await send_all(parts, properties={"TIMER_DELAY_SEC": "5"})
        parts.store.wait_until_dispatched()
        damage(tmp_path)
        await parts.timers.deliver_due()  # reads them, none is due
        damage(tmp_path, BODIES[3])
        clock.advance(10_000)
        await parts.timers.deliver_due()
        assert read_bodies(parts) == [BODIES[0], BODIES[2]]


class _Producer(NotingSession):
    def __init__(self) -> None:
        super().__init__("c")
        self.asked: list[bytes] = []

    def check_transaction(self, message: StoredMessage, transaction_id: str, group: str) -> None:
        self.asked.append(bytes(message.body))


@on_loop
async def test_half_messages(tmp_path: Path) -> None:
    clock = ManualClock(START_MS)
    properties = {"TRAN_MSG": "true", "PGROUP": "g"}
    with producing(tmp_path, clock) as parts:
        for body in BODIES:
            message = Message.create("T", body, queue_id=0, properties=properties)
            await parts.prepare(message)
        parts.store.wait_until_dispatched()
        damage(tmp_path)
    with producing(tmp_path, clock) as parts:
        await parts.transactions.load()
        damage(tmp_path, BODIES[3])
        producer = _Producer()
        parts.producers.register("g", producer)
        clock.advance(60_000)
        await parts.transactions.check()
        assert producer.asked == [BODIES[0], BODIES[2]]
