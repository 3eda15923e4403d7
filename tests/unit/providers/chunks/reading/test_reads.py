"""Tests of reading a chunk log: requests, and bytes that must not be returned."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.chunks import GRACE_MS, LOG, UNITS, Process, Store
from tests.kit.object_faults import ObjectFault
from tieredstore.errors import Corrupt, Invalid, Unavailable
from tieredstore.providers.chunks.manifests.names import chunk_name
from tieredstore.providers.chunks.reading.blocks import BlockReader, Wanted
from tieredstore.providers.chunks.reading.reader import ByteCache, Hedge
from tieredstore.testing.provider.samples import content

FAIL, SHORT = ObjectFault.FAIL, ObjectFault.SHORT
LOOK = ["LIST"] * 4
"""Requests for a reader's first listing of a segment. The epoch manifest is listed before and after
the segment."""


@pytest.fixture
def store() -> Store:
    return Store()


def reader_of(store: Store, **settings: Any) -> Process:
    """Return a process other than the writer, with empty caches."""
    return store.process(**settings)


class TestRanges:
    def test_a_range_over_several_objects_is_joined(self, store: Store) -> None:
        store.process().append(b"abc", b"defgh", b"i")
        segment = reader_of(store).open()
        for start in range(9):
            for end in range(start, 10):
                assert bytes(segment.read(start, end - start)) == b"abcdefghi"[start:end]

    def test_long_ranges_are_split(self, store: Store) -> None:
        data = content(1_000)
        store.process().append(data)
        reader = reader_of(store, read_part_bytes=300)
        assert reader.content() == data
        assert reader.operations() == [*LOOK, *["GET"] * 4]

    def test_o05_a_short_body_is_resumed(self, store: Store) -> None:
        data = content(64)
        store.process().append(data)
        reader = reader_of(store)
        segment = reader.open()
        segment.size()
        reader.fail_next(SHORT, SHORT, FAIL)
        assert bytes(segment.read(0, 64)) == data
        assert reader.operations() == [*LOOK, *["GET"] * 4]

    def test_o05_bodies_that_stay_short_are_an_error(self, store: Store) -> None:
        store.process().append(content(64))
        reader = reader_of(store)
        reader.fail_all(SHORT, ["GET"])
        with pytest.raises(Unavailable, match="of 64 bytes"):
            reader.open().read(0, 64)

    def test_o01_failing_reads_end(self, store: Store) -> None:
        store.process().append(content(64))
        reader = reader_of(store)
        reader.fail_all(FAIL, ["GET"])
        with pytest.raises(Unavailable):
            reader.open().read(0, 64)
        assert reader.operations() == [*LOOK, *["GET"] * 4]

    def test_o06_more_bytes_than_asked_for_are_an_error(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.process().append(content(64))
        reader = reader_of(store)
        whole = reader.client.get_range
        monkeypatch.setattr(reader.client, "get_range", lambda key, *_: whole(key, 0, 64))
        with pytest.raises(Corrupt, match="asked for 5 bytes at 3, got 64"):
            reader.open().read(3, 5)

    def test_an_object_that_was_merged_away_is_looked_up_once(self, store: Store) -> None:
        writer = store.process().take_over()
        writer.append(b"abc", b"def", b"ghi", b"jkl")
        reader = reader_of(store)
        segment = reader.open()
        assert bytes(segment.read(0, 6)) == b"abcdef"
        for _ in range(2):
            writer.tier.run_maintenance()
            store.clock.advance(GRACE_MS)
        reader.operations()
        assert bytes(segment.read(0, 12)) == b"abcdefghijkl"
        assert reader.operations()[-2:] == ["LIST", "GET"]

    def test_o09_a_hole_is_an_error_with_its_offsets_and_the_rest_is_read(
        self, store: Store
    ) -> None:
        store.process().append(b"abc", b"def", b"ghi")
        lost = next(i.key for i in store.first.list("") if i.key.endswith(chunk_name(3)))
        store.first.delete([lost])
        reader = reader_of(store)
        (listing,) = reader.tier.list()
        assert listing.size_bytes == 9
        segment = reader.tier.open(LOG, listing)
        assert bytes(segment.read(0, 3)) == b"abc"
        assert bytes(segment.read(6, 3)) == b"ghi"
        for position, length in ((2, 2), (3, 3), (5, 2), (0, 9)):
            with pytest.raises(Corrupt, match="next valid offset is 6") as caught:
                segment.read(position, length)
            assert caught.value.offset == 3
            assert segment.read_nowait(position, length) is None

    def test_o09_an_object_that_is_lost_later_is_an_error(self, store: Store) -> None:
        store.process().append(b"abc", b"def")
        segment = reader_of(store).open()
        segment.size()
        lost = next(i.key for i in store.first.list("") if i.key.endswith(chunk_name(3)))
        store.first.delete([lost])
        with pytest.raises(Corrupt):
            segment.read(0, 6)
        assert bytes(segment.read(0, 3)) == b"abc"


class TestListing:
    def test_o07_a_folder_that_a_listing_shows_in_two_runs_is_listed_alone(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writer = store.process()
        writer.append(b"abc", b"def")
        writer.append(b"x", b"y", id=UNITS)
        reader = reader_of(store)
        in_order = reader.client.list

        def shuffled(prefix: str, start_after: str = "") -> Iterator[object]:
            found = list(in_order(prefix, start_after))
            return iter(found[::2] + found[1::2] + found[:1])

        monkeypatch.setattr(reader.client, "list", shuffled)
        assert {item.id: item.size_bytes for item in reader.tier.list()} == {LOG: 6, UNITS: 2}

    def test_o07_a_hole_in_a_listing_is_looked_at_again(
        self, store: Store, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        store.process().append(b"abc", b"def", b"ghi")
        reader = reader_of(store)
        complete = reader.client.list
        calls = []

        def incomplete_once(prefix: str, start_after: str = "") -> Iterator[object]:
            calls.append(prefix)
            found = list(complete(prefix, start_after))
            return iter(found[:1] + found[2:] if len(calls) == 1 else found)

        monkeypatch.setattr(reader.client, "list", incomplete_once)
        (listing,) = reader.tier.list()
        assert bytes(reader.tier.open(LOG, listing).read(0, 9)) == b"abcdefghi"
        calls.clear()
        assert reader_of(store).open().size() == 9


class TestBlocks:
    def test_neighbouring_units_are_one_request(self, store: Store) -> None:
        data = content(20 * 1_000)
        store.process().append(data, id=UNITS)
        reader = reader_of(store)
        segment = reader.open(UNITS)
        for number in range(1_000):
            assert segment.read(20 * number, 20) == data[20 * number : 20 * number + 20]
        assert reader.operations() == [*LOOK, "GET"]

    def test_the_last_unit_in_a_block_of_many_objects_is_one_request(self, store: Store) -> None:
        units = [bytes([65 + number]) * 20 for number in range(10)]
        store.process().append(*units, id=UNITS)
        reader = reader_of(store)
        segment = reader.open(UNITS)
        segment.size()
        reader.operations()
        assert bytes(segment.read(180, 20)) == units[9]
        assert reader.operations() == ["GET"]
        assert bytes(segment.read(100, 40)) == units[5] + units[6]  # who wants more has the block
        assert reader.operations() == ["GET"] * 10
        assert bytes(segment.read(180, 20)) == units[9]
        assert reader.operations() == []

    def test_read_nowait_answers_from_blocks(self, store: Store) -> None:
        data = content(100_000)
        store.process().append(data, id=UNITS)
        segment = reader_of(store).open(UNITS)
        assert segment.read_nowait(0, 20) is None
        segment.read(0, 20)
        assert bytes(segment.read_nowait(40, 60_000) or b"") == data[40:60_040]
        assert segment.read_nowait(65_530, 20) is None

    def test_a_block_is_extended_when_the_segment_grows(self, store: Store) -> None:
        writer = store.process()
        writer.append(b"a" * 50, id=UNITS)
        reader = reader_of(store)
        segment = reader.open(UNITS)
        assert bytes(segment.read(0, 20)) == b"a" * 20
        writer.append(b"b" * 50, id=UNITS)
        assert bytes(segment.read(40, 20)) == b"a" * 10 + b"b" * 10
        reader.operations()
        assert bytes(segment.read(80, 20)) == b"b" * 20
        assert reader.operations() == []

    def test_blocks_of_a_deleted_segment_are_not_served(self, store: Store) -> None:
        writer = store.process()
        segment = writer.append(b"a" * 50, id=UNITS)
        segment.read(0, 50)
        segment.delete()
        assert segment.read_nowait(0, 20) is None
        segment = writer.append(b"b" * 50, id=UNITS)
        assert segment.read_nowait(0, 20) in (None, b"b" * 20)
        assert bytes(segment.read(0, 50)) == b"b" * 50

    def test_blocks_of_a_segment_that_another_process_made_again_are_not_served(
        self, store: Store
    ) -> None:
        for writer in (store.process(), store.process().take_over()):
            segment = writer.append(b"a" * 50, id=UNITS)
            reader = reader_of(store).open(UNITS)
            reader.read(0, 50)
            segment.delete()
            writer.append(b"b" * 20, id=UNITS)
            assert reader.size() == 20
            assert bytes(reader.read(0, 20)) == b"b" * 20
            writer.open(UNITS).delete()

    def test_nor_are_those_of_one_that_is_longer_now(self, store: Store) -> None:
        writer = store.process().take_over()
        segment = writer.append(b"a" * 50, id=UNITS)
        reader = reader_of(store).open(UNITS)
        reader.read(0, 50)
        segment.delete()
        writer.append(b"b" * 70, id=UNITS)
        assert reader.size() == 70
        assert bytes(reader.read(0, 70)) == b"b" * 70

    @given(
        st.integers(1, 200),
        st.lists(st.tuples(st.integers(0, 200), st.integers(0, 60)), max_size=20),
        st.integers(0, 20),
        st.integers(0, 120),
    )
    def test_blocks_are_the_content(
        self, size: int, reads: list[tuple[int, int]], gap: int, cache: int
    ) -> None:
        data = content(size + 200)
        blocks = BlockReader(ByteCache(cache), 16, gap)

        def fetch(wanted: Wanted) -> list[bytes]:
            assert wanted == sorted(wanted)
            assert all(position + length <= size for position, length in wanted)
            return [data[position : position + length] for position, length in wanted]

        for turn, (position, length) in enumerate(reads):
            size += turn  # it grows
            if position + length <= size:
                found = blocks.read(1, size, position, length, fetch)
                assert found == data[position : position + length]
                at_hand = blocks.read_nowait(1, position, length)
                assert at_hand is None or at_hand == found


class TestMemory:
    def test_recent_small_writes_are_read_without_a_request(self, store: Store) -> None:
        writer = store.process()
        segment = writer.append(b"abc", b"def")
        writer.operations()
        assert bytes(segment.read_nowait(1, 4) or b"") == b"bcde"
        assert bytes(segment.read(1, 4)) == b"bcde"
        assert writer.operations() == []

    def test_what_is_kept_is_bounded_and_the_oldest_stays(self, store: Store) -> None:
        writer = store.process(write_cache_bytes=10, write_cache_age_ms=1_000)
        segment = writer.append(b"abcdefg", b"hijklmn", b"opq")
        assert bytes(segment.read_nowait(0, 7) or b"") == b"abcdefg"
        assert segment.read_nowait(7, 7) is None
        assert bytes(segment.read_nowait(14, 3) or b"") == b"opq"
        store.clock.advance(1_001)
        segment = writer.append(b"rstuvwx")
        assert segment.read_nowait(0, 7) is None
        assert bytes(segment.read_nowait(17, 7) or b"") == b"rstuvwx"

    def test_a_byte_cache_never_holds_more_than_its_bound(self) -> None:
        cache = ByteCache(100)
        for number in range(200):
            cache.put(number, bytes(number))
            assert cache.size_bytes <= 100
        assert cache.get(150) is None


class TestClosing:
    @pytest.mark.parametrize("hedge", [False, True])
    @pytest.mark.parametrize("part_bytes", [100, 1_000])
    def test_a_read_of_a_closed_provider_is_refused(
        self, store: Store, hedge: bool, part_bytes: int
    ) -> None:
        store.process().append(content(1_000))
        reader = reader_of(store, hedge=hedge, read_part_bytes=part_bytes)
        segment = reader.open()
        segment.read(0, 1)
        reader.tier.close()
        with pytest.raises(Invalid, match="the provider is closed"):
            segment.read(0, 1_000)

    def test_a_read_under_way_is_refused_what_it_did_not_begin(self, store: Store) -> None:
        store.process().append(content(1_000))
        reader = reader_of(store, read_threads=1, read_part_bytes=100)
        segment = reader.open()
        segment.size()
        request = reader.client.request
        closer = threading.Thread(target=reader.tier.close)
        own, is_closing = threading.current_thread(), threading.Event()

        def close(operation: str, key: str) -> None:
            request(operation, key)
            if threading.current_thread() is own:
                closer.start()
                while not reader.tier._reader._is_closed:
                    closer.join(0.001)
                is_closing.set()
            else:
                is_closing.wait(10)

        reader.client.request = close  # type: ignore[method-assign]
        with pytest.raises(Invalid, match="the provider is closed"):
            segment.read(0, 1_000)
        closer.join()


class TestHedging:
    def test_reads_are_the_same_with_hedging(self, store: Store) -> None:
        data = content(1_000)
        store.process().append(data)
        reader = reader_of(store, hedge=True, read_part_bytes=100)
        assert reader.content() == data
        reader.tier.close()

    def test_a_second_read_goes_out_after_the_p95_and_wins(self) -> None:
        # The share allows one second read, at the 64th call: no quick read takes it away, however
        # late the machine runs it.
        hedge = Hedge(lambda: 0, min_ms=1, share=1 / 64, threads=4)
        for _ in range(63):
            assert hedge.call(lambda: "quick") == "quick"
        released = threading.Event()
        answers = iter([lambda: released.wait(60) and "slow", lambda: "second"])
        lock = threading.Lock()

        def read() -> object:
            with lock:
                answer: Callable[[], object] = next(answers)
            return answer()

        assert hedge.call(read) == "second"
        assert (hedge.call_count, hedge.extra_count) == (64, 1)
        released.set()
        hedge.close()

    def test_the_p95_is_of_the_last_durations_and_known_from_the_twentieth_on(self) -> None:
        times_ms = iter([time for took in range(400) for time in (0, took)])
        hedge = Hedge(lambda: next(times_ms), min_ms=30, share=0, threads=1)
        found: list[int | None] = []
        for _ in range(400):
            found.append(hedge._delay_ms())
            hedge.call(lambda: None)
        hedge.close()
        assert found[:20] == [None] * 20
        assert found[20] == 30  # never before this
        assert found[40] == 38  # of 0 to 39
        assert found[399] == 386  # of 143 to 398

    def test_at_most_its_share_is_read_twice(self) -> None:
        hedge = Hedge(lambda: 0, min_ms=1, share=0.05, threads=4)
        for _ in range(30):
            hedge.call(lambda: None)
        begun, is_read_twice = itertools.count(), threading.Event()

        def read() -> None:
            if next(begun):
                is_read_twice.set()
            is_read_twice.wait(60)

        for _ in range(12):
            hedge.call(read)
        assert hedge.extra_count <= 0.05 * hedge.call_count
        assert hedge.extra_count >= 1
        hedge.close()

    def test_an_error_is_an_error(self) -> None:
        hedge = Hedge(lambda: 0, min_ms=1, share=1, threads=2)

        def fail() -> None:
            raise Unavailable("no")

        with pytest.raises(Unavailable):
            hedge.call(fail)
        hedge.close()
