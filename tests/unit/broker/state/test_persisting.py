"""Table changes are written to `config/` immediately, at intervals, or at shutdown."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.config_manager import PersistService
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.errors import TieredStoreError

NEVER_MS = 1 << 30


async def until(path: Path) -> None:
    """Wait until a file exists."""
    async with asyncio.timeout(30):
        while not path.exists():  # noqa: ASYNC110, ASYNC240 - nobody tells
            await asyncio.sleep(0.005)


def test_topics_are_written_at_once_and_offsets_at_the_end(tmp_path: Path) -> None:
    async def run() -> None:
        topics = TopicConfigManager(tmp_path, BrokerSettings())
        offsets = ConsumerOffsetManager(tmp_path)
        service = PersistService(NEVER_MS)
        service.register(topics, at_once=True)
        service.register(offsets)
        await service.load()
        service.start()
        topics.update_topic(TopicConfig(topic_name="T"))
        await until(topics.path)
        offsets.commit_offset("G", "T", 0, 5)
        await asyncio.sleep(0)
        assert not offsets.path.exists()
        await service.stop()
        assert json.loads(offsets.path.read_bytes())["offsetTable"] == {"T@G": {"0": 5}}
        await service.stop()

    asyncio.run(run())


def test_offsets_are_written_at_intervals(tmp_path: Path) -> None:
    async def run() -> None:
        offsets = ConsumerOffsetManager(tmp_path)
        service = PersistService(lambda: 1)
        service.register(offsets)
        service.start()
        offsets.commit_offset("G", "T", 0, 5)
        await until(offsets.path)
        await service.stop()

    asyncio.run(run())


def test_a_file_that_cannot_be_written_keeps_no_other_from_it(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "blocked").write_text("a file")
        topics = TopicConfigManager(tmp_path / "blocked", BrokerSettings())
        offsets = ConsumerOffsetManager(tmp_path)
        service = PersistService(NEVER_MS)
        service.register(topics)
        service.register(offsets)
        topics.update_topic(TopicConfig(topic_name="T"))
        offsets.commit_offset("G", "T", 0, 5)
        with pytest.raises(TieredStoreError, match="blocked"):
            await service.persist()
        assert offsets.path.exists()
        assert topics.is_changed

    asyncio.run(run())
