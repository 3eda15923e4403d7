"""Topic names that cannot be folder names are rejected before the target is changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import Export
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.partition import PartitionBy
from tieredstore.jobs.exporting.request import Format
from tieredstore.scan.selection import Selection

LONG = "%" * 127


@pytest.mark.parametrize("form", [Format.PARQUET, Format.DELTA])
def test_l34_a_topic_whose_folder_has_too_long_a_name_bricks_no_target(
    form: Format, tmp_path: Path
) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 10)
    tier.append(LONG, 0, 10)
    exported = Export(tmp_path / "export", form, tier)
    with pytest.raises(Invalid, match=r"topic '%+': its folder would have a name of 387 bytes"):
        exported.run()
    assert not exported.target.exists()
    # A refused one does not obstruct a later one.
    exported.selection = Selection(topics=("orders",))
    exported.run()
    tier.append("orders", 0, 5)
    exported.run()
    assert sum(1 for _ in exported.target.rglob("*.parquet")) >= 1


def test_l34_such_a_topic_is_exported_where_no_folder_has_its_name(tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append(LONG, 0, 10)
    exported = Export(tmp_path / "export", Format.PARQUET, tier)
    report = exported.run(partition_by=PartitionBy(topic=False))
    assert report["rows"] == 10
