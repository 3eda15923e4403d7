"""Options of the verbs that are jobs: who works, where the job keeps its journal, what it tells."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import orjson

from tieredstore.cli.exits import end_of_stopped, say_notes
from tieredstore.cli.logs.saying import make_line
from tieredstore.cli.options.collecting import Command, Settings, collect
from tieredstore.cli.options.messages import split_pair
from tieredstore.disk.errors import wrap_os_errors
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.jobs.runner import Runner

_PATH = click.Path(path_type=Path)
_WORKERS: Settings = {"flag": "--workers", "metavar": "N"}
_REPORT: Settings = {
    "flag": "--report",
    "metavar": "FILE",
    "type": _PATH,
    "help": "Write the JSON report there as well.",
}
_QUIET: Settings = {"flag": "--quiet", "is_flag": True, "help": "No progress on stderr."}


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job runs. spark_conf: `key=value` settings of the session, which need --spark.
    received: numbers of the signals that came while it ran."""

    workers: int | None = None
    spark: bool = False
    spark_conf: tuple[str, ...] = ()
    work: Path | None = None
    report: Path | None = None
    quiet: bool = False
    received: list[int] = field(default_factory=list)

    def require_staging(self, staging: str | None) -> None:
        """Raise Invalid when workers on other machines would have no place to meet."""
        if self.spark and staging is None:
            raise Invalid("--spark needs --staging: a place that all its workers reach")

    def write_report(self, report: dict[str, Any]) -> None:
        """Write the report as a file, if one is wanted. Replaces an older file at once or not at
        all."""
        if self.report is None:
            return
        with wrap_os_errors("write", self.report):
            FILES.replace_file(self.report, orjson.dumps(report, option=orjson.OPT_INDENT_2))


job_options = collect(
    "job",
    JobOptions,
    {
        "workers": {
            **_WORKERS,
            "type": click.IntRange(1, 256),
            "help": "Processes of this machine that work; all its cores by default.",
        },
        "spark": {
            "flag": "--spark",
            "is_flag": True,
            "help": "Let the tasks run on Spark (docs/spark.md).",
        },
        "spark_conf": {
            "flag": "--spark-conf",
            "metavar": "KEY=VALUE",
            "multiple": True,
            "help": "A setting of the session, such as spark.master=…; repeatable.",
        },
        "work": {
            "flag": "--work",
            "metavar": "DIR",
            "type": _PATH,
            "help": "Where the job notes what it has done, to go on after a kill; by default in "
            "the user's state directory.",
        },
        "report": _REPORT,
        "quiet": _QUIET,
    },
)
"""Adds the options of a job whose tasks run anywhere; the command gets the `JobOptions` `job`."""


def thread_options(**workers: Any) -> Callable[[Command], Command]:
    """Add the options of a job that works with threads of this process. workers: settings of
    --workers."""
    options = {"workers": {**_WORKERS, **workers}, "report": _REPORT, "quiet": _QUIET}
    return collect("job", JobOptions, options)


staging_option = click.option(
    "--staging",
    metavar="URL",
    help="A place for files between the steps, file:///dir or s3://bucket/prefix, that all workers "
    "reach; by default a folder beside the journal. Needed with --spark.",
)


@contextmanager
def task_keywords(
    verb: str, job: JobOptions, *, has_journal: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield what a call of `tieredstore.jobs` takes from the options of `job_options`. A signal
    ends the run after the tasks in hand, and the verb with that signal's code; has_journal: whether
    another run goes on then. Raises Invalid."""
    from tieredstore.cli.output.progress import Display
    from tieredstore.cli.stopping import stop_on_signals
    from tieredstore.jobs.stopping import Stopped, StopSignal

    stop = StopSignal()
    try:
        with (
            _runner(job) as runner,
            Display(verb, sys.stderr, quiet=job.quiet) as display,
            stop_on_signals(stop, job.received),
        ):
            stop.on_set(_make_stop_sayer())
            yield {
                "workers": job.workers or os.cpu_count() or 1,
                "runner": runner,
                "progress": display.show_progress,
                "work": job.work,
                "stop": stop,
            }
    except Stopped as error:
        say_notes(error)
        hints = () if has_journal else ("with --work the next run goes on",)
        raise click.exceptions.Exit(int(end_of_stopped(job.received, *hints))) from None


def _make_stop_sayer() -> Callable[[], None]:
    """Make what says that it stops in a handler of signals, which must not use what it may have
    interrupted."""
    line = make_line("it stops after the tasks in hand; a second signal interrupts them")

    def say_that_it_stops() -> None:
        os.write(2, (b"\n" if os.isatty(2) else b"") + line.encode() + b"\n")

    return say_that_it_stops


@contextmanager
def thread_keywords(verb: str, job: JobOptions, *, only_plan: bool) -> Iterator[dict[str, Any]]:
    """Yield what a call takes from the options of `thread_options`. A signal stops a run in good
    order, and interrupts a plan at once."""
    from tieredstore.cli.output.progress import Display
    from tieredstore.cli.stopping import stop_on_signals
    from tieredstore.jobs.stopping import StopSignal

    stop = StopSignal()
    with ExitStack() as stack:
        if not only_plan:
            stack.enter_context(stop_on_signals(stop, job.received))
        display = stack.enter_context(Display(verb, sys.stderr, quiet=job.quiet))
        yield {"workers": job.workers, "progress": display.show_progress, "stop": stop}


@contextmanager
def _runner(job: JobOptions) -> Iterator[Runner | None]:
    """None for processes of this machine."""
    if not job.spark:
        if job.spark_conf:
            raise Invalid("--spark-conf needs --spark")
        yield None
        return
    if job.workers is not None:
        raise Invalid("--workers is for this machine; on Spark its own settings count")
    conf = dict(split_pair("--spark-conf", setting) for setting in job.spark_conf)
    from tieredstore.spark import session, ship

    spark = session(conf=conf)
    from tieredstore.spark.runner import SparkRunner  # PySpark is there: the session says so

    ship(spark)
    try:
        yield SparkRunner(spark)
    finally:
        spark.stop()
