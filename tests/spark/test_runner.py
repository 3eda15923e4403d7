"""The runner executes tasks of a job on Spark. Each task has one outcome, even if attempts fail or
are repeated."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.kit.spark.cluster import Cluster
from tests.kit.spark.errands import Errand, outcomes
from tieredstore.errors import Corrupt, Invalid, Unavailable

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def square(number: int) -> int:
    return number * number


def attempt_of(errand: Errand) -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    attempt = context.attemptNumber()
    (Path(errand.folder) / f"{errand.number}-{attempt}").touch()
    if attempt < errand.fails:
        raise Unavailable(f"errand {errand.number}: attempt {attempt} fails")
    return attempt


def corrupt_at_three(number: int) -> int:
    if number == 3:
        raise Corrupt("segment 3: at byte 7", path="segment-3", offset=7)
    return number


def three_fails_when_told(errand: Errand) -> int:
    if errand.number == 3:
        while not (Path(errand.folder) / "go").exists():
            time.sleep(0.05)
        raise Unavailable("errand 3: fails")
    return errand.number


def stuck_after_the_first(errand: Errand) -> int:
    (Path(errand.folder) / f"{errand.number}").touch()
    if errand.number:
        time.sleep(120)
    return errand.number


def job_is_running(spark: SparkSession) -> bool:
    return bool(spark.sparkContext.statusTracker().getActiveJobsIds())


def idle_within_ten_seconds(spark: SparkSession) -> bool:
    for _ in range(100):
        if not job_is_running(spark):
            return True
        time.sleep(0.1)
    return False


def test_each_of_200_outcomes_arrives_once(spark: SparkSession) -> None:
    done = outcomes(spark, square, list(range(200)))
    assert sorted(done) == [(number, number * number) for number in range(200)]


def test_each_outcome_of_a_cluster_arrives_once(cluster: Cluster) -> None:
    done = cluster.call(outcomes, square, list(range(20)))
    assert sorted(done) == [(number, number * number) for number in range(20)]


def test_no_tasks_are_no_job(spark: SparkSession) -> None:
    assert outcomes(spark, square, []) == []


def test_a_task_that_failed_is_done_again(cluster: Cluster, tmp_path: Path) -> None:
    tasks = [Errand(0, str(tmp_path)), Errand(1, str(tmp_path), fails=2)]
    assert sorted(cluster.call(outcomes, attempt_of, tasks)) == [(0, 0), (1, 2)]


def test_a_task_that_fails_in_all_attempts_ends_the_job_as_unavailable(
    cluster: Cluster, tmp_path: Path
) -> None:
    tasks = [Errand(5, str(tmp_path), fails=99)]
    with pytest.raises(Unavailable) as raised:
        cluster.call(outcomes, attempt_of, tasks)
    assert str(raised.value) == (
        "a task failed in all its attempts: "
        "tieredstore.errors.Unavailable: errand 5: attempt 3 fails"
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["5-0", "5-1", "5-2", "5-3"]


@pytest.fixture(params=["spark", "cluster"])
def call(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Return a function that calls its argument with a Spark session. The session is that of this
    process, or that of the cluster."""
    where = request.getfixturevalue(request.param)
    return where.call if isinstance(where, Cluster) else functools.partial(_call, where)


def _call(spark: SparkSession, function: Callable[..., Any], *args: Any) -> Any:
    return function(spark, *args)


def test_damage_ends_the_job_as_what_it_is(call: Callable[..., Any]) -> None:
    with pytest.raises(Corrupt) as raised:
        call(outcomes, corrupt_at_three, list(range(6)))
    assert str(raised.value) == "segment 3: at byte 7"
    assert (raised.value.path, raised.value.offset) == ("segment-3", 7)


def test_damage_ends_the_job_while_other_tasks_run(cluster: Cluster, tmp_path: Path) -> None:
    tasks = [Errand(number, str(tmp_path)) for number in range(8)]
    with pytest.raises(Invalid, match=r"told to stop, \[\(0, 0\)\]"):
        cluster.call(outcomes, stuck_after_the_first, tasks, stop_at=0)
    assert cluster.call(idle_within_ten_seconds)
    assert not (tmp_path / "7").exists()


def test_an_interrupt_ends_the_job(spark: SparkSession, tmp_path: Path) -> None:
    tasks = [Errand(number, str(tmp_path)) for number in range(4)]

    def interrupt_when_stuck() -> None:
        while not ((tmp_path / "1").exists() and (tmp_path / "2").exists()):
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt_when_stuck)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        outcomes(spark, stuck_after_the_first, tasks)
    thread.join()
    assert idle_within_ten_seconds(spark)


def test_outcomes_before_an_error_are_not_lost(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tieredstore.spark import runner

    monkeypatch.setattr(runner, "_POLL_SECONDS", 60)  # nothing arrives before the job ends
    tasks = [Errand(number, str(tmp_path)) for number in range(4)]
    tracker = spark.sparkContext.statusTracker()

    def let_the_last_fail() -> None:
        while not any(
            (stage := tracker.getStageInfo(number)) and stage.numCompletedTasks == 3
            for number in tracker.getActiveStageIds()
        ):
            time.sleep(0.05)
        (tmp_path / "go").touch()

    thread = threading.Thread(target=let_the_last_fail)
    thread.start()
    done: dict[int, int] = {}
    with pytest.raises(Unavailable, match="errand 3: fails"):
        runner.SparkRunner(spark).run(three_fails_when_told, tasks, done.__setitem__)
    thread.join()
    assert done == {0: 0, 1: 1, 2: 2}
