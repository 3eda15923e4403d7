"""A receive service is compared with a simple model: messages in flight, their deadlines, and
acknowledged messages. The service is killed and restarted at any time."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.kit.receiving import Receiving, bodies
from tieredstore.broker.receive.progress import MAX_AHEAD_MS
from tieredstore.broker.receive.requests import (
    AckStatus,
    Received,
    decode_handle,
    encode_handle,
)
from tieredstore.broker.receive.service import Popped
from tieredstore.contracts.message_store import GetMessageResult, GetRequest

QUEUES = 2
RETRIES = 2
Result = TypeVar("Result")


class Sent:
    """A message that the test has sent, as the model records it."""

    def __init__(self, number: int, queue_id: int, message_group: str) -> None:
        self.number = number
        self.queue_id = queue_id
        self.message_group = message_group
        self.attempts = 0
        self.visible_at_ms = 0
        self.handle = ""
        self.is_done = False


class ReceiveModel(RuleBasedStateMachine):
    fifo = False

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.on = Receiving(self.folder, queues=QUEUES, retry_max_times=RETRIES, max_bytes=2_000)
        self.sent: list[Sent] = []
        self.dead: list[int] = []
        self.handles: set[str] = set()
        self.run(self.on.start())
        self.let_reads_wait()

    def let_reads_wait(self) -> None:
        """Let other tasks run during each read, as during a read from the tier."""
        get = self.on.store.get_async

        async def get_later(request: GetRequest) -> GetMessageResult:
            await asyncio.sleep(0)
            result = await get(request)
            await asyncio.sleep(0)
            return result

        self.on.store.get_async = get_later  # type: ignore[method-assign]

    def teardown(self) -> None:
        self.run(self.on.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    def run(self, call: Coroutine[Any, Any, Result]) -> Result:
        return self.loop.run_until_complete(call)

    def is_out(self, sent: Sent) -> bool:
        return not sent.is_done and sent.visible_at_ms > self.on.clock.now_ms()

    def list_ready(self) -> tuple[set[int], set[int]]:
        """Return the numbers of the messages that may be delivered now, and of those that become
        dead letters."""
        ready, dead = set(), set()
        stopped = set()
        for sent in self.sent:
            order = sent.queue_id, sent.message_group
            if sent.is_done or (self.fifo and order in stopped):
                continue
            if self.is_out(sent):
                stopped.add(order)
            elif not self.fifo and sent.attempts > RETRIES:
                dead.add(sent.number)
            else:
                ready.add(sent.number)
        return ready, dead

    def name(self, handle: str) -> Popped:
        """Return the fields by which a remoting client identifies the delivery with this receipt
        handle."""
        receipt = decode_handle(handle)
        assert receipt is not None
        return Popped("G", "T", receipt.queue_id, receipt.offset, receipt.pop_ms)

    def note(self, received: list[Received], invisible_ms: int) -> None:
        for one, number in zip(received, bodies(received), strict=True):
            sent = self.sent[number]
            sent.attempts += 1
            sent.visible_at_ms = self.on.clock.now_ms() + invisible_ms
            sent.handle = one.handle
            assert one.delivery_attempt == sent.attempts
            assert one.handle not in self.handles
            self.handles.add(one.handle)

    @rule(
        queue_id=st.integers(0, QUEUES - 1),
        names=st.lists(st.sampled_from(["", "a", "b"]), min_size=1, max_size=6),
    )
    def put(self, queue_id: int, names: list[str]) -> None:
        for name in names:
            self.sent.append(Sent(self.on.numbers, queue_id, name))
            self.on.put(queue_id=queue_id, message_group=name)

    @rule(
        max_count=st.sampled_from([1, 2, 5, 1_000]), invisible_ms=st.sampled_from([1_000, 20_000])
    )
    def receive(self, max_count: int, invisible_ms: int) -> None:
        ready, dead = self.list_ready()
        received = self.run(self.on.receive(max_count, invisible_ms=invisible_ms, fifo=self.fifo))
        got = bodies(received)
        assert len(set(got)) == len(got) == min(max_count, len(ready))
        assert set(got) <= ready
        buried = {int(body) for _, body, _ in self.on.dead.letters} - set(self.dead)
        assert buried <= dead
        if max_count > len(ready):
            assert buried == dead
        for number in buried:
            self.sent[number].is_done = True
        self.dead += buried
        if self.fifo:  # in order, and nothing before them is left out
            for number in got:
                order = [
                    other.number
                    for other in self.sent[:number]
                    if not other.is_done
                    and other.queue_id == self.sent[number].queue_id
                    and other.message_group == self.sent[number].message_group
                ]
                assert [other for other in got if other in order] == order
                assert all(got.index(other) < got.index(number) for other in order)
        self.note(received, invisible_ms)

    @rule(data=st.data(), count=st.integers(1, 4), is_popped=st.booleans())
    def acknowledge(self, data: st.DataObject, count: int, is_popped: bool) -> None:
        out = [sent for sent in self.sent if self.is_out(sent)]
        if out:
            chosen = data.draw(
                st.lists(st.sampled_from(out), min_size=1, max_size=count, unique=True)
            )
            handles = [sent.handle for sent in chosen]
            if is_popped:
                names = [self.name(handle) for handle in handles]
                assert self.on.service.ack_popped(names) == len(names)
            else:
                statuses = self.run(self.on.service.ack_all("G", "T", handles))
                assert set(statuses) == {AckStatus.OK}
            for sent in chosen:
                sent.is_done = True

    @rule(
        names=st.lists(st.sampled_from(["", "a"]), min_size=1, max_size=4),
        max_count=st.sampled_from([1, 2]),
        turns=st.integers(1, 6),
        acknowledged=st.sampled_from([1, 2, 1_000]),
    )
    def receive_while_others_acknowledge(
        self, names: list[str], max_count: int, turns: int, acknowledged: int
    ) -> None:
        chosen = [sent for sent in self.sent if self.is_out(sent)][:acknowledged]
        if not chosen or self.list_ready()[1]:
            return
        self.put(queue_id=chosen[0].queue_id, names=names)
        ready, _ = self.list_ready()

        async def both() -> list[Received]:
            call = asyncio.ensure_future(self.on.receive(max_count, fifo=self.fifo))
            for _ in range(turns):
                await asyncio.sleep(0)
            handles = [sent.handle for sent in chosen]
            statuses = await self.on.service.ack_all("G", "T", handles)
            assert set(statuses) == {AckStatus.OK}
            return await call

        received = self.run(both())
        for sent in chosen:
            sent.is_done = True
        got = bodies(received)
        assert len(set(got)) == len(got) >= min(max_count, len(ready))
        assert set(got) <= self.list_ready()[0]
        self.note(received, 30_000)
        self.receive(max_count=1_000, invisible_ms=20_000)  # all that may go out does

    @rule(
        counts=st.lists(st.sampled_from([1, 2, 1_000]), min_size=2, max_size=3),
        turns=st.integers(0, 6),
        cancelled=st.booleans(),
    )
    def receive_at_once(self, counts: list[int], turns: int, cancelled: bool) -> None:
        if self.list_ready()[1]:
            return
        ready, _ = self.list_ready()

        async def all_of_them() -> list[list[Received]]:
            calls = [
                asyncio.ensure_future(self.on.receive(count, fifo=self.fifo)) for count in counts
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            if cancelled:
                calls[0].cancel()
            found = await asyncio.gather(*calls, return_exceptions=True)
            return [one for one in found if not isinstance(one, BaseException)]

        received = [one for part in self.run(all_of_them()) for one in part]
        got = bodies(received)
        assert len(set(got)) == len(got)
        assert set(got) <= ready
        self.note(received, 30_000)
        self.receive(max_count=1_000, invisible_ms=20_000)  # the rest is delivered

    @rule(data=st.data())
    def acknowledge_by_an_old_handle(self, data: st.DataObject) -> None:
        old = self.handles - {sent.handle for sent in self.sent if self.is_out(sent)}
        if old:
            handle = data.draw(st.sampled_from(sorted(old)))
            call = self.on.service.ack("G", "T", handle)
            assert self.run(call) is AckStatus.INVALID_RECEIPT_HANDLE
            assert self.on.service.ack_popped([self.name(handle)]) == 0
            assert self.on.service.change_popped(self.name(handle), 5_000) is None

    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 1_000, 5_000]))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        out = [sent for sent in self.sent if self.is_out(sent)]
        if out:
            sent = data.draw(st.sampled_from(out))
            call = self.on.service.change_invisible("G", "T", sent.handle, invisible_ms)
            handle = self.run(call)
            assert handle is not None
            assert handle not in self.handles
            self.handles.add(handle)
            sent.handle = handle
            sent.visible_at_ms = self.on.clock.now_ms() + max(invisible_ms, 1_000)

    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 5_000]), is_suspended=st.booleans())
    def change_popped(self, data: st.DataObject, invisible_ms: int, is_suspended: bool) -> None:
        out = [sent for sent in self.sent if self.is_out(sent)]
        if out:
            sent = data.draw(st.sampled_from(out))
            changed = self.on.service.change_popped(
                self.name(sent.handle), invisible_ms, is_suspended=is_suspended
            )
            assert changed is not None
            sent.visible_at_ms = self.on.clock.now_ms() + max(invisible_ms, 1_000)
            assert changed.invisible_until_ms == sent.visible_at_ms
            sent.attempts -= is_suspended
            receipt = decode_handle(sent.handle)
            assert receipt is not None
            assert changed.pop_ms <= self.on.clock.now_ms() + MAX_AHEAD_MS
            progress = self.on.state.find_queues("G", "T")[receipt.queue_id]
            generation = progress.entries[receipt.offset].generation
            sent.handle = encode_handle(receipt._replace(generation=generation))
            assert sent.handle not in self.handles
            self.handles.add(sent.handle)

    @rule(max_count=st.sampled_from([1, 3]))
    def receive_and_give_back(self, max_count: int) -> None:
        if self.list_ready()[1]:
            return
        received = self.run(self.on.receive(max_count, fifo=self.fifo))
        self.on.service.give_back("G", "T", received)
        self.handles |= {one.handle for one in received}

    @rule(passed_ms=st.sampled_from([-20_000, 1, 500, 1_000, 20_000]))
    def wait(self, passed_ms: int) -> None:
        self.on.clock.advance(passed_ms)

    @rule()
    def keep_up(self) -> None:
        self.run(self.on.service._keep_up())

    @rule()
    def kill(self) -> None:
        self.run(self.on.kill())
        self.run(self.on.start())

    @rule()
    def restart(self) -> None:
        self.run(self.on.service.stop())
        self.run(self.on.offsets.persist())
        self.run(self.on.start())

    @invariant()
    def the_consumer_offset_is_what_is_done(self) -> None:
        for queue_id in range(QUEUES):
            offset = self.on.offset(queue_id)
            sent = [one for one in self.sent if one.queue_id == queue_id]
            undone = [number for number, one in enumerate(sent) if not one.is_done]
            seen = [number for number, one in enumerate(sent) if one.attempts or one.is_done]
            if offset is not None and seen:
                assert offset == (undone[0] if undone else len(sent))


class FifoModel(ReceiveModel):
    fifo = True


TestReceiveModel = ReceiveModel.TestCase
TestReceiveModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestFifoModel = FifoModel.TestCase
TestFifoModel.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
