"""Tests of the file that records a store's tier, including states after a power cut."""

from __future__ import annotations

from pathlib import Path

import pytest

from tieredstore.errors import Corrupt, Invalid
from tieredstore.providers.posix.own_files import IDENTITY_FILE_NAME, read_identity
from tieredstore.tier.identity.comparison import TierMemory, read_memory, write_memory

MEMORY = TierMemory(broker="b", identity="X", number=3, token="t", attempts=("a",))


def test_a_memory_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "config" / "memory"
    assert read_memory(path) is None
    write_memory(path, MEMORY)
    assert read_memory(path) == MEMORY
    path.write_bytes(path.read_bytes() + bytes(100))
    assert read_memory(path) == MEMORY


@pytest.mark.parametrize("data", [b"", bytes(64), b"{torn", b"[]", b'{"format":1}'])
def test_a_damaged_memory_counts_as_none(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "memory"
    path.write_bytes(data)
    assert read_memory(path) is None


def test_a_newer_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    path.write_bytes(b'{"format":9,"broker":"b"}')
    with pytest.raises(Invalid, match="format 9"):
        read_memory(path)


@pytest.mark.parametrize("data", [b"", bytes(64), b"{torn"])
def test_a_damaged_identity_names_its_repair(tmp_path: Path, data: bytes) -> None:
    (tmp_path / IDENTITY_FILE_NAME).write_bytes(data)
    with pytest.raises(Corrupt, match="Delete the file"):
        read_identity(str(tmp_path))
