"""The values of several options are passed to a command as one argument."""

from __future__ import annotations

import io
import json
import signal
from pathlib import Path

import click
import pytest

from tieredstore.cli.logs.choice import LogChoice, LogFormat
from tieredstore.cli.options.job import JobOptions, job_options, task_keywords, thread_keywords
from tieredstore.cli.options.output import output_option
from tieredstore.cli.options.tier import TierOptions, tier_options
from tieredstore.cli.output.progress import Display
from tieredstore.cli.output.rows import Output, OutputFormat
from tieredstore.clock import ManualClock
from tieredstore.errors import Invalid
from tieredstore.jobs.run import JobProgress


@click.command()
@tier_options("source", flag="from", cluster=None, broker=None)
@tier_options("target", flag="to", needs_state=True)
@click.option("--force", is_flag=True)
@job_options
@output_option
def both(
    source: TierOptions, target: TierOptions, force: bool, job: JobOptions, out: Output
) -> tuple[object, ...]:
    return source, target, force, job, out.format


def call(*arguments: str) -> tuple[object, ...]:
    found: tuple[object, ...] = both.main([*arguments], standalone_mode=False)
    return found


def test_two_groups_of_one_kind_do_not_mix() -> None:
    source, target, force, job, form = call(
        *("--from", "file:///a", "--to", "file:///b", "--to-state", "s", "--from-config", "c"),
        *("--broker", "b", "--workers", "3", "--output", "json"),
    )
    assert source == TierOptions("file:///a", config=Path("c"))
    assert target == TierOptions("file:///b", Path("s"), broker="b")
    assert (force, job, form) == (False, JobOptions(3), OutputFormat.JSON)


def test_an_error_names_the_option_as_it_is_typed() -> None:
    with pytest.raises(click.UsageError) as raised:
        call("--from", "file:///a", "--to", "file:///b")
    assert raised.value.format_message() == "Missing option '--to-state'."


def test_the_options_stand_in_the_order_of_the_decorators() -> None:
    flags = [parameter.opts[0] for parameter in both.params]
    assert flags[:7] == [
        "--from", "--from-state", "--from-config", "--to", "--to-state", "--to-config", "--cluster",
    ]  # fmt: skip
    assert flags[-4:] == ["--quiet", "--output", "--wide", "--all-rows"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (JobOptions(spark_conf=("a=b",)), "--spark-conf needs --spark"),
        (JobOptions(spark=True, workers=2), "--workers is for this machine"),
    ],
)
def test_options_that_exclude_each_other_are_refused(options: JobOptions, message: str) -> None:
    with pytest.raises(Invalid, match=message), task_keywords("verify", options):
        pytest.fail("not refused")


@pytest.mark.parametrize("only_plan", [False, True])
def test_a_signal_asks_a_run_to_stop_and_interrupts_a_plan(only_plan: bool) -> None:
    before = signal.getsignal(signal.SIGINT)
    with thread_keywords("copy", JobOptions(4), only_plan=only_plan) as how:
        assert (signal.getsignal(signal.SIGINT) is before) == only_plan
        if not only_plan:
            signal.raise_signal(signal.SIGINT)
        assert how["stop"].is_set() != only_plan
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (
            JobProgress("write", "tasks", 2, 2, 1_500_000, 3_000_000, 1.5),
            "job: write: 2 of 2 tasks, 1.5 of 3.0 MB, 1.0 MB/s\n",
        ),
        (
            JobProgress("write", "tasks", 3, 4, 9_000_000, 9_500_000, 2.0, resumed_bytes=7_000_000),
            "job: write: 3 of 4 tasks, 9.0 of 9.5 MB, 1.0 MB/s\n",
        ),
        (
            JobProgress("job", "messages", 7, 7, 2_000_000, None, 1.0),
            "job: 7 of 7 messages, 2.0 MB, 2.0 MB/s\n",
        ),
        (
            JobProgress("job", "messages", 7, None, 2_000_000, None, 1.0),
            "2026-11-21T13:05:16.182Z job: 7 messages, 2.0 MB so far\n",
        ),
    ],
)
def test_progress_of_each_job_is_a_line(
    progress: JobProgress, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs that never end print their progress as log lines, each with a time."""
    monkeypatch.setattr("tieredstore.cli.logs.lines.SYSTEM_CLOCK", ManualClock(1_795_266_316_182))
    stream = io.StringIO()
    with Display("job", stream) as display:
        display.show_progress(progress)
    assert stream.getvalue() == line


def test_progress_of_a_daemon_is_json_with_how_far_it_is_behind() -> None:
    choice = LogChoice()
    choice.format = LogFormat.JSON
    stream = io.StringIO()
    behind: dict[str, object] = {"behind_messages": 5, "behind_seconds": 41.5}
    with click.Context(click.Command("offload"), obj=choice).scope():
        display = Display("offload", stream)
    display.show_progress(
        JobProgress("offload", "messages", 7, None, 2_000_000, None, 1.5, "a note", details=behind)
    )
    said = json.loads(stream.getvalue())
    assert said.pop("time").endswith("Z")
    assert said == {
        "level": "info",
        "logger": "tieredstore.offload",
        "message": "7 messages, 2.0 MB so far; a note",
        "stage": "offload",
        "unit": "messages",
        "done": 7,
        "total": None,
        "done_bytes": 2_000_000,
        "total_bytes": None,
        "seconds": 1.5,
        **behind,
    }
