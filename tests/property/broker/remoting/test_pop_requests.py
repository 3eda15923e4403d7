"""Pop requests have arbitrary fields and bodies. They never raise an unexpected error, and never
stop the delivery of a message."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.consuming import GROUP, TOPIC, served
from tests.kit.local_stores import plain
from tests.kit.popping import pop
from tests.kit.remoting import RemotingClient
from tieredstore.broker.remoting.codes import RequestCode as Code

CODES = (
    Code.POP_MESSAGE,
    Code.ACK_MESSAGE,
    Code.BATCH_ACK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.PEEK_MESSAGE,
    Code.NOTIFICATION,
    Code.POLLING_INFO,
    Code.POP_ROLLBACK,
    Code.QUERY_ASSIGNMENT,
    Code.SET_MESSAGE_REQUEST_MODE,
    Code.GET_ALL_MESSAGE_REQUEST_MODE,
)
NAMES: tuple[str, ...] = (
    "topic",
    "consumerGroup",
    "queueId",
    "maxMsgNums",
    "invisibleTime",
    "bornTime",
)
NAMES += ("initMode", "exp", "expType", "order", "attemptId", "offset", "extraInfo", "suspend")
NAMES += ("clientId", "messageModel", "strategyName", "mode", "popShareQueueNum", "acks")
NUMBERS = st.sampled_from([-(2**63), -(2**31), -1, 0, 1, 3, 4, 33, 2**31, 2**63 - 1, 2**63, 10**30])
# fmt: off
TEXTS = st.sampled_from([
    TOPIC, GROUP, f"%RETRY%{GROUP}", f"%RETRY%{GROUP}_{TOPIC}", f"%RETRY%{GROUP}+{TOPIC}",
    "", " ", "*", "A ||", "a BETWEEN", "TAG", "SQL92", "true", "POP", "AVG", "BROADCASTING",
    "0 0 0 0 0 b", "0 1 2 3 4 b 6 7 8", "9" * 40 + " 1 2 3 0 b", "1 2 3", "\x00", "ä" * 300,
]) | st.text(max_size=20)
# fmt: on
VALUES = TEXTS | NUMBERS.map(str)
ENTRY = st.dictionaries(
    st.sampled_from(["c", "t", "r", "so", "q", "pt", "b", "bitSet", "topic", "consumerGroup"]),
    TEXTS | NUMBERS | st.none() | st.sampled_from(["AQ==", "/w=="]),
)
BODY = st.binary(max_size=20) | st.dictionaries(
    st.sampled_from(NAMES), TEXTS | NUMBERS | st.none() | st.lists(ENTRY, max_size=3)
).map(lambda fields: _encode(fields))
REQUEST = st.tuples(
    st.sampled_from(CODES), st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=14), BODY
)


def _encode(fields: Mapping[str, object]) -> bytes:
    # JSON has larger numbers than msgspec writes.
    texts = {name: str(one) if isinstance(one, int) else one for name, one in fields.items()}
    return msgspec.json.encode(texts, enc_hook=str) if _is_small(texts) else b"{}"


def _is_small(value: object) -> bool:
    if isinstance(value, int):
        return -(2**63) <= value < 2**64
    if isinstance(value, dict):
        return all(map(_is_small, value.values()))
    return not isinstance(value, list) or all(map(_is_small, value))


@settings(max_examples=60, deadline=None)
@given(st.lists(REQUEST, min_size=1, max_size=40))
def test_any_request_has_an_expected_answer(
    requests: list[tuple[Code, dict[str, str], bytes]],
) -> None:
    async def run(folder: Path) -> None:
        async with (
            served(folder) as broker,
            await RemotingClient.open(broker.address) as client,
        ):
            await broker.put(plain(TOPIC, 0, 0))
            assert (await pop(client)).code == 0
            progress = broker.services.receive.state.find_queues(GROUP, TOPIC)[0]
            entry = progress.entries[0]
            before = entry.generation, entry.visible_at_ms, entry.attempts
            for code, fields, body in requests:
                answer = await client.request(code, {"pollTime": 0, **fields}, body)
                remark = answer.remark or ""
                assert "Error" not in remark, (code, fields, body, remark)
            assert (entry.generation, entry.visible_at_ms, entry.attempts) == before
            assert progress.entries == {0: entry}

    folder = Path(tempfile.mkdtemp())
    try:
        asyncio.run(asyncio.wait_for(run(folder), 120))
    finally:
        shutil.rmtree(folder)
