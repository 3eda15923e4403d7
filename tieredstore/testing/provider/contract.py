"""Contract tests for segment providers. In the tests of a provider, subclass the contracts of its
capabilities (`tieredstore.testing.provider.capabilities`), or this one if it has none:

    class TestMyProvider(ConditionalProviderContract):
        @pytest.fixture
        def provider(self, tmp_path):
            with closing(MyProvider(tmp_path)) as provider:
                yield provider

        def reopen(self, provider):
            return MyProvider(provider.root)

Requires pytest and hypothesis.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import pytest

from tieredstore.contracts.backups import BackupKind, BackupName, BackupPlace, RangedBackups
from tieredstore.contracts.segment import (
    Capabilities,
    FileSegment,
    FileSegmentType,
    SegmentProvider,
    WriterEpoch,
    WriterRecord,
    Written,
)
from tieredstore.contracts.tier_identity import IdentifiedTier, StartedEpoch, WriterKind, WriterMark
from tieredstore.contracts.time_records import TimesName, TimesPlace
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Busy, Corrupt, Fenced, Invalid, Unavailable
from tieredstore.testing.provider.samples import (
    UNUSABLE_PATHS,
    UNUSABLE_TOPICS,
    USABLE_TOPICS,
    MemoryRecord,
    content,
    segment_id,
    write_whole,
)
from tieredstore.testing.provider.segment_model import check_against_model


class ProviderContract:
    """Contract tests for `tieredstore.contracts.segment`."""

    rewritable: ClassVar[bool] = False
    conditional: ClassVar[bool] = False
    paired: ClassVar[bool] = False
    listing_count: ClassVar[int] = 1_100
    """Number of segments in the test of a long listing. It should exceed one page of an object
    store."""
    state_machine_examples: ClassVar[int] = 30

    @pytest.fixture
    def provider(self) -> SegmentProvider:
        """Return an empty tier."""
        raise NotImplementedError

    def reopen(self, provider: Any) -> SegmentProvider:
        """Return another provider for the same tier, as another process would open it."""
        raise NotImplementedError

    def test_the_kit_is_the_one_for_its_capabilities(self, provider: SegmentProvider) -> None:
        can = provider.capabilities
        kit = (self.rewritable, self.conditional, self.paired)
        assert (can.rewritable, can.conditional, can.paired) == kit, (
            "take RewritableProviderContract or ConditionalProviderContract, with "
            "PairedProviderContract where it is paired"
        )

    # An absent segment

    def test_opening_a_segment_makes_nothing(self, provider: SegmentProvider) -> None:
        segment = provider.open(segment_id())
        assert segment.size() == 0
        segment.close()
        assert list(provider.list()) == []

    def test_an_absent_segment_is_not_read_as_data(self, provider: SegmentProvider) -> None:
        segment = provider.open(segment_id())
        with pytest.raises(Corrupt):
            segment.read(0, 1)
        assert segment.read_nowait(0, 1) is None

    # Writing and reading

    def test_what_was_written_is_read(self, provider: SegmentProvider) -> None:
        data = content(100_000)
        segment = write_whole(provider.open(segment_id()), data)
        assert segment.size() == len(data)
        assert bytes(segment.read(0, len(data))) == data
        assert bytes(segment.read(99_990, 10)) == data[99_990:]
        assert bytes(segment.read(1, 70_000)) == data[1:70_001]

    def test_a_segment_grows_at_its_end(self, provider: SegmentProvider) -> None:
        segment = provider.open(segment_id())
        whole = b""
        for length in (1, 20, 4096, 5, 70_000):
            write_whole(segment, content(length, length), len(whole))
            whole += content(length, length)
            assert segment.size() == len(whole)
        assert bytes(segment.read(0, len(whole))) == whole
        assert bytes(segment.read(20, 5_000)) == whole[20:5_020]

    def test_buffers_are_written_in_order(self, provider: SegmentProvider) -> None:
        pieces = [content(n % 50, n) for n in range(3_000)]
        buffers = [(bytes, bytearray, memoryview)[n % 3](piece) for n, piece in enumerate(pieces)]
        segment = provider.open(segment_id())
        whole = b"".join(pieces)
        assert segment.write(0, buffers) == Written(len(whole))
        assert bytes(segment.read(0, len(whole))) == whole

    def test_buffers_may_change_after_the_write(self, provider: SegmentProvider) -> None:
        buffer = bytearray(b"before")
        segment = provider.open(segment_id())
        segment.write(0, [buffer])
        buffer[:] = b"after!"
        assert bytes(segment.read(0, 6)) == b"before"

    def test_a_buffer_that_was_read_never_changes(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"first")
        found = segment.read(0, 5)
        write_whole(segment, b"second", 5)
        segment.delete()
        assert bytes(found) == b"first"
        assert found.readonly

    def test_writing_nothing_makes_nothing(self, provider: SegmentProvider) -> None:
        segment = provider.open(segment_id())
        assert segment.write(0, []) == Written(0)
        assert segment.write(0, [b"", b""]) == Written(0)
        write_whole(segment, b"abc")
        assert segment.write(3, [b""]) == Written(3)
        assert bytes(segment.read(0, 3)) == b"abc"

    def test_a_write_beyond_the_end_is_invalid(self, provider: SegmentProvider) -> None:
        segment = provider.open(segment_id())
        with pytest.raises(Invalid):
            segment.write(1, [b"x"])
        assert segment.size() == 0
        write_whole(segment, b"abc")
        with pytest.raises(Invalid, match="4"):
            segment.write(4, [b"x"])
        assert bytes(segment.read(0, segment.size())) == b"abc"

    def test_negative_positions_are_invalid(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        for call in (
            lambda: segment.write(-1, [b"x"]),
            lambda: segment.read(-1, 1),
            lambda: segment.read(0, -1),
            lambda: segment.read_nowait(-1, 1),
        ):
            with pytest.raises(Invalid):
                call()

    def test_a_read_past_the_end_is_an_error_not_zeros(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        for position, length in ((0, 4), (2, 2), (3, 1), (100, 1)):
            with pytest.raises(Corrupt) as caught:
                segment.read(position, length)
            assert caught.value.offset == position
            assert segment.read_nowait(position, length) is None
        assert bytes(segment.read(3, 0)) == b""

    def test_i06_huge_ranges_are_errors_of_their_own(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        for position, length in ((0, 2**40), (2**62, 5), (0, 2**63 - 1)):
            with pytest.raises(Corrupt):
                segment.read(position, length)
            assert segment.read_nowait(position, length) is None
        for position, length in ((0, 2**63), (2**63 - 1, 1), (2**70, 0)):
            with pytest.raises(Invalid):
                segment.read(position, length)
        with pytest.raises(Invalid):
            segment.write(2**63, [b"x"])

    def test_what_is_at_hand_is_the_same_bytes(self, provider: SegmentProvider) -> None:
        data = content(50_000)
        segment = write_whole(provider.open(segment_id()), data)
        segment.read(0, len(data))
        for position, length in ((0, 50_000), (49_999, 1), (123, 4567)):
            found = segment.read_nowait(position, length)
            assert found is None or found == data[position : position + length]

    def test_two_handles_see_one_segment(self, provider: SegmentProvider) -> None:
        first, second = provider.open(segment_id()), provider.open(segment_id())
        write_whole(first, b"abc")
        assert bytes(second.read(0, 3)) == b"abc"
        write_whole(second, b"def", 3)
        assert first.size() == 6
        assert bytes(first.read(0, 6)) == b"abcdef"

    def test_segments_do_not_mix(self, provider: SegmentProvider) -> None:
        ids = [
            segment_id(f"broker-{b}/{topic}/{queue}", kind, base)
            for b in "ab"
            for topic in ("T", "T1")
            for queue in (0, 1, 10)
            for kind in FileSegmentType
            for base in (0, 1, 10)
        ]
        for n, name in enumerate(ids):
            write_whole(provider.open(name), content(n + 1, n))
        for n, name in enumerate(ids):
            segment = provider.open(name)
            assert bytes(segment.read(0, segment.size())) == content(n + 1, n)

    # Writing again

    def test_the_same_write_again_is_written(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        write_whole(segment, b"def", 3)
        write_whole(segment, b"def", 3)
        assert bytes(segment.read(0, segment.size())) == b"abcdef"

    # Sealing and deleting

    def test_a_sealed_segment_takes_no_more(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        segment.seal()
        segment.seal()
        with pytest.raises(Invalid):
            segment.write(3, [b"x"])
        assert segment.size() == 3
        assert bytes(segment.read(0, 3)) == b"abc"

    def test_an_empty_segment_can_be_sealed(self, provider: SegmentProvider) -> None:
        segment = provider.open(segment_id())
        segment.seal()
        assert segment.size() == 0
        with pytest.raises(Invalid):
            segment.write(0, [b"x"])

    def test_a_deleted_segment_is_gone(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        kept = write_whole(provider.open(segment_id(base_offset=3)), b"kept")
        segment.delete()
        segment.delete()
        assert segment.size() == 0
        assert [listing.id for listing in provider.list()] == [kept.id]
        with pytest.raises(Corrupt):
            segment.read(0, 1)
        assert segment.read_nowait(0, 1) is None

    def test_a_deleted_segment_can_be_made_again(self, provider: SegmentProvider) -> None:
        for seal in (False, True):
            segment = write_whole(provider.open(segment_id()), b"old content")
            segment.read(0, 11)
            if seal:
                segment.seal()
            segment.delete()
            write_whole(provider.open(segment_id()), b"new")
            again = provider.open(segment_id())
            assert bytes(again.read(0, again.size())) == b"new"
            again.delete()

    def test_closing_a_segment_is_idempotent_and_keeps_it(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        segment.close()
        segment.close()
        assert bytes(provider.open(segment_id()).read(0, 3)) == b"abc"

    # Listing

    def test_a_listing_finds_all_segments_with_their_sizes(self, provider: SegmentProvider) -> None:
        expected = {}
        for n, topic in enumerate(USABLE_TOPICS):
            for kind in FileSegmentType:
                name = segment_id(f"broker-a/{topic}/{n}", kind, n * 1000)
                write_whole(provider.open(name), content(n + 1))
                expected[name] = n + 1
        found = {listing.id: listing.size_bytes for listing in provider.list()}
        assert found == expected
        for listing in provider.list():
            segment = provider.open(listing.id, listing)
            assert bytes(segment.read(0, listing.size_bytes)) == content(listing.size_bytes)

    def test_a_prefix_means_whole_path_components(self, provider: SegmentProvider) -> None:
        paths = {"b/T/0", "b/T/1", "b/T/10", "b/T1/0", "b/T1/1", "b1/T/0"}
        for path in paths:
            write_whole(provider.open(segment_id(path)), b"x")
        for prefix, expected in {
            "": paths,
            "b": {path for path in paths if path.startswith("b/")},
            "b/T": {"b/T/0", "b/T/1", "b/T/10"},
            "b/T/1": {"b/T/1"},
            "b/T/1/": {"b/T/1"},
            "b/": {path for path in paths if path.startswith("b/")},
            "b/X": set(),
            "B": set(),
        }.items():
            assert {listing.id.path for listing in provider.list(prefix)} == expected, prefix

    def test_o07_a_long_listing_is_complete(self, provider: SegmentProvider) -> None:
        ids = {segment_id(base_offset=n * 20) for n in range(self.listing_count)}
        for name in ids:
            write_whole(provider.open(name), b"x")
        found = [listing.id for listing in provider.list("broker-a/TopicTest/0")]
        assert len(found) == len(ids)
        assert set(found) == ids

    def test_a_listing_prefix_cannot_leave_the_tier(self, provider: SegmentProvider) -> None:
        for prefix in ("..", "../x", "b/../..", "b//t", "/b", "b/t/0/COMMIT_LOG"):
            with pytest.raises(Invalid):
                list(provider.list(prefix))

    # Names

    @pytest.mark.parametrize("topic", UNUSABLE_TOPICS, ids=repr)
    def test_i02_unusable_topics_are_refused(self, provider: SegmentProvider, topic: str) -> None:
        with pytest.raises(Invalid):
            provider.open(segment_id(f"broker-a/{topic}/0"))
        with pytest.raises(Invalid):
            provider.open(segment_id(f"{topic}/TopicTest/0"))

    @pytest.mark.parametrize("path", UNUSABLE_PATHS, ids=repr)
    def test_i02_unusable_paths_are_refused(self, provider: SegmentProvider, path: str) -> None:
        with pytest.raises(Invalid):
            provider.open(segment_id(path))

    @pytest.mark.parametrize("base_offset", [0, 2**31, 2**32 - 1, 2**32, 10**18, 2**63 - 1])
    def test_i06_large_base_offsets(self, provider: SegmentProvider, base_offset: int) -> None:
        name = segment_id(f"broker-a/TopicTest/{2**31 - 1}", base_offset=base_offset)
        write_whole(provider.open(name), b"x")
        assert [listing.id for listing in provider.list()] == [name]

    @pytest.mark.parametrize("base_offset", [-1, 2**63])
    def test_i06_impossible_base_offsets_are_refused(
        self, provider: SegmentProvider, base_offset: int
    ) -> None:
        with pytest.raises(Invalid):
            provider.open(segment_id(base_offset=base_offset))

    # The tier

    def test_another_provider_sees_the_same_tier(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        write_whole(segment, b"def", 3)
        segment.close()
        other = self.reopen(provider)
        assert [(listing.id, listing.size_bytes) for listing in other.list()] == [(segment_id(), 6)]
        again = other.open(segment_id())
        assert again.size() == 6
        assert bytes(again.read(0, 6)) == b"abcdef"
        write_whole(again, b"ghi", 6)
        assert bytes(again.read(3, 6)) == b"defghi"

    def test_a_provider_says_what_it_can(self, provider: SegmentProvider) -> None:
        assert isinstance(provider, SegmentProvider)
        assert isinstance(provider.open(segment_id()), FileSegment)
        assert isinstance(provider.capabilities, Capabilities)
        assert provider.capabilities.preferred_batch_bytes >= 0
        assert "://" in provider.url

    # Writers

    def test_w01_a_broker_prefix_has_one_writer(self, provider: SegmentProvider) -> None:
        epoch = provider.acquire_writer("broker-a")
        assert epoch.owner
        epoch.confirm()
        with pytest.raises(Fenced) as caught:
            self.reopen(provider).acquire_writer("broker-a")
        assert epoch.owner in str(caught.value)
        epoch.check()
        epoch.confirm()
        provider.acquire_writer("broker-b").release()
        epoch.release()

    def test_the_last_writer_is_named_after_it_is_gone(self, provider: SegmentProvider) -> None:
        record = find_layer(provider, WriterRecord)
        if record is None:
            pytest.skip("an option: this provider does not remember its writers")
        assert record.find_last_writer("broker-a") is None
        epoch = provider.acquire_writer("broker-a")
        epoch.release()
        again = find_layer(self.reopen(provider), WriterRecord)
        assert again is not None
        assert epoch.owner in str(again.find_last_writer("broker-a"))

    def test_a_released_writer_makes_room(self, provider: SegmentProvider) -> None:
        first = provider.acquire_writer("broker-a")
        first.release()
        first.release()
        second = self.reopen(provider).acquire_writer("broker-a")
        second.confirm()
        for ask in (first.check, first.confirm):
            with pytest.raises(Fenced):
                ask()
        second.release()

    def test_taking_over_ends_the_other_or_is_refused(self, provider: SegmentProvider) -> None:
        first = provider.acquire_writer("broker-a")
        second: WriterEpoch | None
        try:
            second = self.reopen(provider).acquire_writer("broker-a", take_over=True)
        except Fenced:
            second = None
        if second is None:
            first.confirm()
            first.release()
        else:
            second.confirm()
            for ask in (first.confirm, first.check):  # Known after the first read.
                with pytest.raises(Fenced):
                    ask()
            first.release()
            second.confirm()
            second.release()

    def test_what_was_confirmed_is_found_by_the_next_writer(
        self, provider: SegmentProvider
    ) -> None:
        first = provider.acquire_writer("broker-a")
        segment = write_whole(provider.open(segment_id()), b"abc")
        write_whole(segment, b"def", 3)
        first.confirm()
        first.release()
        other = self.reopen(provider)
        second = other.acquire_writer("broker-a")
        assert [found.size_bytes for found in other.list("broker-a")] == [6]
        assert bytes(other.open(segment_id()).read(0, 6)) == b"abcdef"
        second.release()

    def test_a_record_of_epochs_is_no_key_to_the_epoch_of_another(
        self, provider: SegmentProvider
    ) -> None:
        record = MemoryRecord()
        epoch = provider.acquire_writer("broker-a", record=record)
        with pytest.raises(Fenced):
            self.reopen(provider).acquire_writer("broker-a", record=MemoryRecord())
        epoch.check()
        epoch.release()
        again = self.reopen(provider).acquire_writer("broker-a", record=record)
        again.check()
        again.release()

    def test_a_tier_keeps_its_identity_and_tells_its_writers(
        self, provider: SegmentProvider
    ) -> None:
        place = find_layer(provider, IdentifiedTier)
        if place is None:
            pytest.skip("an option: this provider keeps no identity")
        assert place.read_mark("broker-a", 0).identity is None
        first = WriterMark("one", "token-1", WriterKind.STORE, "store-1", after=0)
        provider.acquire_writer("broker-a", record=MemoryRecord(first)).release()
        again = self.reopen(provider)
        with pytest.raises(Busy):  # It has not compared itself with the first.
            again.acquire_writer("broker-a", record=MemoryRecord(first))
        second = WriterMark("one", "token-2", WriterKind.JOB, after=1)
        again.acquire_writer("broker-a", record=MemoryRecord(second)).release()
        found = find_layer(again, IdentifiedTier)
        assert found is not None
        told = found.read_mark("broker-a", 1)
        assert (told.identity, told.number, told.is_empty) == ("one", 2, False)
        marks = {number: mark for number, mark in told.writers.items() if mark is not None}
        assert {number: mark.token for number, mark in marks.items()} == {
            1: "token-1",
            2: "token-2",
        }
        assert [marks[number].kind for number in (1, 2)] == [WriterKind.STORE, WriterKind.JOB]
        assert marks[1].store == "store-1"
        assert found.read_mark("broker-b", 0).identity is None
        assert list(found.list_brokers()) == ["broker-a"]

    def test_a_store_counts_once_it_has_compared_itself(self, provider: SegmentProvider) -> None:
        place = find_layer(provider, IdentifiedTier)
        if place is None:
            pytest.skip("an option: this provider keeps no identity")
        kinds = []
        for number, compares in ((1, True), (2, False), (3, True)):
            token = f"token-{number}"
            mark = WriterMark("one", token, WriterKind.STARTING, "store-1", number - 1)
            epoch = provider.acquire_writer("broker-a", record=MemoryRecord(mark))
            started = find_layer(epoch, StartedEpoch)
            assert started is not None
            if compares:
                started.become_store()
            epoch.release()
            told = place.read_mark("broker-a", 1).writers[number]
            assert told is not None
            assert told.token == token
            kinds.append(told.kind)
        assert kinds == [WriterKind.STORE, WriterKind.STARTING, WriterKind.STORE]
        found = self.reopen(provider)
        place = find_layer(found, IdentifiedTier)
        assert place is not None
        marks = place.read_mark("broker-a", 1).writers
        assert [mark.kind for _, mark in sorted(marks.items()) if mark is not None] == kinds

    def test_i02_unusable_broker_names_are_refused(self, provider: SegmentProvider) -> None:
        for name in UNUSABLE_TOPICS:
            with pytest.raises(Invalid):
                provider.acquire_writer(name)

    def test_the_writer_is_not_a_segment(self, provider: SegmentProvider) -> None:
        epoch = provider.acquire_writer("broker-a")
        assert list(provider.list()) == []
        epoch.release()

    def test_recorded_times_are_kept_beside_the_segments(self, provider: SegmentProvider) -> None:
        """Check that recorded times are not listed as segments and change no segment."""
        place = find_layer(provider, TimesPlace)
        if place is None:
            pytest.skip("an option: this provider keeps no times")
        path, other = "broker-a/orders/0", "broker-a/12/7"
        names = [TimesName(0, 10), TimesName(0, 900), TimesName(1 << 40, 5)]
        assert place.list_times(path) == []
        assert place.read_times(path, names[0]) is None
        for name in reversed(names):
            place.write_times(path, name, str(name).encode())
        place.write_times(path, names[0], b"another")
        place.write_times(other, names[0], b"of another queue")
        assert list(place.list_times(path)) == names
        assert [place.read_times(path, name) for name in names] == [
            str(name).encode() for name in names
        ]
        assert sorted(place.list_timed_paths("broker-a")) == sorted([path, other])
        assert place.list_timed_paths("broker-b") == []
        assert list(provider.list()) == []
        place.delete_times(path, names[:2])
        place.delete_times(path, names[:2])
        assert list(place.list_times(path)) == names[2:]
        with pytest.raises(Invalid):
            place.list_times("broker-a/../0")

    def test_backups_are_kept_beside_the_segments(self, provider: SegmentProvider) -> None:
        place = find_layer(provider, BackupPlace)
        if place is None:
            pytest.skip("an option: this provider keeps no backups")
        names = [
            BackupName(0, 1, BackupKind.CONFIG),
            BackupName(3, 1, BackupKind.METADATA),
            BackupName(3, 2, BackupKind.CONFIG),
            BackupName(12, 1, BackupKind.CONFIG),
        ]
        assert place.list_backups("broker-a") == []
        assert place.read_backup("broker-a", names[0]) is None
        for name in reversed(names):
            place.write_backup("broker-a", name, str(name).encode() * 1_000)
        again = find_layer(self.reopen(provider), BackupPlace)
        assert again is not None
        assert list(again.list_backups("broker-a")) == names
        assert [again.read_backup("broker-a", name) for name in names] == [
            str(name).encode() * 1_000 for name in names
        ]
        if isinstance(again, RangedBackups):
            assert (
                again.read_backup_range("broker-a", names[1], 31, 40)
                == (str(names[1]).encode() * 2)[31:71]
            )
            whole = len(str(names[1])) * 1_000
            assert again.read_backup_range("broker-a", names[1], whole - 3, 40) == b"ata"
            gone = BackupName(9, 9, BackupKind.CONFIG)
            assert again.read_backup_range("broker-a", gone, 0, 40) is None
        assert again.list_backups("broker-b") == []
        assert list(provider.list()) == []
        with pytest.raises(Unavailable, match="already"):
            place.write_backup("broker-a", names[0], b"another")
        for _ in range(2):
            place.delete_backups("broker-a", names[:3])
        assert list(place.list_backups("broker-a")) == names[3:]
        with pytest.raises(Invalid):
            place.list_backups("..")

    # Threads

    def test_segments_are_written_and_read_by_many_threads(self, provider: SegmentProvider) -> None:
        def work(number: int) -> None:
            segment = provider.open(segment_id(f"broker-a/TopicTest/{number}"))
            whole = b""
            for turn in range(8):
                data = content(500 + turn, number)
                write_whole(segment, data, len(whole))
                whole += data
                assert bytes(segment.read(0, len(whole))) == whole

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(16)))

    def test_readers_see_only_what_was_written(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), content(1_000))
        stop = threading.Event()

        def read() -> int:
            turns = 0
            while not stop.is_set() or not turns:
                size = provider.open(segment_id()).size()
                found = segment.read(0, size)
                assert b"\x00" not in bytes(found)
                turns += 1
            return turns

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read) for _ in range(3)]
            try:
                for turn in range(30):
                    write_whole(segment, content(1_000), 1_000 * (turn + 1))
            finally:
                stop.set()
            assert all(reader.result() for reader in readers)

    # A model

    def test_any_sequence_of_calls_agrees_with_a_plain_bytearray(
        self, provider: SegmentProvider
    ) -> None:
        check_against_model(provider, self.reopen, max_examples=self.state_machine_examples)
