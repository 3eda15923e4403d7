"""Tests of exports that run at an interval: their totals and how they end."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.kit.growing_tier import START_MS, GrowingTier
from tests.kit.jobs.export import FORMATS, Export, places_of
from tieredstore import jobs
from tieredstore.clock import ManualClock
from tieredstore.errors import Corrupt, Fenced, Invalid, Refused, Unavailable
from tieredstore.jobs.exporting import job
from tieredstore.jobs.exporting.following import Behind, follow_exports, parse_interval
from tieredstore.jobs.exporting.job import measure_left
from tieredstore.jobs.exporting.request import Format
from tieredstore.jobs.exporting.work import WriteOutcome, WriteTask, write
from tieredstore.jobs.run import JobProgress
from tieredstore.jobs.stopping import StopSignal


class Steps(ManualClock):
    """A clock whose waits run the next step of a scenario. It records the length of each wait."""

    def __init__(self, steps: list[Callable[[], object]]) -> None:
        super().__init__(START_MS + 100_000)
        self.steps = steps
        self.waits_ms: list[int] = []

    def wait(self, event: threading.Event, timeout_ms: int) -> bool:
        self.waits_ms.append(timeout_ms)
        super().wait(event, timeout_ms)
        self.steps.pop(0)()
        return event.is_set()


def follow(
    exported: Export, clock: Steps, stop: StopSignal, seen: list[JobProgress] | None = None
) -> dict[str, Any]:
    return follow_exports(
        lambda progress: exported.run(stop=stop),
        lambda: measure_left(exported.source, exported.request(), clock),
        60_000,
        stop=stop,
        clock=clock,
        progress=(seen if seen is not None else []).append,
    )


@pytest.mark.parametrize("form", FORMATS)
def test_rounds_take_what_is_new_until_they_are_stopped(
    form: Format, tmp_path: Path, tier: GrowingTier
) -> None:
    exported, stop, seen = (
        Export(tmp_path / "exported", form, tier),
        StopSignal(),
        list[JobProgress](),
    )

    def end() -> None:
        tier.append("third", 0, 2)
        stop.set()

    clock = Steps(
        [
            lambda: tier.append("orders", 1, 4),
            lambda: None,
            end,
        ]
    )
    report = follow(exported, clock, stop, seen)
    assert clock.waits_ms == [60_000] * 3
    assert (report["rounds"], report["failed_rounds"], report["stopped"]) == (3, 0, True)
    assert (report["rows"], report["sequence"]) == (28, 2)
    assert report["commit"] is not None  # though the last round had none
    queues = {one["queue"]: (one["until_offset"], one["rows"]) for one in report["queues"]}
    assert queues == {
        "broker-a/orders/0": (12, 12),
        "broker-a/orders/1": (9, 9),
        "broker-a/other/0": (7, 7),
    }  # fmt: skip
    # 160 s later: the message left has the store time of a queue's first one
    assert report["behind"] == {"messages": 2, "seconds": 280.0}
    assert [(one.done, one.note) for one in seen] == [
        (24, "was 24 messages, 100 s behind at most"),
        (28, "was 4 messages, 155 s behind at most"),
    ]
    tier.make_again("third")
    assert exported.places() == places_of(tier)


def test_an_outage_and_another_export_are_tried_again(tmp_path: Path, tier: GrowingTier) -> None:
    exported, stop, seen = (
        Export(tmp_path / "exported", Format.PARQUET, tier),
        StopSignal(),
        list[JobProgress](),
    )
    failures: list[Exception] = [Unavailable("the bucket is away"), Fenced("another export")]

    def export_once(progress: object) -> dict[str, Any]:
        del progress
        if failures:
            raise failures.pop(0)
        return exported.run()

    report = follow_exports(
        export_once,
        lambda: measure_left(exported.source, exported.request(), ManualClock()),
        1000,
        stop=stop,
        clock=Steps([lambda: None, lambda: None, stop.set]),
        progress=seen.append,
    )
    assert (report["rounds"], report["failed_rounds"], report["rows"]) == (1, 2, 24)
    assert "tried again in the next round: the bucket is away" in seen[0].note
    assert report["behind"] == {"messages": 0, "seconds": 0.0}


def test_damage_ends_it(tier: GrowingTier) -> None:
    def export_once(progress: object) -> dict[str, Any]:
        raise Corrupt("byte 7")

    with pytest.raises(Corrupt, match="byte 7"):
        follow_exports(
            export_once, lambda: pytest.fail("measured"), 1000, stop=StopSignal(), clock=Steps([])
        )


def test_a_round_that_is_stopped_is_taken_up_by_the_next_run(
    tmp_path: Path, tier: GrowingTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    exported, stop = Export(tmp_path / "exported", Format.PARQUET, tier), StopSignal()
    done: list[int] = []

    def stopping(task: WriteTask) -> WriteOutcome:
        done.append(task.number)
        if len(done) == 2:
            stop.set()
        return write(task)

    monkeypatch.setattr(job, "write", stopping)
    report = follow_exports(
        lambda progress: exported.run(journal="a", stop=stop),
        lambda: measure_left(exported.source, exported.request(), ManualClock()),
        60_000,
        stop=stop,
        clock=Steps([]),
    )
    assert (report["rounds"], report["stopped"], len(done)) == (0, True, 2)
    assert report["behind"]["messages"] == 24
    again = exported.run(journal="a")
    assert again["stages"][0]["resumed"] == 2
    assert exported.places() == places_of(tier)


def test_the_call_follows_too(tmp_path: Path, tier: GrowingTier) -> None:
    stop, seen = StopSignal(), list[JobProgress]()

    def on_progress(progress: JobProgress) -> None:
        seen.append(progress)
        stop.set()

    report = jobs.export(
        tier.url, tmp_path / "out", every="1h", stop=stop, progress=on_progress, work=tmp_path
    )
    assert (report["rows"], report["rounds"], report["stopped"]) == (24, 1, True)
    assert [one.note[:17] for one in seen] == ["was 24 messages, "]


def test_intervals() -> None:
    assert [parse_interval(text) for text in ("30s", "10m", "2h", "1d")] == [
        30_000, 600_000, 7_200_000, 86_400_000,
    ]  # fmt: skip
    assert parse_interval(timedelta(minutes=5)) == 300_000
    for wrong in ("0s", "5", "-1m", "1.5h", "5 m", timedelta(milliseconds=999), ""):
        with pytest.raises(Invalid, match=r"every: expected a time (from 1s to|such as)"):
            parse_interval(wrong)


def test_what_goes_on_has_no_end(tmp_path: Path, tier: GrowingTier) -> None:
    for end in ({"until": "now"}, {"until_offset": 5}):
        with pytest.raises(Invalid, match="a following export takes no until"):
            jobs.export(tier.url, tmp_path / "out", follow=True, **end)


def test_l31_a_target_that_is_refused_for_good_ends_what_goes_on() -> None:
    rounds = 0

    def export_once(_: object) -> dict[str, Any]:
        nonlocal rounds
        rounds += 1
        raise Refused("/t: cannot write: Read-only file system")

    def measure_left() -> Behind:
        return Behind(0, 0.0)

    with pytest.raises(Refused):
        follow_exports(export_once, measure_left, 1000, stop=StopSignal(), clock=ManualClock())
    assert rounds == 1
