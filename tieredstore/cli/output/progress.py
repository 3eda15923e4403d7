"""Progress of a long-running verb: a live bar on a terminal, otherwise plain or JSON lines."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self, TextIO

from tieredstore.cli.harmless import make_harmless
from tieredstore.cli.logs.choice import LogFormat, find_choice
from tieredstore.cli.logs.lines import make_json_line, stamp

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tieredstore.jobs.run import JobProgress

LINE_SECONDS: Final = 2.0
BAR_SECONDS: Final = 0.1
_FIELDS: Final = ("stage", "unit", "done", "total", "done_bytes", "total_bytes", "seconds")
"""Fields of a progress report in JSON. The report's details follow them."""


def rate_text(size_bytes: int, seconds: float) -> str:
    """Format a rate in megabytes per second."""
    return f"{size_bytes / seconds / 1e6 if seconds else 0.0:,.1f} MB/s"


class Display:
    """Context manager that shows the progress of `verb` on `stream`. Calls must not overlap."""

    def __init__(self, verb: str, stream: TextIO, *, quiet: bool = False) -> None:
        self._verb = verb
        self._stream = stream
        self._quiet = quiet
        self._is_json = find_choice().format is LogFormat.JSON
        self._is_live = not quiet and not self._is_json and stream.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown = 0.0
        self._is_done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show_progress(self, progress: JobProgress) -> None:
        """Show the progress of a job, at a readable rate. For a job without a known end, print a
        line with the time for each call."""
        if self._quiet:
            return
        if progress.total is None:
            self._write(progress, self._describe(progress), stamp())
            return
        is_last = progress.done >= progress.total
        now = time.monotonic()
        wait = BAR_SECONDS if self._is_live else LINE_SECONDS
        if (self._is_done and is_last) or (now - self._shown < wait and not is_last):
            return
        text = self._describe(progress)
        self._shown = now
        self._is_done = is_last
        if self._is_live:
            self._update_bar(progress.done, progress.total, text)
        else:
            self._write(progress, text)

    def _describe(self, progress: JobProgress) -> str:
        megabytes = f"{progress.done_bytes / 1e6:,.1f}"
        if progress.total is None:
            note = f"; {progress.note}" if progress.note else ""
            return f"{progress.done:,} {progress.unit}, {megabytes} MB so far{note}"
        if progress.total_bytes is not None:
            megabytes += f" of {progress.total_bytes / 1e6:,.1f}"
        stage = "" if progress.stage == self._verb else f"{progress.stage}: "
        return (
            f"{stage}{progress.done:,} of {progress.total:,} {progress.unit}, {megabytes} MB, "
            f"{rate_text(progress.done_bytes - progress.resumed_bytes, progress.seconds)}"
        )

    def _write(self, progress: JobProgress, text: str, time: str = "") -> None:
        line = make_harmless(f"{time}{self._verb}: {text}")
        if self._is_json:
            fields = {name: getattr(progress, name) for name in _FIELDS} | progress.details
            line = make_json_line(f"tieredstore.{self._verb}", "info", text, fields)
        self._stream.write(f"{line}\n")
        self._stream.flush()

    def _update_bar(self, done: int, total: int, text: str) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn(self._verb),
                BarColumn(),
                TextColumn("{task.description}", markup=False),
                TimeRemainingColumn(),
                console=Console(file=self._stream),
            )
            self._bar.start()
            self._task = self._bar.add_task(text, total=total)
        assert self._task is not None
        text = make_harmless(text)
        self._bar.update(self._task, completed=done, total=total, description=text)
