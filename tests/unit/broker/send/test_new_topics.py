"""A topic created by a message is saved before the message is acknowledged. Otherwise a kill could
leave a message that cannot be read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.kit.loops import on_loop
from tests.kit.producing import Producing, producing
from tieredstore.broker.send.sender import SendRequest
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.message.encoding import Message

NEW = "NewTopic"


async def _send(parts: Producing) -> str:
    await parts.send(NEW)
    return NEW


async def _send_batch(parts: Producing) -> str:
    shared = Message.create(NEW, b"x", queue_id=0)
    await parts.sender.send_batch(SendRequest("g", shared), [Message.create("", b"y")])
    return NEW


async def _prepare(parts: Producing) -> str:
    await parts.prepare(Message.create(NEW, b"x", queue_id=0))
    return NEW


async def _send_back(parts: Producing) -> str:
    await parts.send("T", queue_id=0)
    await parts.send_back.send_back("g", parts.read("T")[0])
    return "%RETRY%g"


async def _send_to_dead_letters(parts: Producing) -> str:
    await parts.send("T", queue_id=0)
    await parts.send_back.send_to_dead_letters("g", parts.read("T")[0], 3)
    return "%DLQ%g"


@pytest.mark.parametrize("make", [_send, _send_batch, _prepare, _send_back, _send_to_dead_letters])
@on_loop
async def test_a_new_topic_is_on_disk_when_its_message_is_acknowledged(
    tmp_path: Path, make: Callable[[Producing], Awaitable[str]]
) -> None:
    with producing(tmp_path) as parts:
        topic = await make(parts)
        found = TopicConfigManager(tmp_path / "config", parts.settings)
        await found.load()
        assert found.find_topic(topic) == parts.topics.find_topic(topic)
        assert found.find_topic(topic) is not None


@on_loop
async def test_the_second_message_of_a_new_topic_waits_for_the_file_too(tmp_path: Path) -> None:
    with producing(tmp_path) as parts:
        first = asyncio.ensure_future(parts.send(NEW, queue_id=0))
        await asyncio.sleep(0)
        assert parts.topics.find_topic(NEW) is not None
        assert not parts.topics.is_persisted(NEW)
        assert parts.topics.is_persisted("T2")  # no waiting for others
        second = await parts.send(NEW, queue_id=0)
        assert parts.topics.is_persisted(NEW)
        assert [(await first).queue_offset, second.queue_offset] == [0, 1]
