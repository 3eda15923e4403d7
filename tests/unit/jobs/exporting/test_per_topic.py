"""An export creates one target for each topic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog

from tests.kit.growing_tier import GrowingTier
from tieredstore import jobs
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting import job
from tieredstore.jobs.exporting.per_topic import name_topic
from tieredstore.jobs.exporting.work import WriteOutcome, WriteTask, write
from tieredstore.jobs.run import JobProgress
from tieredstore.jobs.stopping import StopSignal

FORMS = ("parquet", "delta", "iceberg")


class Target:
    """The targets of one format, in a folder or a catalog."""

    def __init__(self, form: str, root: Path) -> None:
        self.form, self.root = form, root
        (root / "warehouse").mkdir(parents=True)
        self.catalog = {
            "type": "sql",
            "uri": f"sqlite:///{root}/catalog.db",
            "warehouse": f"file://{root}/warehouse",
        }

    def export(self, tier: GrowingTier, **options: Any) -> dict[str, Any]:
        where: dict[str, Any] = {"to": f"{self.root}/lake/{{topic}}"}
        if self.form == "iceberg":
            where = {"catalog": "c", "table": "lake.{topic}", "target_options": self.catalog}
        return jobs.export(
            tier.url,
            format=self.form,
            partition_by="day",
            work=self.root / "work",
            **where,
            **options,
        )

    def rows(self, name: str) -> list[tuple[str, int, int]]:
        match self.form:
            case "parquet":
                found = pl.read_parquet(f"{self.root}/lake/{name}/**/*.parquet")
            case "delta":
                found = pl.read_delta(str(self.root / "lake" / name))
                DeltaTable(str(self.root / "lake" / name))
            case _:
                catalog = load_catalog("c", **self.catalog)
                found = pl.DataFrame(catalog.load_table(f"lake.{name}").scan().to_arrow())
                catalog.close()
        return sorted(found.select("topic", "queue_id", "queue_offset").rows())


@pytest.fixture(params=FORMS)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return Target(request.param, tmp_path / "out")


def rows(topic: str, *counts: int) -> list[tuple[str, int, int]]:
    return [(topic, queue, offset) for queue, n in enumerate(counts) for offset in range(n)]


def test_each_topic_has_its_rows_once(target: Target, tier: GrowingTier) -> None:
    tier.append("%RETRY%g", 0, 2)
    report = target.export(tier)
    assert (report["rows"], len(report["queues"])) == (26, 4)
    assert {table["topic"]: (table["rows"], table["sequence"]) for table in report["tables"]} == {
        "%RETRY%g": (2, 1), "orders": (17, 1), "other": (7, 1),
    }  # fmt: skip
    tier.append("orders", 1, 3)
    again = target.export(tier)
    assert {table["topic"]: table["rows"] for table in again["tables"]} == {
        "%RETRY%g": 0, "orders": 3, "other": 0,
    }  # fmt: skip
    assert target.rows("orders") == rows("orders", 12, 8)
    assert target.rows("other") == rows("other", 7)
    assert target.rows("_25RETRY_25g") == rows("%RETRY%g", 2)


def test_a_kill_in_one_topic_is_resumed_there(
    target: Target, tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    done: list[str] = []

    def killing(task: WriteTask) -> WriteOutcome:
        topic = task.ranges[0].queue.topic
        done.append(topic)
        outcome = write(task)
        if topic == "other":
            raise Killed
        return outcome

    with monkeypatch.context() as patch:
        patch.setattr(job, "write", killing)
        with pytest.raises(Killed):
            target.export(tier)
    assert done == ["orders", "other"]
    report = target.export(tier)
    assert {table["topic"]: table["rows"] for table in report["tables"]} == {
        "orders": 0, "other": 7,
    }  # fmt: skip
    assert (target.rows("orders"), target.rows("other")) == (
        rows("orders", 12, 5), rows("other", 7),
    )  # fmt: skip


def test_a_topic_that_fails_stops_no_other(tmp_path: Path, tier: GrowingTier) -> None:
    target = Target("parquet", tmp_path / "out")
    target.export(tier)
    tier.make_again("orders")
    tier.append("orders", 0, 3)
    tier.append("other", 0, 2)
    with pytest.raises(Invalid, match="broker-a/orders/0: the topic was recreated"):
        target.export(tier)
    assert target.rows("other") == rows("other", 9)
    assert target.rows("orders") == rows("orders", 12, 5)


def test_topics_of_one_name_are_refused(tmp_path: Path, tier: GrowingTier) -> None:
    tier.append("Orders", 0, 1)
    with pytest.raises(Invalid, match=r"topics 'Orders' and 'orders' would have targets of one"):
        Target("parquet", tmp_path / "out").export(tier)
    assert [name_topic(topic) for topic in ("a-b_c", "a|b", "%x")] == ["a-b_c", "a_7Cb", "_25x"]


def test_a_folder_alone_tells_no_tables_apart(tmp_path: Path, tier: GrowingTier) -> None:
    with pytest.raises(Invalid, match=r"needs \{topic\} in the table's name"):
        jobs.export(
            tier.url, f"{tmp_path}/{{topic}}", format="iceberg", catalog="c", table="lake.all"
        )


def test_no_topic_matches(tmp_path: Path, tier: GrowingTier) -> None:
    with pytest.raises(Invalid, match=r"no topic 'nothing_\*' in the tier"):
        Target("parquet", tmp_path / "out").export(tier, topics="nothing_*")


def test_it_follows(tmp_path: Path, tier: GrowingTier) -> None:
    stop, seen = StopSignal(), list[JobProgress]()

    def on_progress(progress: JobProgress) -> None:
        seen.append(progress)
        stop.set()

    target = Target("parquet", tmp_path / "out")
    report = target.export(tier, every="1h", stop=stop, progress=on_progress)
    assert (report["rows"], report["rounds"], report["behind"]["messages"]) == (24, 1, 0)
    assert seen[0].note.startswith("was 24 messages, ")
    assert seen[0].note.endswith(" s behind at most")
