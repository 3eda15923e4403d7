"""Tests of block checksums in a Posix tier. Damage is detected. Undamaged bytes stay readable after
crashes, power cuts and writes by Java."""

from __future__ import annotations

import errno
import os
import random
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from tests.kit.block_checksums import checksums_of, forget_checksums
from tests.kit.tier.flat import record
from tieredstore.contracts.block_checksums import BlocksDamaged
from tieredstore.contracts.segment import Buffer, FileSegmentType, SegmentId, Written
from tieredstore.errors import Corrupt, Unavailable
from tieredstore.message.consume_queue import pack_unit
from tieredstore.message.index.tiered import IndexHeader, pack_header
from tieredstore.message.layout import BORN_TIMESTAMP_POSITION
from tieredstore.providers.naming import relative_segment_path
from tieredstore.providers.posix import block_sums
from tieredstore.providers.posix.block_sums import (
    BLOCK_BYTES,
    ENTRY_BYTES,
    HEAD_BYTES,
    HEADER_BYTES,
    PIECE_BYTES,
    BlockEntry,
    BlockSums,
    compute_entries,
    compute_piece_crcs,
    decode_sums,
    encode_sums,
)
from tieredstore.providers.posix.calls import PosixCalls
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.providers.posix.sum_files import (
    SUFFIX,
    Loaded,
    SumCache,
    find_bad_blocks,
    sums_path,
)
from tieredstore.testing.faults import SimulatedCrash

COMMIT_LOG, CONSUME_QUEUE, INDEX = FileSegmentType
LOG = SegmentId("broker-a/TopicA/0", COMMIT_LOG, 0)
UNITS = SegmentId("broker-a/TopicA/0", CONSUME_QUEUE, 0)
KEYS = SegmentId("broker-a/rmq_sys_INDEX/0", INDEX, 0)


def log_bytes(size: int, *, generation: int = 0, first: int = 0) -> bytes:
    """Return about `size` bytes of records of a topic. `generation` is the number of times the
    topic was recreated."""
    found, offset = b"", first
    while len(found) < size:
        time_ms = 1_700_000_000_000 + generation * 86_412_345 + offset
        data = bytearray(record(offset, timestamp_ms=time_ms, body_size=900)[0])
        data[BORN_TIMESTAMP_POSITION : BORN_TIMESTAMP_POSITION + 8] = (time_ms - 5).to_bytes(
            8, "big"
        )
        found += data
        offset += 1
    return found


def unit_bytes(count: int, *, generation: int = 0) -> bytes:
    """Return units. The first three are the same for every generation of the topic."""
    return b"".join(pack_unit(n * 200, 200, 0 if n < 3 else generation) for n in range(count))


def index_bytes(size: int, *, generation: int = 0) -> bytes:
    begin = 1_700_000_000_123 + generation * 3_600_517
    header = pack_header(IndexHeader(begin, begin + 250 + generation * 1_301, 3, 9 + generation))
    return header + bytes(range(256)) * (size // 256)


CONTENT: dict[SegmentId, Callable[..., bytes]] = {
    LOG: lambda generation=0: log_bytes(3 * BLOCK_BYTES, generation=generation),
    UNITS: lambda generation=0: unit_bytes(7_000, generation=generation),
    KEYS: lambda generation=0: index_bytes(2 * BLOCK_BYTES, generation=generation),
}
SEGMENTS = pytest.mark.parametrize("id", CONTENT, ids=lambda segment: segment.type.name)


class Tier:
    """A Posix tier. Each call opens the tier again, as another process would."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def path(self, id: SegmentId) -> Path:
        [folder] = self.root.iterdir()
        return folder / relative_segment_path(id)

    def open(self, calls: PosixCalls | None = None, **options: bool) -> PosixProvider:
        return PosixProvider(self.root, "C", calls=calls, **{"fsync": False, **options})

    def write(self, id: SegmentId, position: int, *buffers: bytes) -> None:
        with closing(self.open()) as provider:
            length = sum(map(len, buffers))
            assert provider.open(id).write(position, buffers) == Written(position + length)

    def read(self, id: SegmentId, position: int = 0, length: int | None = None) -> bytes:
        with closing(self.open()) as provider:
            segment = provider.open(id)
            length = segment.size() - position if length is None else length
            return bytes(segment.read(position, length))

    def covered(self, id: SegmentId) -> tuple[int, int]:
        """Return the number of bytes with checksums, and the total number of bytes."""
        with closing(self.open()) as provider:
            found = provider.check_blocks(id)
            assert not found.damaged
            return found.covered_bytes, found.size_bytes

    def flip(self, id: SegmentId, position: int, *, keeps_time: bool = True) -> None:
        """Change a byte. With `keeps_time`, keep the file's modification time, like a failing
        disk."""
        path = self.path(id)
        before = path.stat()
        with path.open("r+b") as file:
            file.seek(position)
            [byte] = file.read(1)
            file.seek(position)
            file.write(bytes([byte ^ 0x10]))
        if keeps_time:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    (tmp_path / "tier").mkdir()
    return Tier(tmp_path / "tier")


class TestCoverage:
    @SEGMENTS
    def test_every_written_byte_is_covered_however_it_was_cut(
        self, tier: Tier, id: SegmentId
    ) -> None:
        content = CONTENT[id]()
        chance = random.Random(5)
        done = 0
        while done < len(content):
            with closing(tier.open()) as provider:
                segment = provider.open(id)
                for _ in range(chance.randrange(1, 4)):
                    end = min(done + chance.choice([1, 77, 20_000, 70_000]), len(content))
                    middle = chance.randrange(done, end + 1)
                    segment.write(done, [content[done:middle], content[middle:end]])
                    done = end
            assert tier.covered(id) == (done, done)
        assert tier.read(id) == content

    @SEGMENTS
    @pytest.mark.parametrize("position", [0, 50, BLOCK_BYTES - 1, BLOCK_BYTES, 2 * BLOCK_BYTES, -1])
    def test_a_damaged_byte_is_never_read_and_named(
        self, tier: Tier, id: SegmentId, position: int
    ) -> None:
        content = CONTENT[id]()
        tier.write(id, 0, content)
        position %= len(content)
        tier.flip(id, position)
        start = position - position % BLOCK_BYTES
        for place in (position, start, max(0, position - 5)):
            if place // BLOCK_BYTES != position // BLOCK_BYTES:
                continue
            with pytest.raises(BlocksDamaged, match=f"block at {start} .*expected CRC-32") as error:
                tier.read(id, place, 1)
            assert str(tier.path(id)) in str(error.value)
            assert len(error.value.found) == 1
        with pytest.raises(BlocksDamaged) as caught:
            tier.read(id)
        end = min(start + BLOCK_BYTES, len(content))
        assert caught.value.ranges == [(start, end)]
        assert len(caught.value.found) == len(content)
        if end < len(content):
            assert tier.read(id, end) == content[end:]

    def test_what_is_at_hand_is_checked_too(self, tier: Tier) -> None:
        content = CONTENT[LOG]()
        tier.write(LOG, 0, content)
        with closing(tier.open()) as provider:
            segment = provider.open(LOG)
            segment.read(0, 10)
            assert segment.read_nowait(70_000, 500) in (None, content[70_000:70_500])
            tier.flip(LOG, 70_100)
            assert segment.read_nowait(70_000, 50) is None
            assert segment.read_nowait(1_000, 50) in (None, content[1_000:1_050])

    def test_few_bytes_do_not_hold_the_memory_of_a_block(self, tier: Tier) -> None:
        tier.write(LOG, 0, CONTENT[LOG]())
        with closing(tier.open()) as provider:
            assert memoryview(provider.open(LOG).read(100, 200).obj).nbytes == 200

    def test_without_checksums_everything_is_as_before(self, tier: Tier) -> None:
        content = CONTENT[LOG]()
        with closing(tier.open(checksums=False)) as provider:
            provider.open(LOG).write(0, [content])
        assert forget_checksums(tier.root) == 0
        tier.flip(LOG, 10)
        assert tier.read(LOG) != content
        with pytest.raises(Corrupt, match="found 3 before the end"):
            tier.read(LOG, len(content) - 3, 4)


class TestSums:
    def test_every_flipped_byte_is_found(self, tier: Tier) -> None:
        for segment, make in CONTENT.items():
            content = bytearray(make()[: 4 << 10])
            sums = BlockSums()
            sums.put(compute_entries(0, [content], 0)[0])
            view = memoryview(content)
            missed = []
            for position in range(len(content)):
                content[position] ^= 1 + position % 255
                if not find_bad_blocks(sums, 0, len(content), view, 0):
                    missed.append(position)
                content[position] ^= 1 + position % 255
            assert not missed, segment
            assert not find_bad_blocks(sums, 0, len(content), view, 0)

    def test_a_file_that_is_torn_or_damaged_covers_less_and_accuses_nobody(self) -> None:
        content = CONTENT[LOG]()
        sums = BlockSums(content[:80], 123_456_789)
        sums.put(compute_entries(0, [content], 0)[0])
        whole = encode_sums(sums)
        assert decode_sums(whole) == sums
        older = BlockSums(content[:80], 99)
        older.put(compute_entries(0, [content[:100_000]], 0)[0])
        old = encode_sums(older)
        damaged = [whole[:length] for length in range(len(whole))]
        damaged += [whole[:length] + bytes(len(whole) - length) for length in range(len(whole))]
        damaged += [whole[:length] + old[length:] for length in range(len(old))]
        damaged += [old[:length] + whole[length:] for length in range(len(old))]
        for position in range(len(whole)):
            for bit in range(8):
                copy = bytearray(whole)
                copy[position] ^= 1 << bit
                damaged.append(bytes(copy))
        for data in damaged:
            found = decode_sums(data)
            if found is not None:
                assert not find_bad_blocks(found, 0, len(content), memoryview(content), 0)

    def test_few_entries_are_read_like_many(self, monkeypatch: pytest.MonkeyPatch) -> None:
        content = CONTENT[LOG]()
        sums = BlockSums(content[:80], 123_456_789)
        sums.put(compute_entries(0, [content], 0)[0])
        whole = encode_sums(sums)
        empty = struct.pack(">IIII", 0, 7, 0xFFFFFFFF, 7 ^ 0xFFFFFFFF)  # fits, and says nothing
        files = [whole, whole[:HEADER_BYTES] + empty + whole[HEADER_BYTES + ENTRY_BYTES :]]
        for position in range(HEADER_BYTES, len(whole)):
            copy = bytearray(whole)
            copy[position] ^= 1
            files.append(bytes(copy))
        few = [decode_sums(data) for data in files]
        monkeypatch.setattr(block_sums, "_FEW_SLOTS", 0)
        assert [decode_sums(data) for data in files] == few

    def test_the_memory_for_checksums_is_bounded(self) -> None:
        cache = SumCache(limit_bytes=1_000)
        sums = BlockSums()
        sums.put([BlockEntry(number, 1, 1) for number in range(40)])
        for number in range(10):
            cache.put(str(number), Loaded(sums, None))
        assert [number for number in range(10) if cache.get(str(number))] == [8, 9]


class TestPieces:
    """Small reads of a verified block read only the pieces that they need."""

    class Calls(PosixCalls):
        def __init__(self) -> None:
            super().__init__()
            self.lengths: list[int] = []

        def read(self, fd: int, length: int, position: int) -> bytes:
            self.lengths.append(length)
            return super().read(fd, length, position)

    @SEGMENTS
    def test_the_first_read_of_a_block_is_of_all_of_it_and_later_ones_of_pieces(
        self, tier: Tier, id: SegmentId
    ) -> None:
        content = CONTENT[id]()
        tier.write(id, 0, content)
        with closing(tier.open(calls := self.Calls())) as provider:
            segment = provider.open(id)
            assert segment.read(BLOCK_BYTES, 20) == content[BLOCK_BYTES : BLOCK_BYTES + 20]
            assert calls.lengths[-1] == BLOCK_BYTES
            calls.lengths.clear()
            draw = random.Random(1)
            for _ in range(200):
                start = BLOCK_BYTES + draw.randrange(BLOCK_BYTES - 1)
                length = draw.randrange(1, min(9_000, 2 * BLOCK_BYTES - start + 1))
                assert segment.read(start, length) == content[start : start + length]
                at_hand = segment.read_nowait(start, length)
                assert at_hand is None or bytes(at_hand) == content[start : start + length]
            assert max(calls.lengths) < 9_000 + 2 * PIECE_BYTES
            tail = len(content) - 5
            for _ in range(2):
                assert segment.read(tail, 5) == content[tail:]
            assert calls.lengths[-1] <= PIECE_BYTES

    @SEGMENTS
    def test_a_byte_that_is_flipped_after_its_block_was_checked_is_found(
        self, tier: Tier, id: SegmentId
    ) -> None:
        content = CONTENT[id]()
        tier.write(id, 0, content)
        with closing(tier.open()) as provider:
            segment = provider.open(id)
            for position in (0, PIECE_BYTES - 1, PIECE_BYTES, BLOCK_BYTES - 1, len(content) - 1):
                assert segment.read(position, 1) == content[position : position + 1]
                tier.flip(id, position)
                with pytest.raises(BlocksDamaged):
                    segment.read(position, 1)
                assert segment.read_nowait(position, 1) is None
                tier.flip(id, position)
                assert segment.read(position, 1) == content[position : position + 1]

    def test_a_block_that_grows_or_is_written_anew_is_known_again(self, tier: Tier) -> None:
        content, other = CONTENT[LOG](), CONTENT[LOG](generation=1)
        with closing(tier.open()) as provider:
            segment = provider.open(LOG)
            for size in (1_000, 1_500, 9_000, 70_000):
                segment.write(segment.size(), [content[segment.size() : size]])
                for _ in range(2):
                    assert segment.read(size - 700, 700) == content[size - 700 : size]
            segment.write(8_000, [other[8_000:70_000]])
            for position in (7_000, 8_100, 65_000, 69_000):
                for _ in range(2):
                    there = content[position:8_000] + other[max(position, 8_000) :]
                    assert segment.read(position, 1_000) == there[:1_000]

    def test_the_memory_for_pieces_counts(self) -> None:
        cache = SumCache(limit_bytes=10_000)
        for name in "ab":
            sums = BlockSums()
            sums.put([BlockEntry(number, 1, 1) for number in range(40)])
            cache.put(name, Loaded(sums, None))
        for number in range(40):
            cache.learn("b", number, compute_piece_crcs(memoryview(b"1")))
        assert cache.get("a") is None
        assert cache.get("b") is not None


class TestOthersWrite:
    """Java ignores checksum files when it appends to segments, deletes them and recreates them."""

    @SEGMENTS
    def test_bytes_that_java_appended_are_uncovered_and_never_an_error(
        self, tier: Tier, id: SegmentId
    ) -> None:
        content = CONTENT[id]()
        ours, javas = 70_000, 100_000
        tier.write(id, 0, content[:ours])
        with tier.path(id).open("ab") as file:
            file.write(content[ours:javas])
        assert tier.read(id) == content[:javas]
        assert tier.covered(id) == (ours, javas)
        tier.write(id, javas, content[javas:])
        assert tier.read(id) == content
        covered, size = tier.covered(id)
        assert covered == size  # the rest of the last block counts as it was found

    @SEGMENTS
    def test_blocks_that_java_wrote_stay_uncovered_until_they_are_sealed(
        self, tier: Tier, id: SegmentId
    ) -> None:
        content = CONTENT[id]()
        tier.write(id, 0, content[:1_000])
        with tier.path(id).open("ab") as file:
            file.write(content[1_000:130_000])
        tier.write(id, 130_000, content[130_000:])
        assert tier.read(id) == content
        covered, size = tier.covered(id)
        assert size - covered == BLOCK_BYTES - 1_000
        tier.flip(id, 30_000)
        assert tier.read(id) != content
        tier.flip(id, 30_000)
        with closing(tier.open()) as provider:
            assert provider.cover_blocks(id).covered_bytes == size
        tier.flip(id, 30_000)
        with pytest.raises(BlocksDamaged):
            tier.read(id)

    @SEGMENTS
    @pytest.mark.parametrize("size", [60, 1_000, 130_000])
    def test_a_segment_that_java_deleted_and_made_again_is_read(
        self, tier: Tier, id: SegmentId, size: int
    ) -> None:
        tier.write(id, 0, CONTENT[id]())
        again = CONTENT[id](generation=1)[: max(size, 100)]
        tier.path(id).unlink()
        tier.path(id).write_bytes(again)
        assert tier.read(id) == again
        assert tier.read(id, 50, 10) == again[50:60]
        tier.write(id, len(again), b"more")
        assert tier.read(id) == again + b"more"
        tier.flip(id, len(again) + 1)
        with pytest.raises(BlocksDamaged):
            tier.read(id)

    def test_checksums_whose_segment_java_expired_are_swept(self, tier: Tier) -> None:
        for segment, make in CONTENT.items():
            tier.write(segment, 0, make())
        tier.path(LOG).unlink()
        other = tier.path(LOG).with_name(f".other{SUFFIX}")
        other.write_bytes(b"of somebody else")
        with closing(tier.open()) as provider:
            assert {listing.id for listing in provider.list()} == {UNITS, KEYS}
            assert provider.sweep_checksums("broker-a") == 1
            assert provider.sweep_checksums("broker-a") == 0
        assert other.exists()
        assert not checksums_of(tier.path(LOG)).exists()
        assert tier.covered(UNITS) == (140_000, 140_000)

    def test_damage_by_a_program_is_found_where_the_content_has_times(self, tier: Tier) -> None:
        for segment in (LOG, KEYS):
            tier.write(segment, 0, CONTENT[segment]())
            tier.flip(segment, 20, keeps_time=False)
            with pytest.raises(BlocksDamaged):
                tier.read(segment)

    def test_units_that_somebody_else_changed_are_told_of_by_a_check_only(
        self, tier: Tier, caplog: pytest.LogCaptureFixture
    ) -> None:
        tier.write(UNITS, 0, CONTENT[UNITS]())
        tier.flip(UNITS, 20, keeps_time=False)
        tier.read(UNITS)
        assert "set aside" in caplog.text
        with closing(tier.open()) as provider:
            assert provider.check_blocks(UNITS).is_set_aside


class TestDamageStays:
    def test_a_writer_that_goes_on_in_a_damaged_block_does_not_call_it_good(
        self, tier: Tier
    ) -> None:
        content = CONTENT[LOG]()
        tier.write(LOG, 0, content[:70_000])
        tier.flip(LOG, 66_000)
        tier.write(LOG, 70_000, content[70_000:])
        with pytest.raises(BlocksDamaged):
            tier.read(LOG, 66_000, 10)
        assert tier.read(LOG, 70_000) == content[70_000:]
        with closing(tier.open()) as provider:
            [block] = provider.cover_blocks(LOG).damaged
            assert (block.start, block.end) == (BLOCK_BYTES, 70_000)
            [block] = provider.check_blocks(LOG).damaged

    @SEGMENTS
    def test_a_rewrite_takes_the_checksums_of_what_it_replaces(
        self, tier: Tier, id: SegmentId
    ) -> None:
        content = CONTENT[id]()
        for position in (0, 10, 65_000, BLOCK_BYTES, 100_000):
            tier.write(id, 0, content)
            tier.write(id, position, b"other")
            assert tier.read(id) == content[:position] + b"other"
            assert tier.covered(id) == (position + 5, position + 5)
            with closing(tier.open()) as provider:
                provider.open(id).delete()
            assert not checksums_of(tier.path(id)).exists()


class StoppingCalls(PosixCalls):
    """Stops the process before or after call number `at`. Only calls that change files count."""

    def __init__(self, at: int, *, before: bool) -> None:
        super().__init__()
        self._left = at
        self._before = before

    def _do(self, call: Callable[[], object]) -> object:
        self._left -= 1
        if self._left == 0 and self._before:
            raise SimulatedCrash
        found = call()
        if self._left == 0:
            raise SimulatedCrash
        return found

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        found = self._do(lambda: super(StoppingCalls, self).write(fd, buffers, position))
        assert isinstance(found, int)
        return found

    def truncate(self, fd: int, length: int) -> None:
        self._do(lambda: super(StoppingCalls, self).truncate(fd, length))

    def sync(self, fd: int) -> None:
        self._do(lambda: super(StoppingCalls, self).sync(fd))

    def unlink(self, path: str) -> None:
        self._do(lambda: super(StoppingCalls, self).unlink(path))

    @property
    def is_through(self) -> bool:
        return self._left > 0


def live(segments: PosixProvider, id: SegmentId) -> Iterator[None]:
    """Write, delete and recreate a segment. Yield after each step of `contents`."""
    first, second = CONTENT[id](), CONTENT[id](generation=1)
    segment = segments.open(id)
    yield
    for position, end in ((0, 500), (500, 70_000), (70_000, 70_020), (70_020, 135_000)):
        segment.write(position, [first[position:end]])
        yield
    again = segments.open(id)
    again.write(66_000, [second[66_000:90_000]])  # what a torn write had left is replaced
    yield
    again.seal()
    again.delete()
    yield
    anew = segments.open(id)
    for position, end in ((0, 300), (300, 80_000)):
        anew.write(position, [second[position:end]])
        yield


def contents(id: SegmentId) -> list[bytes]:
    """Return the segment's content at each step of `live`."""
    first, second = CONTENT[id](), CONTENT[id](generation=1)
    grown = [first[:end] for end in (0, 500, 70_000, 70_020, 135_000)]
    return [*grown, first[:66_000] + second[66_000:90_000], b"", second[:300], second[:80_000]]


@SEGMENTS
@pytest.mark.parametrize("before", [True, False])
def test_l01_a_stop_at_any_call_leaves_what_counts_readable(
    tmp_path: Path, id: SegmentId, before: bool
) -> None:
    steps = contents(id)
    for at in range(1, 200):
        tier = Tier(tmp_path / str(at))
        tier.root.mkdir()
        calls = StoppingCalls(at, before=before)
        done = 0
        with closing(tier.open(calls, fsync=True)) as provider, suppress(SimulatedCrash):
            for _ in live(provider, id):
                done += 1
        done = max(done - 1, 0)
        there = any(tier.root.iterdir()) and tier.path(id).exists()
        found = tier.read(id) if there else b""
        under_way = steps[min(done + 1, len(steps) - 1)]
        assert found == steps[done] or under_way.startswith(found), (at, done, len(found))
        tier.write(id, len(found), b"and more")
        assert tier.read(id) == found + b"and more"
        tier.flip(id, len(found) + 3)
        with pytest.raises(BlocksDamaged):
            tier.read(id, len(found))
        if calls.is_through:
            assert done == len(steps) - 1
            return
    raise AssertionError("the life has no end")


class FailingCalls(PosixCalls):
    """System calls that fail for checksum files while `fails` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.number = errno.ENOSPC
        self.fails = False

    def open(self, path: str, flags: int) -> int:
        if self.fails and path.endswith(SUFFIX):
            raise OSError(self.number, os.strerror(self.number))
        return super().open(path, flags)

    def unlink(self, path: str) -> None:
        if self.fails and path.endswith(SUFFIX):
            raise OSError(self.number, os.strerror(self.number))
        super().unlink(path)


class TestNoRoom:
    def test_bytes_are_written_without_checksums_and_covered_later(
        self, tier: Tier, caplog: pytest.LogCaptureFixture
    ) -> None:
        content, calls = CONTENT[LOG](), FailingCalls()
        with closing(tier.open(calls)) as provider:
            segment = provider.open(LOG)
            segment.write(0, [content[:1_000]])
            calls.fails = True
            assert segment.write(1_000, [content[1_000:2_000]]) == Written(2_000)
            assert "have no checksums" in caplog.text
            calls.fails = False
            assert segment.read(0, 2_000) == content[:2_000]
            assert segment.write(2_000, [content[2_000:3_000]]) == Written(3_000)
        assert tier.covered(LOG) == (3_000, 3_000)

    def test_nothing_is_replaced_while_its_checksums_cannot_be_taken_away(self, tier: Tier) -> None:
        content, calls = CONTENT[LOG](), FailingCalls()
        with closing(tier.open(calls)) as provider:
            provider.open(LOG).write(0, [content])
            calls.fails = True
            with pytest.raises(Unavailable, match="cannot cut the checksums at 500"):
                provider.open(LOG).write(500, [b"other"])
        assert tier.read(LOG) == content


class TestUnreadable:
    @pytest.mark.parametrize("number", [errno.EACCES, errno.EIO])
    def test_checksums_that_cannot_be_read_make_no_bytes_unreadable(
        self, tier: Tier, number: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        content, calls = CONTENT[LOG](), FailingCalls()
        tier.write(LOG, 0, content)
        calls.number, calls.fails = number, True
        with closing(tier.open(calls)) as provider:
            segment = provider.open(LOG)
            for _ in range(3):
                assert segment.read(0, len(content)) == content
            assert provider.check_blocks(LOG).covered_bytes == 0
        assert caplog.text.count("is read without it") == 2

    def test_a_folder_in_their_place_makes_no_bytes_unreadable(self, tier: Tier) -> None:
        content = CONTENT[LOG]()
        tier.write(LOG, 0, content)
        forget_checksums(tier.root)
        Path(sums_path(str(tier.path(LOG)))).mkdir()
        assert tier.read(LOG) == content
        tier.write(LOG, len(content), b"more")
        assert tier.read(LOG) == content + b"more"

    def test_nothing_is_replaced_while_its_checksums_cannot_be_read(self, tier: Tier) -> None:
        content, calls = CONTENT[LOG](), FailingCalls()
        tier.write(LOG, 0, content)
        calls.number, calls.fails = errno.EACCES, True
        with closing(tier.open(calls)) as provider:
            provider.open(LOG).read(0, 500)
            with pytest.raises(Unavailable, match="cannot cut the checksums at 500"):
                provider.open(LOG).write(500, [b"other"])
        assert tier.read(LOG) == content

    def test_a_file_of_another_user_is_replaced_by_the_next_commits(self, tier: Tier) -> None:
        content = CONTENT[UNITS]()
        tier.write(UNITS, 0, content[:70_000])
        calls = ReadOnlyFile(sums_path(str(tier.path(UNITS))))
        with closing(tier.open(calls)) as provider:
            segment = provider.open(UNITS)
            for at in range(70_000, 80_000, 2_000):
                segment.write(at, [content[at : at + 2_000]])
        assert tier.covered(UNITS) == (80_000, 80_000)


class ReadOnlyFile(PosixCalls):
    """One file that belongs to another user, in a folder of ours."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def open(self, path: str, flags: int) -> int:
        if path == self._path and flags & os.O_ACCMODE:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return super().open(path, flags)

    def unlink(self, path: str) -> None:
        super().unlink(path)
        if path == self._path:
            self._path = ""


class CountingCalls(PosixCalls):
    """Counts the bytes read."""

    def __init__(self) -> None:
        super().__init__()
        self.read_bytes = 0

    def read(self, fd: int, length: int, position: int) -> bytes:
        data = super().read(fd, length, position)
        self.read_bytes += len(data)
        return data


class TestCost:
    """A commit never rereads a segment, however long it is."""

    content = unit_bytes(20_000)

    def read_by_commits(self, tier: Tier, **options: bool) -> int:
        calls = CountingCalls()
        with closing(tier.open(calls, **options)) as provider:
            segment = provider.open(UNITS)
            for at in range(300_000, 310_000, 2_000):
                segment.write(at, [self.content[at : at + 2_000]])
        return calls.read_bytes

    def test_units_that_java_wrote_are_not_read_whole(self, tier: Tier) -> None:
        tier.write(UNITS, 0, self.content[:300_000])
        forget_checksums(tier.root)
        assert self.read_by_commits(tier) <= BLOCK_BYTES + HEAD_BYTES

    def test_without_checksums_nothing_is_read(self, tier: Tier) -> None:
        tier.write(UNITS, 0, self.content[:300_000])
        assert self.read_by_commits(tier, checksums=False) == 0
        assert tier.read(UNITS) == self.content[:310_000]


class WatchedCalls(PosixCalls):
    """Records calls by path, and fails one write to a segment."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[tuple[str, str]] = []
        self.open_fds: dict[int, str] = {}
        self.fails = False

    def stat(self, path: str) -> os.stat_result:
        self.asked.append(("stat", path))
        return super().stat(path)

    def open(self, path: str, flags: int) -> int:
        self.asked.append(("open", path))
        fd = super().open(path, flags)
        self.open_fds[fd] = path
        return fd

    def close(self, fd: int) -> None:
        del self.open_fds[fd]
        super().close(fd)

    def write(self, fd: int, buffers: Sequence[Buffer], position: int) -> int:
        if self.fails and not self.open_fds[fd].endswith(SUFFIX):
            raise OSError(errno.ENOSPC, "injected")
        return super().write(fd, buffers, position)


class TestCallsOfAWrite:
    @SEGMENTS
    def test_a_segment_that_is_not_open_and_its_checksums_are_opened_once(
        self, tier: Tier, id: SegmentId
    ) -> None:
        content, calls = CONTENT[id](), WatchedCalls()
        tier.write(id, 0, content[:1_000])
        with closing(tier.open(calls)) as provider:
            assert provider.open(id).write(1_000, [content[1_000:2_000]]) == Written(2_000)
        path = str(tier.path(id))
        assert calls.asked == [("open", path), ("open", sums_path(path))]
        assert tier.covered(id) == (2_000, 2_000)

    def test_a_write_that_fails_leaves_no_checksums_open(self, tier: Tier) -> None:
        content, calls = CONTENT[LOG](), WatchedCalls()
        tier.write(LOG, 0, content[:1_000])
        with closing(tier.open(calls)) as provider:
            segment = provider.open(LOG)
            calls.fails = True
            with pytest.raises(Unavailable, match="No space left"):
                segment.write(1_000, [content[1_000:2_000]])
            assert list(calls.open_fds.values()) == [str(tier.path(LOG))]
            calls.fails = False
            assert segment.write(1_000, [content[1_000:2_000]]) == Written(2_000)
        assert not calls.open_fds
        assert tier.covered(LOG) == (2_000, 2_000)

    def test_what_is_no_file_is_told_and_closed(self, tier: Tier) -> None:
        content, calls = CONTENT[LOG](), WatchedCalls()
        tier.write(LOG, 0, content[:1_000])
        tier.path(LOG).unlink()
        os.mkfifo(tier.path(LOG))
        with closing(tier.open(calls)) as provider:
            with pytest.raises(Corrupt, match="not a regular file"):
                provider.open(LOG).write(1_000, [content[1_000:2_000]])
            assert not calls.open_fds
