"""A broker ends under load in one of several ways. After the next start it has every acknowledged
message once, in queue order."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kit.clients.broker_process import BrokerProcess
from tests.kit.remoting import RemotingClient
from tests.kit.waiting import wait_for
from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.errors import TieredStoreError
from tieredstore.message.properties import encode_properties
from tieredstore.message.record import decode_record

TOPIC = "orders"
QUEUES = 4
SENDERS = 16
LIVES = [2, pytest.param(4, marks=pytest.mark.slow)]
"""Number of broker starts under load, all on one store."""
MESSAGES = 600  # acknowledged in each life, at least


class Load:
    """Senders that send until the connection ends. Records the acknowledged messages by queue."""

    def __init__(self) -> None:
        self.sent = 0
        self.acknowledged: dict[tuple[int, int], bytes] = {}
        self._enough = asyncio.Event()

    def start(self, address: str) -> asyncio.Task[None]:
        """Start the senders for one run of the broker."""
        self._wanted = len(self.acknowledged) + MESSAGES
        self._enough.clear()
        return asyncio.create_task(self._run(address))

    async def _run(self, address: str) -> None:
        async with await RemotingClient.open(address) as client:
            senders = [asyncio.create_task(self._send(client)) for _ in range(SENDERS)]
            await asyncio.gather(*senders)

    async def wait_for_enough(self) -> None:
        async with asyncio.timeout(60):
            await self._enough.wait()

    async def _send(self, client: RemotingClient) -> None:
        while client.connection.is_open:
            self.sent += 1
            body = b"%08d" % self.sent + b"x" * (self.sent % 700)
            fields = {"a": "g", "b": TOPIC, "c": "TBW102", "d": QUEUES, "e": self.sent % QUEUES}
            fields |= {"f": 0, "g": 0, "h": 0, "j": 0, "k": False, "m": False}
            properties = encode_properties({"UNIQ_KEY": f"{self.sent:032X}"}).decode()
            try:
                answer = await client.request(
                    RequestCode.SEND_MESSAGE_V2, {**fields, "i": properties}, body
                )
            except TieredStoreError:
                return
            if answer.code == 0:
                found = answer.ext_fields
                self.acknowledged[int(found["queueId"]), int(found["queueOffset"])] = body
            else:  # it is stopping
                await asyncio.sleep(0.01)
            if len(self.acknowledged) >= self._wanted:
                self._enough.set()


async def read_all(address: str) -> dict[tuple[int, int], bytes]:
    """Pull every queue from its first offset to its end."""
    found: dict[tuple[int, int], bytes] = {}
    async with await RemotingClient.open(address) as client:
        for queue_id in range(QUEUES):
            offset = 0
            while True:
                place = {"topic": TOPIC, "queueId": queue_id}
                answer = await client.request(
                    RequestCode.PULL_MESSAGE,
                    {
                        **place,
                        "consumerGroup": "g",
                        "queueOffset": offset,
                        "maxMsgNums": 32,
                        "sysFlag": 4,
                        "commitOffset": 0,
                        "suspendTimeoutMillis": 0,
                        "subscription": "*",
                        "subVersion": 0,
                        "expressionType": "TAG",
                    },
                )
                if answer.code == 19:
                    break
                assert answer.code == 0, answer.remark
                data, position = answer.body_bytes, 0
                while position < len(data):
                    message = decode_record(data, position)
                    assert message.queue_offset == offset
                    found[queue_id, offset] = bytes(message.body)
                    position += message.size
                    offset += 1
                assert int(answer.ext_fields["nextBeginOffset"]) == offset
    return found


def check(load: Load, found: dict[tuple[int, int], bytes]) -> None:
    assert load.acknowledged.items() <= found.items()
    repeated = {body: count for body, count in Counter(found.values()).items() if count > 1}
    assert repeated == {}
    assert all(1 <= int(body[:8]) <= load.sent for body in found.values())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
@pytest.mark.parametrize("lives", LIVES)
def test_l11_what_was_acknowledged_is_there_after_each_life(
    tmp_path: Path, number: int, flush: str, lives: int
) -> None:
    async def live(broker: BrokerProcess, load: Load) -> None:
        running = load.start(broker.addresses["remoting"])
        await load.wait_for_enough()
        code = await asyncio.to_thread(broker.end, number)
        assert code == (-number if number == signal.SIGKILL else 0)
        await running

    async def run() -> None:
        load = Load()
        keys = {"flushDiskType": flush, "tieredStoreGroupCommitTimeout": "100"}
        with BrokerProcess(tmp_path, keys) as broker:
            for _ in range(lives):
                await live(broker, load)
                await asyncio.to_thread(broker.start)
                check(load, await read_all(broker.addresses["remoting"]))
            assert broker.end(signal.SIGTERM) == 0
        assert not (tmp_path / "store" / "abort").exists()

    asyncio.run(run())


def test_a_broker_that_is_killed_says_what_it_recovered(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path) as broker:
        broker.kill()
        broker.start()
        log = broker.log_path.read_text()
    assert "was not stopped cleanly: recovered in" in log
    assert "tier: file://" in log


def test_a_tier_that_never_answers_does_not_hold_a_stop_up(tmp_path: Path) -> None:
    async def live(broker: BrokerProcess, load: Load) -> None:
        running = load.start(broker.addresses["remoting"])
        await load.wait_for_enough()
        assert await asyncio.to_thread(broker.end, signal.SIGTERM) == 0
        await running

    async def run() -> None:
        load = Load()
        keys = {
            "tieredBackendServiceProvider": "tests.kit.hanging_provider:HangingProvider",
            "tieredStoreGroupCommitTimeout": "1",
        }
        with BrokerProcess(tmp_path, keys) as broker:
            await live(broker, load)
            assert "it is flushed" not in broker.log_path.read_text()
            # The next one begins with the upload of what the first has left.
            (tmp_path / "hang").touch()
            await asyncio.to_thread(broker.start)
            await live(broker, load)
            assert "it is flushed" in broker.log_path.read_text()
            (tmp_path / "hang").unlink()
            await asyncio.to_thread(broker.start)
            check(load, await read_all(broker.addresses["remoting"]))

    asyncio.run(run())


def begin_and_wait(broker: BrokerProcess) -> Path:
    """Start a broker that waits for its tier. Return the file that blocks the tier: the broker
    continues when the file is removed."""
    sign = broker.folder / "hang-start"
    sign.touch()
    broker.begin()
    wait_for(sign.with_name("hang-start.seen").exists)
    return sign


def test_a_start_that_does_not_end_is_given_up_when_it_is_told_to_stop(tmp_path: Path) -> None:
    keys = {"tieredBackendServiceProvider": "tests.kit.hanging_provider:HangingProvider"}
    broker = BrokerProcess(tmp_path, keys)
    try:
        sign = begin_and_wait(broker)
        assert broker.stop() == 0
        assert "the start has not ended in time" in broker.log()
        sign.unlink()
        broker.start()
        assert broker.stop() == 0
    finally:
        broker.kill()


def test_a_start_that_is_told_to_stop_ends_in_order(tmp_path: Path) -> None:
    keys = {"tieredBackendServiceProvider": "tests.kit.hanging_provider:HangingProvider"}
    broker = BrokerProcess(tmp_path, keys)
    try:
        sign = begin_and_wait(broker)
        with ThreadPoolExecutor(1) as pool:
            stopping = pool.submit(broker.stop)
            wait_for(lambda: "told to stop during the start" in broker.log())
            sign.unlink()
            assert stopping.result() == 0
        assert "stopped in" in broker.log()
        assert "given up" not in broker.log()
        assert not (tmp_path / "store" / "abort").exists()
    finally:
        broker.kill()
