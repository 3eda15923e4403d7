"""Tests of calling jobs from Python."""

from __future__ import annotations

import inspect
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import tieredstore
from tests.kit.tier_builder import BuiltTier, flip, small_tier
from tieredstore import jobs
from tieredstore.cli.main import run as tieredstore_command
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.run import JobProgress
from tieredstore.jobs.runner import LocalRunner
from tieredstore.jobs.stopping import StopSignal


@pytest.fixture
def tier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> BuiltTier:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state-home"))
    return small_tier(tmp_path / "built")


class Noting(LocalRunner):
    """Runner that records its tasks and can make one of them fail."""

    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.tasks: list[Any] = []
        self._fails_at = fails_at

    def run(
        self,
        work: Callable[[Any], Any],
        tasks: Sequence[Any],
        on_done: Callable[[int, Any], None],
    ) -> None:
        def noted(task: Any) -> Any:
            self.tasks.append(task)
            if len(self.tasks) == self._fails_at:
                raise Unavailable("planted")
            return work(task)

        super().run(noted, tasks, on_done)


def journals(folder: Path) -> list[str]:
    return sorted(path.name.rsplit("-", 1)[0] for path in folder.glob("**/*.jsonl"))


def test_the_package_shows_its_doors_and_stays_cheap() -> None:
    code = (
        "import sys, tieredstore; print({'jobs', 'open', 'open_store'} <= set(dir(tieredstore)), "
        "any(name.startswith('tieredstore.') for name in sys.modules)); "
        "print(tieredstore.jobs.export.__name__, 'pyarrow' in sys.modules); "
        "print(tieredstore.testing.Broker.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "True False\nexport False\nBroker\n"


def test_no_room_takes_the_name_of_a_call() -> None:
    """No submodule of `tieredstore.jobs` has the same name as a function, because importing it
    would replace the function."""
    home = Path(inspect.getfile(jobs)).parent
    modules = {path.stem for path in home.iterdir()}
    assert modules.isdisjoint(jobs.__all__)
    assert all(inspect.isfunction(getattr(jobs, name)) for name in jobs.__all__)


@pytest.mark.parametrize(
    "name", sorted(set(jobs.__all__) - {"offload", "backfill", "compact_export"})
)
def test_a_method_of_an_opened_tier_is_the_same_call(name: str) -> None:
    from tieredstore.table import Tier

    assert vars(Tier)[name] is getattr(jobs, name)


def test_a_tier_may_be_a_url_or_opened_and_the_report_is_that_of_the_verb(
    tier: BuiltTier, capsys: pytest.CaptureFixture[str]
) -> None:
    reports = [jobs.verify(tier.url), tieredstore.open(tier.url).verify()]
    assert tieredstore_command(["verify", "--tier", tier.url, "--output", "json"]) == 0
    reports.append(json.loads(capsys.readouterr().out))
    of_run = {"runner", "started_ms", "seconds", "stages"}
    told = [{name: value for name, value in one.items() if name not in of_run} for one in reports]
    assert told[0] == told[1] == told[2]
    assert (told[0]["job"], told[0]["messages"]) == ("verify", 22)


def test_a_call_after_a_failure_goes_on_and_leaves_no_journal(
    tier: BuiltTier, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    with pytest.raises(Unavailable, match="planted"):
        jobs.verify(tier.url, work=work, runner=Noting(fails_at=2))
    assert journals(work) == ["verify"]
    rest = Noting()
    assert jobs.verify(tier.url, work=work, runner=rest)["stages"][0]["resumed"] == 1
    assert journals(work) == []


def test_only_verify_keeps_no_journal_of_its_own(tier: BuiltTier, tmp_path: Path) -> None:
    failing = Noting(fails_at=1)
    with pytest.raises(Unavailable, match="planted"):
        jobs.verify(tier.url, runner=failing)
    assert journals(tmp_path / "state-home") == []
    with pytest.raises(Unavailable, match="planted"):
        jobs.report(tier.url, tmp_path / "report", runner=Noting(fails_at=1))
    assert journals(tmp_path / "state-home") == ["report"]


def test_the_verb_goes_on_with_the_journal_of_the_call(tier: BuiltTier, tmp_path: Path) -> None:
    to = tmp_path / "lake"
    choice: dict[str, Any] = {"topics": ["orders"], "since": "2023-01-01", "columns": ("body",)}
    with pytest.raises(Unavailable, match="planted"):
        tieredstore.open(tier.url).export(to, **choice, runner=Noting(fails_at=1))
    assert journals(tmp_path / "state-home") == ["export"]
    code = tieredstore_command(
        ["export", "--tier", tier.url, "--format", "parquet", "--to", str(to), "--quiet",
         "--topics", "orders", "--since", "2023-01-01", "--columns", "body", "--workers", "1"]
    )  # fmt: skip
    assert code == 0
    assert journals(tmp_path / "state-home") == []


def test_progress_is_the_same_value_in_each_job(tier: BuiltTier, tmp_path: Path) -> None:
    seen: list[JobProgress] = []
    opened = tieredstore.open(tier.url)
    opened.verify(progress=seen.append)
    copied = opened.copy(
        f"file://{tmp_path}/copy", to_state=tmp_path / "copy-state", progress=seen.append
    )
    assert {one.unit for one in seen} == {"tasks", "segments"}
    assert (seen[-1].stage, seen[-1].done, seen[-1].total) == ("copy", 13, copied["segments"])
    assert (copied["job"], copied["runner"]) == ("copy", "local[1]")
    [stage] = copied["stages"]
    assert (stage["stage"], stage["size_bytes"]) == ("copy", copied["copied_bytes"])


def test_a_failure_is_told_as_an_error_beside_its_text(tier: BuiltTier, tmp_path: Path) -> None:
    where: dict[str, Any] = {"to": f"file://{tmp_path}/copy", "to_state": tmp_path / "copy-state"}
    jobs.copy(tier.url, **where)
    broken = SegmentId("broker-a/orders/1", FileSegmentType.COMMIT_LOG, 0)
    flip(tier.path(broken), 90)
    with pytest.raises(Invalid, match="something else"):
        jobs.copy(tier.url, **where)
    plan = jobs.copy(tier.url, **where, dry_run=True)
    assert [path["path"] for path in plan["plan"]] == ["broker-a/orders/1"]


def test_one_topic_may_be_given_as_it_is(tier: BuiltTier, tmp_path: Path) -> None:
    report = jobs.copy(
        tier.url, f"file://{tmp_path}/copy", to_state=tmp_path / "copy-state", topics="orders"
    )
    assert tieredstore.open(f"file://{tmp_path}/copy").topics() == ["orders"]
    assert report["queues"] > 0
    with tieredstore.open_store({"storePathRootDir": str(tmp_path / "store")}):
        pass
    with pytest.raises(Invalid, match="has no topic 'nothing'"):
        jobs.offload(
            f"file://{tmp_path}/other",
            tmp_path / "store",
            state=tmp_path / "state",
            cluster="c",
            broker="b",
            topics="nothing",
        )


def test_a_tier_may_be_given_as_the_path_of_its_folder(
    tier: BuiltTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tier.root)
    for path in ("tier", "./tier", tier.root / "tier"):
        assert jobs.verify(path)["messages"] == 22
        assert tieredstore.open(path).location.url == tier.url
    with pytest.raises(Invalid, match="no such directory"):
        tieredstore.open("nowhere")
    with pytest.raises(Invalid, match="or the path of a folder"):
        tieredstore.open("s3:bucket")


def test_a_copy_that_is_stopped_says_so(tier: BuiltTier, tmp_path: Path) -> None:
    stop, errors = StopSignal(), list[TieredStoreError]()
    stop.set()
    report = jobs.copy(
        tier.url,
        f"file://{tmp_path}/copy",
        to_state=tmp_path / "copy-state",
        stop=stop,
        on_failure=errors.append,
    )
    assert (report["stopped"], report["copied_bytes"], errors) == (True, 0, [])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"format": "csv"}, "format: expected one of parquet, iceberg, delta, found 'csv'"),
        ({"on_damage": "eat"}, "on_damage: expected one of fail, skip, found 'eat'"),
        ({"accept": ["all"]}, "accept: expected one of gap, remade, moved, topics, found 'all'"),
    ],
)
def test_an_unknown_choice_is_invalid(
    choice: dict[str, Any], message: str, tier: BuiltTier
) -> None:
    with pytest.raises(Invalid, match=message):
        jobs.export(tier.url, "nowhere", **choice)


def test_python_m_is_the_command() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tieredstore", "verify"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, "Missing option '--tier'" in done.stderr) == (2, True)
