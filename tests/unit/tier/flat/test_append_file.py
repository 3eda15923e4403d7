"""Tests of when an append file may replace bytes after the commit position."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.kit.memory_chunks import chunk_provider
from tests.kit.tier.flat import TableMetadata, patch
from tieredstore.contracts.segment import (
    Buffer,
    FileSegmentType,
    SegmentId,
    UnknownWrite,
    WriteResult,
)
from tieredstore.errors import Fenced, Unavailable
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.tier.flat.append_file import FlatAppendFile

PATH, LOG = "broker-a/TopicA/0", FileSegmentType.COMMIT_LOG
FIRST = SegmentId(PATH, LOG, 0)


class World:
    """An append file on a chunk log, with its metadata. `other` is the same tier opened by another
    process."""

    def __init__(self) -> None:
        client = MemoryObjectClient()
        self.provider = chunk_provider(client, owner="ours")
        self.other = chunk_provider(client, owner="other")
        self.metadata = TableMetadata()

    def open(self) -> FlatAppendFile:
        file = FlatAppendFile(PATH, LOG, self.provider, self.metadata)
        file.recover()
        return file

    def make(self, data: bytes = b"") -> FlatAppendFile:
        file = self.open()
        file.init_offset(0)
        if data:
            file.append(data)
            assert file.commit()
        return file

    def leave_behind(self, position: int, data: bytes) -> None:
        """Write bytes that are not recorded in the metadata, as a killed process does."""
        self.provider.open(FIRST).write(position, [data])


def bases(file: FlatAppendFile) -> list[int]:
    return [segment.base_offset for segment in file.segments]


@pytest.fixture
def world() -> World:
    return World()


def test_bytes_found_behind_the_committed_ones_are_left_behind(world: World) -> None:
    world.make(b"four").close()
    world.leave_behind(4, b"torn")
    file = world.open()
    file.cut(4)
    file.append(b"more")
    assert file.commit()
    assert bases(file) == [0, 4]
    assert file.commit_offset == 8


def test_bytes_that_come_after_a_clean_opening_are_of_a_writer_that_has_the_right(
    world: World,
) -> None:
    world.make(b"four").close()
    file = world.open()
    file.append(b"more")
    world.other.open(FIRST).write(4, [b"????"])
    with pytest.raises(Fenced, match="other"):
        file.commit()
    assert bases(file) == [0]
    assert file.commit_offset == 4


def test_once_bytes_made_room_others_do_not(world: World) -> None:
    """A writer replaces the torn bytes of an earlier process only once. If more unknown bytes
    appear, the commit fails and the file stays unchanged."""
    world.make().close()
    world.leave_behind(0, b"torn")
    file = world.open()
    file.cut(0)
    file.append(b"four")
    assert file.commit()
    assert bases(file) == [0]
    assert file.commit_offset == 4

    def answer_late(position: int, buffers: Sequence[Buffer]) -> WriteResult:
        world.leave_behind(position, b"????")
        return UnknownWrite("no reply")

    patch(file.segments[-1].file, write=answer_late)
    file.append(b"more")
    with pytest.raises(Unavailable):
        file.commit()
    assert bases(file) == [0]
    assert file.commit_offset == 4
