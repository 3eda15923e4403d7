"""Fixtures of the local store's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.local.stores import copy_store


@pytest.fixture
def public_a_copy(public_a: Path, tmp_path: Path) -> Path:
    """A writable copy of the Java store."""
    return copy_store(public_a / "store", tmp_path / "store")
