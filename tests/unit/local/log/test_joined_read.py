"""Adjacent records are read together, and other records separately."""

from __future__ import annotations

from pathlib import Path

import pytest

from tieredstore.config import StoreConfig
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import Corrupt
from tieredstore.local.log import gathering as joined_read
from tieredstore.local.log.gathering import MAX_JOINED_BYTES, read_joined
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message


class Log:
    """A log with known content that counts reads."""

    def __init__(self, data: bytes, error: Exception | None = None) -> None:
        self.data = data
        self.error = error
        self.reads: list[tuple[int, int]] = []

    def get(self, offset: int, size: int) -> memoryview | None:
        self.reads.append((offset, size))
        if self.error is not None:
            raise self.error
        return memoryview(self.data)[offset : offset + size] if offset + size < 5_000_000 else None


DATA = bytes(range(256)) * 8_000


def test_near_records_are_read_once() -> None:
    log = Log(DATA)
    units = [(100, 10), (120, 10), (140, 5)]
    joined = read_joined(log, units)  # type: ignore[arg-type]
    assert log.reads == [(100, 45)]
    for offset, size in units:
        assert bytes(joined.find(offset, size) or b"") == DATA[offset : offset + size]
    assert joined.find(140, 6) is None
    assert joined.find(99, 2) is None
    assert joined.find(120, 0) is None
    assert joined.find(120, -5) is None


@pytest.mark.parametrize(
    "units",
    [
        [],
        [(100, 10)],
        [(100, 10), (10_000, 10)],
        [(100, 10), (50, 10)],
        [(0, MAX_JOINED_BYTES), (MAX_JOINED_BYTES, 10)],
        [(100, -10), (120, -10)],
    ],
)
def test_there_is_nothing_to_gain(units: list[tuple[int, int]]) -> None:
    log = Log(DATA)
    assert read_joined(log, units) is joined_read.NOTHING_JOINED  # type: ignore[arg-type]
    assert log.reads == []


def test_what_cannot_be_read_is_left_to_the_reader_of_each() -> None:
    units = [(100, 10), (120, 10)]
    torn = Log(DATA, Corrupt("cut"))
    assert read_joined(torn, units) is joined_read.NOTHING_JOINED  # type: ignore[arg-type]
    behind = [(5_000_000, 10), (5_000_020, 10)]
    assert read_joined(Log(DATA), behind) is joined_read.NOTHING_JOINED  # type: ignore[arg-type]


def test_a_get_gives_the_same_whether_records_are_read_together_or_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # files so small that records of one get lie in several
    config = StoreConfig(
        store_path_root_dir=str(tmp_path), mapped_file_size_commit_log_bytes=64 << 10
    )
    store = DefaultMessageStore(config)
    store.load()
    store.start()
    try:
        for number in range(300):
            topic, body = f"t{number % 3}", bytes([number % 251]) * (number % 7 * 100 + 1)
            result = store.put_message(Message.create(topic, body, queue_id=0))
            assert result.ok
        store.wait_until_visible(result)
        together = [store.get_message("g", "t1", 0, offset, 32) for offset in range(100)]
        monkeypatch.setattr(joined_read, "MAX_JOINED_BYTES", 0)
        apart = [store.get_message("g", "t1", 0, offset, 32) for offset in range(100)]
        for one, other in zip(together, apart, strict=True):
            assert one.status is other.status is GetMessageStatus.FOUND
            assert one.next_begin_offset == other.next_begin_offset
            assert [bytes(m.raw) for m in one.messages] == [bytes(m.raw) for m in other.messages]
    finally:
        store.shutdown()
