"""Tests of the meter that counts how often each byte of a tier is written, across successive
writers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.tier.flat import BROKER, TableMetadata
from tieredstore.contracts.segment import SegmentProvider
from tieredstore.contracts.usage import Prices, Usage, WrittenBytes
from tieredstore.contracts.wrapping import WrapperProvider
from tieredstore.errors import Corrupt
from tieredstore.metrics import Metrics
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.tier import state_files
from tieredstore.tier.state_files import WRITTEN_FILE, read_written_bytes
from tieredstore.tier.writing import TierWriter


class Metered(WrapperProvider):
    """Meter whose values are set by the test."""

    def __init__(self, wrapped: SegmentProvider) -> None:
        super().__init__(wrapped)
        self.written = WrittenBytes()

    prices = Prices()

    def usage(self) -> Usage:
        return Usage((), self.written)

    def bind_metrics(self, metrics: Metrics) -> None:
        """Do nothing."""


@pytest.fixture
def provider() -> Metered:
    return Metered(MemoryProvider())


def test_what_one_writer_left_the_next_one_adds_to(tmp_path: Path, provider: Metered) -> None:
    assert read_written_bytes(tmp_path) is None
    for turn in (1, 2):
        provider.written = WrittenBytes()
        with TierWriter.acquire(provider, TableMetadata(), BROKER, tmp_path):
            provider.written = WrittenBytes(100, 250, 30)
        found = read_written_bytes(tmp_path)
        assert found == WrittenBytes(turn * 100, turn * 250, turn * 30)
        assert found.per_kept_byte == 3.8


def test_a_writer_that_runs_for_long_leaves_it_now_and_then(
    tmp_path: Path, provider: Metered, monkeypatch: pytest.MonkeyPatch
) -> None:
    with TierWriter.acquire(provider, TableMetadata(), BROKER, tmp_path) as writer:
        provider.written = WrittenBytes(1)
        writer.confirm()
        assert read_written_bytes(tmp_path) is None
        monkeypatch.setattr(state_files, "KEEP_INTERVAL_S", 0.0)
        writer.confirm()
        assert read_written_bytes(tmp_path) == WrittenBytes(1)
        provider.written = WrittenBytes(3)
        writer.confirm()
        assert read_written_bytes(tmp_path) == WrittenBytes(3)  # not added to itself


def test_a_provider_that_counts_nothing_leaves_no_file(tmp_path: Path) -> None:
    with TierWriter.acquire(MemoryProvider(), TableMetadata(), BROKER, tmp_path) as writer:
        writer.confirm()
    assert not (tmp_path / WRITTEN_FILE).exists()


def test_a_damaged_file_is_told_to_who_reads_it_and_stops_no_writer(
    tmp_path: Path, provider: Metered
) -> None:
    (tmp_path / WRITTEN_FILE).write_bytes(b"{")
    with pytest.raises(Corrupt, match=WRITTEN_FILE):
        read_written_bytes(tmp_path)
    with TierWriter.acquire(provider, TableMetadata(), BROKER, tmp_path):
        provider.written = WrittenBytes(7)
    assert read_written_bytes(tmp_path) == WrittenBytes(7)


def test_nothing_was_kept_yet() -> None:
    assert WrittenBytes(merged=5).per_kept_byte is None
