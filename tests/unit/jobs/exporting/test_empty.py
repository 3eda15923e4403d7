"""An export without messages does not restrict later exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import FORMATS, Export, places_of
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.partition import parse_partition_by
from tieredstore.jobs.exporting.plan import Plan, make_plan
from tieredstore.jobs.exporting.request import Format
from tieredstore.scan.selection import Selection

LATER_MS = 4_000_000_000_000
"""A time later than all store times, in ms."""
NOTHING = [Selection(since_ms=LATER_MS), Selection(until_offset=0), Selection(from_offset=1 << 40)]


def what_is_there(exported: Export) -> list[str]:
    kept = {"catalog.db"}
    return sorted(
        path.name for path in exported.root.rglob("*") if path.is_file() and path.name not in kept
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("nothing", NOTHING, ids=["since", "until", "from"])
def test_a_first_export_without_a_message_binds_no_other(
    form: Format, nothing: Selection, tmp_path: Path, tier: GrowingTier
) -> None:
    exported = Export(tmp_path / "exported", form, tier)
    report = exported.run(
        selection=nothing, columns=("queue_id",), partition_by=parse_partition_by("none")
    )
    assert (report["rows"], report["sequence"], report["commit"]) == (0, 0, None)
    assert what_is_there(exported) == []
    # Other topics, columns, partitions and bounds, from the beginning.
    assert exported.run()["sequence"] == 1
    assert exported.places() == places_of(tier)


@pytest.mark.parametrize("form", FORMATS)
def test_queues_without_a_message_are_no_target(form: Format, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 1)
    exported = Export(tmp_path / "exported", form, tier, Selection(queue_ids=(7,)))
    assert exported.run()["commit"] is None
    assert what_is_there(exported) == []


@pytest.mark.parametrize("form", FORMATS)
def test_a_target_that_has_messages_keeps_where_new_queues_begin(
    form: Format, tmp_path: Path, tier: GrowingTier
) -> None:
    """Each export into an existing target records the first offsets of new queues, even if it
    exports no messages."""
    exported = Export(tmp_path / "exported", form, tier)
    exported.run()
    tier.append("new", 0, 3)
    late = exported.run(selection=Selection(since_ms=LATER_MS))
    assert (late["rows"], late["sequence"]) == (0, 2)
    assert exported.run()["rows"] == 0
    tier.append("new", 0, 2)
    assert exported.run()["rows"] == 2


@pytest.mark.parametrize("form", [Format.DELTA, Format.ICEBERG])
def test_a_table_that_another_export_makes_meanwhile_is_looked_at(
    form: Format, tmp_path: Path, tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An export does not write to a table that another export has just created with different
    columns."""
    exported = Export(tmp_path / "exported", form, tier)
    place = "tieredstore.jobs.exporting.job.make_plan"

    def late(*args: Any, **options: Any) -> Plan:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(place, make_plan)
            exported.run(journal="b", columns=("queue_id", "queue_offset"))
        return make_plan(*args, **options)

    monkeypatch.setattr(place, late)
    with pytest.raises(Invalid, match="a table of other columns"):
        exported.run(journal="a")
    assert exported.places() == places_of(tier)
