"""The provider contract for providers that can more: write bytes again, or tell a lost race."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import ClassVar

import pytest

from tieredstore.contracts.segment import (
    FencedWrite,
    SegmentProvider,
    UnknownWrite,
    WriteResult,
    Written,
)
from tieredstore.errors import Corrupt
from tieredstore.testing.provider.contract import ProviderContract
from tieredstore.testing.provider.samples import content, segment_id, write_whole


class RewritableProviderContract(ProviderContract):
    """Bytes at a position may be written again; the segment then ends behind them."""

    rewritable: ClassVar[bool] = True

    def test_a_torn_write_is_repaired_in_place(self, provider: SegmentProvider) -> None:
        segment = write_whole(provider.open(segment_id()), content(100))
        write_whole(segment, b"\xff" * 77, 100)  # more than what comes instead
        write_whole(segment, content(50, 9), 100)
        assert segment.size() == 150
        assert bytes(segment.read(0, 150)) == content(100) + content(50, 9)
        with pytest.raises(Corrupt):
            segment.read(0, 151)
        assert segment.write(100, []) == Written(100)
        assert segment.size() == 100


class ConditionalProviderContract(ProviderContract):
    """A write that loses a race is told so and overwrites nothing."""

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
