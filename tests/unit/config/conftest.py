"""Fixtures of the tests of the configuration keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.configured_broker import MakeBroker, brokers


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MakeBroker]:
    """Makes stores from Java keys: `broker(tieredStoreGroupCommit=False)`."""
    with brokers(tmp_path) as make:
        yield make


@pytest.fixture(autouse=True)
def no_real_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here pulls a plug, and a hundred stores wait long for their disk."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)
