"""An interrupted export starts over if its target was deleted."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.growing_tier import GrowingTier
from tests.kit.jobs.export import FORMATS, Export, places_of
from tests.kit.jobs.kills import Killed
from tieredstore.jobs.exporting import job
from tieredstore.jobs.exporting.request import Format
from tieredstore.jobs.journal import Journal


def delete_target(exported: Export) -> None:
    """Delete the whole target: the folder, or the table with its files."""
    if exported.form is not Format.ICEBERG:
        shutil.rmtree(exported.target)
        return
    from pyiceberg.catalog import load_catalog

    catalog = load_catalog("test", **exported.catalog)
    catalog.drop_table("lake.messages")
    catalog.close()
    shutil.rmtree(exported.root / "warehouse")
    (exported.root / "warehouse").mkdir()


def interrupt(exported: Export, place: tuple[Any, str], **changes: Any) -> None:
    """Kill an export before a step."""

    def killed(*args: Any, **kwargs: Any) -> Any:
        raise Killed(f"{args} {kwargs}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(*place, killed)
        with pytest.raises(Killed):
            exported.run(journal="a", **changes)
    assert (exported.root / "a.jsonl").exists()


BEFORE_COMMIT = (job.PinnedExport, "commit")
BEFORE_END = (Journal, "finish")


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("earlier", [0, 2])
@pytest.mark.parametrize("place", [BEFORE_COMMIT, BEFORE_END], ids=["staged", "committed"])
def test_an_interrupted_export_whose_target_was_deleted_begins_anew(
    form: Format,
    earlier: int,
    place: tuple[Any, str],
    tmp_path: Path,
    tier: GrowingTier,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An interrupted export starts over if its target was deleted. `earlier` is the number of
    earlier commits."""
    exported = Export(tmp_path / "exported", form, tier)
    for _ in range(earlier):
        exported.run()
        tier.append("orders", 0, 3)
    interrupt(exported, place)
    delete_target(exported)
    tier.append("other", 0, 2)
    with caplog.at_level(logging.WARNING, "tieredstore"):
        report = exported.run(journal="a")
    assert (report["rows"], report["sequence"]) == (sum(places_of(tier).values()), 1)
    assert exported.places() == places_of(tier)
    assert "starts from the beginning" in caplog.text
    assert exported.run(journal="a")["rows"] == 0


@pytest.mark.parametrize("form", FORMATS)
def test_files_that_are_gone_alone_begin_it_anew(
    form: Format, tmp_path: Path, tier: GrowingTier
) -> None:
    """An export starts over if its staged files were deleted as orphans."""
    exported = Export(tmp_path / "exported", form, tier)
    exported.run()
    tier.append("orders", 0, 4)
    before = {path for path in exported.root.rglob("*") if path.is_file()}
    interrupt(exported, BEFORE_COMMIT)
    staged = {path for path in exported.root.rglob("*") if path.is_file()} - before
    for path in staged:
        if path.suffix in {".part", ".parquet"}:
            path.unlink()
    exported.run(journal="a")
    assert exported.places() == places_of(tier)


@pytest.mark.parametrize("form", FORMATS)
def test_keys_that_are_gone_begin_it_anew(form: Format, tmp_path: Path) -> None:
    tier = GrowingTier(tmp_path / "source")
    tier.append("orders", 0, 4, uniq_keys=["a", "b", "c", "a"])
    exported = Export(tmp_path / "exported", form, tier)
    interrupt(exported, (job, "write"), dedup_window_ms=60_000)
    delete_target(exported)
    report = exported.run(journal="a", dedup_window_ms=60_000)
    assert (report["rows"], report["duplicates"]) == (3, 1)
    assert sorted(place[2] for place in exported.places()) == [0, 1, 2]


def test_what_is_there_is_not_done_again(tmp_path: Path, tier: GrowingTier) -> None:
    exported = Export(tmp_path / "exported", Format.PARQUET, tier)
    interrupt(exported, BEFORE_COMMIT)
    [written, merged] = exported.run(journal="a")["stages"]
    assert written["resumed"] == written["tasks"] > 3
    assert merged["resumed"] == merged["tasks"] == 2
