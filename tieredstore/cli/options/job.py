"""Options of the verbs that are jobs: where the tasks run, and where the job keeps its journal."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
import orjson

from tieredstore.cli.options.tier import quiet_option
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.jobs.run import JobProgress, JobRun
    from tieredstore.jobs.runner import Runner

_Command = TypeVar("_Command", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class JobOptions:
    """How a job runs. spark_conf: `key=value` settings of the session, which need --spark."""

    workers: int | None = None
    spark: bool = False
    spark_conf: tuple[str, ...] = ()
    work: Path | None = None
    report: Path | None = None
    quiet: bool = False


def job_options(command: _Command) -> _Command:
    """Adds --workers, --spark, --spark-conf, --work, --report and --quiet, which the command takes
    as the keywords of `JobOptions`."""
    for option in reversed(
        (
            click.option(
                "--workers",
                metavar="N",
                type=click.IntRange(1, 256),
                help="Processes of this machine that work; all its cores by default.",
            ),
            click.option(
                "--spark", is_flag=True, help="Let the tasks run on Spark (docs/spark.md)."
            ),
            click.option(
                "--spark-conf",
                metavar="KEY=VALUE",
                multiple=True,
                help="A setting of the session, such as spark.master=…; repeatable.",
            ),
            click.option(
                "--work",
                metavar="DIR",
                type=click.Path(path_type=Path),
                help="Where the job notes what it has done, to go on after a kill; by default in "
                "the user's state directory.",
            ),
            click.option(
                "--report",
                metavar="FILE",
                type=click.Path(path_type=Path),
                help="Write the JSON report there as well.",
            ),
            quiet_option,
        )
    ):
        command = option(command)
    return command


@contextmanager
def job_run(
    name: str, options: JobOptions, arguments: dict[str, object], *, kept: bool = True
) -> Iterator[JobRun]:
    """A run of the job `name`. `arguments`: all that tells this job from another one of that name,
    as JSON; a run that was killed goes on when they are the same.

    kept: whether a journal is kept without --work. It ends with the block, unless an error leaves
    it. Raises Invalid, Busy.
    """
    from tieredstore.cli.output.progress import Display, rate_text
    from tieredstore.jobs.journal import Journal, journal_path
    from tieredstore.jobs.run import JobRun

    identity = {"job": name, **arguments}
    with ExitStack() as stack:
        folder = options.work or (_state_directory() if kept else None)
        path = None if folder is None else journal_path(folder, identity)
        journal = stack.enter_context(Journal(path, identity))
        runner = stack.enter_context(_runner(options))
        display = stack.enter_context(Display(name, sys.stderr, quiet=options.quiet))

        def on_progress(progress: JobProgress) -> None:
            display.show(
                progress.tasks,
                progress.tasks_total,
                f"{progress.stage}: {progress.tasks:,} of {progress.tasks_total:,} tasks, "
                f"{progress.done_bytes / 1e6:,.1f} of {progress.total_bytes / 1e6:,.1f} MB, "
                f"{rate_text(progress.done_bytes, progress.seconds)}",
            )

        yield JobRun(name, runner, journal, on_progress)
        journal.finish()


def write_report(options: JobOptions, report: dict[str, object]) -> None:
    """The report as a file, if one is wanted. Replaces an older one at once or not at all."""
    if options.report is None:
        return
    FILES.replace_file(options.report, orjson.dumps(report, option=orjson.OPT_INDENT_2))


def require_staging(options: JobOptions, staging: str | None) -> None:
    """Raise Invalid when workers on other machines would have no place to meet."""
    if options.spark and staging is None:
        raise Invalid("--spark needs --staging: a place that all its workers reach")


@contextmanager
def _runner(options: JobOptions) -> Iterator[Runner]:
    if not options.spark:
        if options.spark_conf:
            raise Invalid("--spark-conf needs --spark")
        from tieredstore.jobs.runner import LocalRunner

        yield LocalRunner(options.workers or os.cpu_count() or 1)
        return
    if options.workers is not None:
        raise Invalid("--workers is for this machine; on Spark its own settings count")
    conf = {}
    for setting in options.spark_conf:
        key, equals, value = setting.partition("=")
        if not equals or not key:
            raise Invalid(f"--spark-conf {setting!r}: expected KEY=VALUE")
        conf[key] = value
    from tieredstore.spark import session, ship

    spark = session(conf=conf)
    from tieredstore.spark.runner import SparkRunner  # PySpark is there: the session says so

    ship(spark)
    try:
        yield SparkRunner(spark)
    finally:
        spark.stop()


def _state_directory() -> Path:
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "tieredstore" / "jobs"
