"""Fixtures of the tests of the configuration keys."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.configured_broker import MakeBroker, brokers


@pytest.fixture(params=[False, True], ids=["at the start", "at run time"])
def at_run_time(request: pytest.FixtureRequest) -> bool:
    """Whether a test sets dynamic keys while the broker is running, instead of before its start."""
    return bool(request.param)


@pytest.fixture
def broker(tmp_path: Path, at_run_time: bool) -> Iterator[MakeBroker]:
    """Return a function that creates stores from Java keys:
    `broker(tieredStoreGroupCommit=False)`."""
    with brokers(tmp_path, at_run_time=at_run_time) as make:
        yield make


@pytest.fixture(autouse=True)
def no_real_syncs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace syncs by no-ops, because syncing a hundred stores would be slow."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda fd: None)
