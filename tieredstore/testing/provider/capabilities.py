"""Provider contracts for the optional capabilities: rewriting bytes, writing two segments in one
call, and detecting a lost race."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from tieredstore.contracts.segment import (
    Companion,
    FencedWrite,
    FileSegment,
    FileSegmentType,
    PairedSegment,
    SegmentProvider,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Corrupt, Invalid
from tieredstore.testing.provider.contract import ProviderContract
from tieredstore.testing.provider.samples import content, segment_id, write_whole


class RewritableProviderContract(ProviderContract):
    """Contract of providers that can rewrite bytes at a position, which truncates the segment after
    them."""

    rewritable: ClassVar[bool] = True

    def test_a_torn_write_is_repaired_in_place(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), content(100))
        write_whole(segment, b"\xff" * 77, 100)  # More than the bytes that replace them.
        write_whole(segment, content(50, 9), 100)
        assert segment.size() == 150
        assert bytes(segment.read(0, 150)) == content(100) + content(50, 9)
        with pytest.raises(Corrupt):
            segment.read(0, 151)
        assert segment.write(100, []) == Written(100)
        assert segment.size() == 100


class PairedProviderContract(ProviderContract):
    """Contract of providers that write a commit log segment and its consume queue segment in one
    call."""

    paired: ClassVar[bool] = True

    def test_both_are_written_or_the_first_alone(self, provider: SegmentProvider) -> None:
        epoch = provider.acquire_writer("broker-a")
        log, units = self._open(provider)
        whole, unit_bytes = b"", b""
        for turn in range(5):
            data, added = content(100 + turn, turn), content(20, turn)
            first, second = log.write_with(
                len(whole), [data], Companion(units, len(unit_bytes), [added[:7], added[7:]])
            )
            whole += data
            assert first == Written(len(whole))
            if second is None:
                second = units.write(len(unit_bytes), [added])
            unit_bytes += added
            assert second == Written(len(unit_bytes))
        epoch.confirm()
        for tier in (provider, self.reopen(provider)):
            listed = {found.id: found.size_bytes for found in tier.list()}
            assert listed == {log.id: len(whole), units.id: len(unit_bytes)}
            for segment, expected in ((log, whole), (units, unit_bytes)):
                again = tier.open(segment.id)
                assert again.size() == len(expected)
                assert bytes(again.read(0, len(expected))) == expected
                assert bytes(again.read(3, 9)) == expected[3:12]
        epoch.release()

    def test_units_go_on_by_themselves_and_together_again(self, provider: SegmentProvider) -> None:
        epoch = provider.acquire_writer("broker-a")
        log, units = self._open(provider)
        self._write(log, units, 0, b"first", 0, b"1")
        write_whole(log, b"second", 5)
        write_whole(units, b"2", 1)
        self._write(log, units, 11, b"third", 2, b"3")
        assert bytes(log.read(0, 16)) == b"firstsecondthird"
        assert bytes(units.read(0, 3)) == b"123"
        epoch.release()

    def test_the_units_outlive_their_messages(self, provider: SegmentProvider) -> None:
        epoch = provider.acquire_writer("broker-a")
        log, units = self._open(provider)
        self._write(log, units, 0, b"messages", 0, b"12")
        log.delete()
        other = self.reopen(provider)
        assert other.open(log.id).size() == 0
        assert bytes(other.open(units.id).read(0, 2)) == b"12"
        epoch.release()

    def test_deleted_units_are_gone_with_their_messages_there(
        self, provider: SegmentProvider
    ) -> None:
        epoch = provider.acquire_writer("broker-a")
        log, units = self._open(provider)
        self._write(log, units, 0, b"messages", 0, b"12")
        units.delete()
        other = self.reopen(provider)
        assert other.open(units.id).size() == 0
        assert [found.id for found in other.list()] == [log.id]
        assert bytes(other.open(log.id).read(0, 8)) == b"messages"
        write_whole(units, b"345")
        assert bytes(other.open(units.id).read(0, 3)) == b"345"
        epoch.release()

    def test_other_segments_do_not_go_together(self, provider: SegmentProvider) -> None:
        log, units = self._open(provider)
        elsewhere = provider.open(segment_id("broker-a/Other/0", FileSegmentType.CONSUME_QUEUE))
        for segment, other in ((log, elsewhere), (log, log), (units, log)):
            assert isinstance(segment, PairedSegment)
            with pytest.raises(Invalid):
                segment.write_with(0, [b"x"], Companion(other, 0, [b"y"]))
        assert list(provider.list()) == []

    def _open(self, provider: SegmentProvider) -> tuple[PairedSegment, FileSegment]:
        log = provider.open(segment_id())
        assert isinstance(log, PairedSegment)
        return log, provider.open(segment_id(type=FileSegmentType.CONSUME_QUEUE))

    def _write(
        self,
        log: PairedSegment,
        units: FileSegment,
        position: int,
        data: bytes,
        units_position: int,
        added: bytes,
    ) -> None:
        """Write both segments, separately if necessary."""
        first, second = log.write_with(position, [data], Companion(units, units_position, [added]))
        assert first == Written(position + len(data))
        if second is None:
            second = units.write(units_position, [added])
        assert second == Written(units_position + len(added))


class ConditionalProviderContract(ProviderContract):
    """Contract of providers that detect a lost race. The loser must not overwrite anything."""

    conditional: ClassVar[bool] = True

    def test_bytes_are_never_replaced_by_others(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"first")
        write_whole(segment, b"second", 5)
        for position, data in ((0, b"FIRST"), (5, b"longer than it"), (2, b"x"), (0, b"f")):
            result = segment.write(position, [data])
            assert isinstance(result, (FencedWrite, UnknownWrite))
        assert bytes(segment.read(0, segment.size())) == b"firstsecond"

    def test_a_lost_race_is_told_with_the_winner(self, provider: SegmentProvider) -> None:
        ours = write_whole(provider.open(segment_id()), b"abc")
        theirs = self.reopen(provider).open(segment_id())
        write_whole(theirs, b"theirs", 3)
        result = ours.write(3, [b"ours--"])
        assert isinstance(result, FencedWrite)
        assert result.size_bytes == 9
        assert result.writer
        assert bytes(ours.read(0, 9)) == b"abctheirs"

    def test_racing_writers_never_interleave(self, provider: SegmentProvider) -> None:
        outcomes: list[tuple[int, bytes, WriteResult]] = []

        def race(number: int) -> None:
            segment = self.reopen(provider).open(segment_id())
            for turn in range(20):
                position = segment.size()
                data = content(1 + (number + turn) % 7, number * 31 + turn)
                outcomes.append((position, data, segment.write(position, [data])))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(race, range(4)))
        segment = provider.open(segment_id())
        whole = bytes(segment.read(0, segment.size()))
        acknowledged = [(p, d) for p, d, result in outcomes if isinstance(result, Written)]
        assert b"".join(data for _, data in sorted(acknowledged)) == whole

    def test_a_seal_is_seen_by_other_writers(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), b"abc")
        segment.seal()
        other = self.reopen(provider).open(segment_id())
        assert isinstance(other.write(3, [b"x"]), FencedWrite)
        assert next(iter(provider.list())).sealed
