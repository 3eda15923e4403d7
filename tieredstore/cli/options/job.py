"""Options of jobs: workers, journal and report."""

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
from tieredstore.cli.logs.choice import make_line
from tieredstore.cli.options.collecting import Command, Settings, collect, value
from tieredstore.cli.options.messages import split_pair
from tieredstore.cli.output.rows import Output, Tables
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
    """Options for running a job. `spark_conf`: `key=value` settings of the Spark session, valid
    only with --spark. `received`: numbers of the signals received during the run."""

    workers: int | None = None
    spark: bool = False
    spark_conf: tuple[str, ...] = ()
    work: Path | None = None
    report: Path | None = None
    quiet: bool = False
    received: list[int] = field(default_factory=list)

    def require_staging(self, staging: str | None) -> None:
        """Raise Invalid if tasks run on Spark without a staging location, which all workers must be
        able to reach."""
        if self.spark and staging is None:
            raise Invalid("--spark needs --staging: a place that all its workers reach")

    def write_report(self, report: dict[str, object]) -> None:
        """Write the report to a file, if requested. An existing file is replaced atomically."""
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
            "help": "Worker processes on this machine. By default one for each core.",
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
            "help": "A setting of the session, such as spark.master=…, repeatable.",
        },
        "work": {
            "flag": "--work",
            "metavar": "DIR",
            "type": _PATH,
            "help": "Folder of the journal, by which a killed job continues. By default in "
            "the user's state directory.",
        },
        "report": _REPORT,
        "quiet": _QUIET,
    },
)
"""Adds the options of a job whose tasks can run in other processes or on Spark, passed to the
command as a `JobOptions` named `job`."""


def thread_options(**workers: object) -> Callable[[Command], Command]:
    """Add the options of a job that uses threads in this process. `workers`: settings of
    --workers."""
    options = {"workers": {**_WORKERS, **workers}, "report": _REPORT, "quiet": _QUIET}
    return collect("job", JobOptions, options)


staging_option = value(
    "--staging",
    "URL",
    "A place for files between the steps, file:///dir or s3://bucket/prefix, that all workers "
    "reach. By default a folder beside the journal. Needed with --spark.",
)


@contextmanager
def task_keywords(
    verb: str, job: JobOptions, *, has_journal: bool = True
) -> Iterator[dict[str, Any]]:
    """Yield the arguments of a `tieredstore.jobs` call for the options of `job_options`. After a
    signal, current tasks finish and the verb ends with the exit code for that signal.
    `has_journal`: True if a second run would continue this one. Raises Invalid."""
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
        hints = () if has_journal else ("with --work the next run continues",)
        raise click.exceptions.Exit(int(end_of_stopped(job.received, *hints))) from None


def run_task(
    verb: str,
    job: JobOptions,
    out: Output,
    tables: Tables,
    task: Callable[..., dict[str, object]],
    *args: object,
    **options: object,
) -> dict[str, object]:
    """Call a function of `tieredstore.jobs`. Writes, prints and returns its report."""
    with task_keywords(verb, job) as how:
        report = task(*args, **{**options, **how})
    job.write_report(report)
    out.record(report, tables)
    return report


def _make_stop_sayer() -> Callable[[], None]:
    """Return a function that prints that the run is stopping. It is safe to call in a signal
    handler, because it uses no code that the signal may have interrupted."""
    line = make_line("it stops after the current tasks, a second signal interrupts them")

    def say_that_it_stops() -> None:
        os.write(2, (b"\n" if os.isatty(2) else b"") + line.encode() + b"\n")

    return say_that_it_stops


@contextmanager
def thread_keywords(verb: str, job: JobOptions, *, only_plan: bool) -> Iterator[dict[str, Any]]:
    """Yield the arguments of a `tieredstore.jobs` call for the options of `thread_options`. A
    signal stops the run cleanly, or immediately with `only_plan`."""
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
    """Yield the runner for --spark. Without --spark, yield None, which means processes on this
    machine."""
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
    from tieredstore.spark.runner import SparkRunner  # PySpark is there

    ship(spark)
    try:
        yield SparkRunner(spark)
    finally:
        spark.stop()
