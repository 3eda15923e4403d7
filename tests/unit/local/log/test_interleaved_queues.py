"""Tests of uploading from a log in which messages of many queues alternate."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.local_stores import runs_of
from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.local.log import mapped_file, memory
from tieredstore.local.log.gathering import Runs
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.local.log.memory import NEAR_BYTES, join_near
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.message.encoding import Message
from tieredstore.tier.store import TieredMessageStore

QUEUES = 1_000
MESSAGES = 4
BODY = b"x" * 900
LOG_BYTES = 1 << 23


@pytest.fixture
def counted_bytes(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Count the bytes copied or read from the log, and the requested pages."""
    counts = {"read": 0, "asked": 0}
    copy, gather, read = MappedFile.copy, MappedFile.gather, PositionalFiles.read_up_to
    resident = memory.is_resident

    def copied(self: MappedFile, start: int, end: int) -> bytes | None:
        counts["read"] += end - start
        return copy(self, start, end)

    def gathered(self: MappedFile, runs: Runs) -> bytearray | None:
        found = gather(self, runs)
        counts["read"] += 0 if found is None else len(found)
        return found

    def read_of(self: PositionalFiles, path: str, length: int, position: int) -> bytes:
        found = read(self, path, length, position)
        counts["read"] += len(found) if "/commitlog/" in path else 0
        return found

    def asked(address: int, start: int, end: int) -> bool:
        counts["asked"] += end - start
        return resident(address, start, end)

    monkeypatch.setattr(MappedFile, "copy", copied)
    monkeypatch.setattr(MappedFile, "gather", gathered)
    monkeypatch.setattr(PositionalFiles, "read_up_to", read_of)
    monkeypatch.setattr(mapped_file, "is_resident", asked)
    return counts


def test_a_log_of_very_many_queues_is_read_once(
    tmp_path: Path, counted_bytes: dict[str, int]
) -> None:
    settings = StoreConfig(
        broker_name="b",
        store_path_root_dir=str(tmp_path / "store"),
        tier_file_path=str(tmp_path / "tier"),
        backend_service_provider="posix",
        posix_fsync_enable=False,
        message_index_enable=False,
        mapped_file_size_commit_log_bytes=LOG_BYTES,
        mapped_file_size_consume_queue_bytes=2_000,
    )
    local = DefaultMessageStore(settings)
    local.load()
    local.start()
    for _ in range(MESSAGES):
        for queue in range(QUEUES):
            assert local.put_message(Message.create(f"topic-{queue}", BODY, queue_id=0)).ok
    local.shutdown()
    store = TieredMessageStore(
        DefaultMessageStore(settings),
        settings,
        registry.segment_provider(settings),
        registry.metadata_store(settings),
        settings.store_path_root_dir,
    )
    store.load()
    counted_bytes.update(read=0, asked=0)
    outcomes = store.dispatcher.scan(force=True)
    assert sum(outcome.messages for outcome in outcomes) == QUEUES * MESSAGES
    uploaded = sum(outcome.size_bytes for outcome in outcomes)
    assert counted_bytes["read"] <= 1.2 * uploaded
    # No page between two messages of a queue is requested.
    assert counted_bytes["asked"] <= 2 * uploaded
    store.shutdown()


def test_runs_are_joined_where_little_lies_between_them() -> None:
    near = [(0, 10), (10 + NEAR_BYTES, 20 + NEAR_BYTES)]
    far = [(0, 10), (1 + 10 + 2 * NEAR_BYTES, 20 + 1 + 2 * NEAR_BYTES)]
    assert join_near(runs_of((5, 10))) == [(5, 10)]
    assert join_near(runs_of(*near)) == [(0, 20 + NEAR_BYTES)]
    assert join_near(runs_of(*near[::-1])) == [(0, 20 + NEAR_BYTES)]
    assert join_near(runs_of(*far)) == far
