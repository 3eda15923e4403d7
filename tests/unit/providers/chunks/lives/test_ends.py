"""With which shared object a segment ends, as a listing tells it."""

from __future__ import annotations

from tieredstore.contracts.segment import Companion, FileSegmentType, SegmentId
from tieredstore.providers.chunks.lives.chain import Chain, Hole
from tieredstore.providers.chunks.lives.ends import find_shared_end
from tieredstore.providers.chunks.lives.extents import Extent
from tieredstore.providers.chunks.lives.names import Life, make_grouped_name
from tieredstore.providers.chunks.provider import ChunkProvider
from tieredstore.providers.memory.objects import MemoryObjectClient
from tieredstore.testing.chunks import chunk_provider

BROKER = "broker-a"
LOG = SegmentId(f"{BROKER}/t/0", FileSegmentType.COMMIT_LOG, 0)
UNITS = SegmentId(f"{BROKER}/t/0", FileSegmentType.CONSUME_QUEUE, 0)
GROUP = "0.0000000001.0000000002.00000000-ffffffff.99"


def find_ends(provider: ChunkProvider) -> tuple[str, str]:
    found = {item.id: item.shared_end for item in provider.list(BROKER)}
    return found[LOG], found[UNITS]


def write_both(provider: ChunkProvider, position: int, first: int) -> None:
    units = Companion(provider.open(UNITS), first, [b"u" * 20])
    provider.open(LOG).write_with(position, [b"message"], units)


def test_messages_and_units_of_one_write_end_with_it() -> None:
    store = MemoryObjectClient()
    provider = chunk_provider(store)
    epoch = provider.acquire_writer(BROKER)
    write_both(provider, 0, 0)
    former = find_ends(chunk_provider(store))
    write_both(provider, 7, 20)
    latter = find_ends(chunk_provider(store))
    assert former[0] == former[1] != ""
    assert latter[0] == latter[1] not in {"", former[0]}
    provider.open(LOG).write(14, [b"alone"])
    assert find_ends(chunk_provider(store)) == ("", latter[1])
    provider.open(UNITS).write(40, [b"u" * 20])
    assert find_ends(chunk_provider(store)) == ("", "")
    epoch.release()


def test_a_part_of_a_shared_object_tells_nothing() -> None:
    """What an heir goes by may end within a write: the other file need not."""
    store = MemoryObjectClient()
    provider = chunk_provider(store)
    epoch = provider.acquire_writer(BROKER)
    write_both(provider, 0, 0)
    for item in provider.list(BROKER):
        assert isinstance(item.token, Chain)
        last = item.token.extents[-1]
        assert find_shared_end(item.id, item.token) != ""
        cut = Chain((last.cut(last.start, last.end - 1),))
        assert find_shared_end(item.id, cut) == ""
    epoch.release()


def test_pieces_of_a_group_end_with_it_where_they_are_whole() -> None:
    for is_write in (True, False):
        name = make_grouped_name(Life(1, 5), GROUP, is_write=is_write)
        piece = Extent(0, 40, name, 1, 100, 0xABC)
        assert find_shared_end(UNITS, Chain((piece,))) == GROUP
        assert find_shared_end(UNITS, Chain((piece.cut(0, 20),))) == ""
        assert find_shared_end(UNITS, Chain((piece,), holes=(Hole(40, 60),))) == ""


def test_what_has_nothing_ends_with_nothing() -> None:
    assert find_shared_end(LOG, Chain()) == ""
