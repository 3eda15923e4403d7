"""Progress of an offload: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tieredstore.cli.offload_report import OffloadProgress, OffloadReport

_LINE_SECONDS = 2.0
_BAR_SECONDS = 0.1


class OffloadDisplay:
    """Shows progress on `stream`. A context manager; its callbacks come one at a time."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._is_live = not quiet and stream.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown = 0.0
        self._is_done = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def on_progress(self, progress: OffloadProgress) -> None:
        """One pass: messages of a known total."""
        is_last = progress.messages >= progress.messages_total
        now = time.monotonic()
        wait = _BAR_SECONDS if self._is_live else _LINE_SECONDS
        if self._quiet or self._is_done or (now - self._shown < wait and not is_last):
            return
        self._shown = now
        self._is_done = is_last
        if self._is_live:
            self._update_bar(progress)
        else:
            rate = progress.message_bytes / progress.seconds / 1e6 if progress.seconds else 0.0
            self._line(
                f"offload: {progress.messages:,} of {progress.messages_total:,} messages in "
                f"{progress.queues_total:,} queues, {progress.message_bytes / 1e6:,.1f} MB, "
                f"{rate:,.1f} MB/s"
            )

    def on_round(self, report: OffloadReport) -> None:
        """A round of `--follow`: running totals."""
        if not self._quiet:
            self._line(
                f"offload: {report.messages:,} messages, {report.message_bytes / 1e6:,.1f} MB "
                "copied so far"
            )

    def _line(self, text: str) -> None:
        self._stream.write(text + "\n")
        self._stream.flush()

    def _update_bar(self, progress: OffloadProgress) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

            self._bar = Progress(
                TextColumn("offload"),
                BarColumn(),
                TextColumn("{task.completed:,.0f} of {task.total:,.0f} messages"),
                TextColumn("{task.fields[megabytes]:,.1f} MB"),
                TimeRemainingColumn(),
                console=Console(file=self._stream),
            )
            self._bar.start()
            self._task = self._bar.add_task("offload", total=progress.messages_total, megabytes=0.0)
        assert self._task is not None
        self._bar.update(
            self._task,
            completed=progress.messages,
            megabytes=progress.message_bytes / 1e6,
        )
