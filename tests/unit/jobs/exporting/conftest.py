"""Fixtures for exports of each format from a small tier."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import FORMATS, Export
from tieredstore.jobs.exporting.request import Format


@pytest.fixture
def tier(tmp_path: Path) -> GrowingTier:
    """A tier with three queues of two topics."""
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 12)
    tier.append("orders", 1, 5)
    tier.append("other", 0, 7)
    return tier


@pytest.fixture(params=FORMATS)
def exported(request: pytest.FixtureRequest, tmp_path: Path, tier: GrowingTier) -> Export:
    form: Format = request.param
    return Export(tmp_path / "exported", form, tier)
