"""Progress of a copy: a live bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self, TextIO

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from tieredstore.scan.copying.report import CopyProgress

_LINE_SECONDS = 2.0
_BAR_SECONDS = 0.1


class CopyDisplay:
    """Shows progress on `stream`. A context manager; its callback comes one at a time."""

    def __init__(self, stream: TextIO, *, quiet: bool = False) -> None:
        self._stream = stream
        self._quiet = quiet
        self._is_live = not quiet and stream.isatty()
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._shown = 0.0

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

    def on_progress(self, progress: CopyProgress) -> None:
        """Bytes of a known total."""
        is_last = progress.segments >= progress.segments_total
        now = time.monotonic()
        wait = _BAR_SECONDS if self._is_live else _LINE_SECONDS
        if self._quiet or (now - self._shown < wait and not is_last):
            return
        self._shown = now
        if self._is_live:
            self._update_bar(progress)
            return
        rate = progress.done_bytes / progress.seconds / 1e6 if progress.seconds else 0.0
        self._stream.write(
            f"copy: {progress.segments:,} of {progress.segments_total:,} segments, "
            f"{progress.done_bytes / 1e6:,.1f} of {progress.total_bytes / 1e6:,.1f} MB, "
            f"{rate:,.1f} MB/s\n"
        )
        self._stream.flush()

    def _update_bar(self, progress: CopyProgress) -> None:
        if self._bar is None:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                DownloadColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
                TransferSpeedColumn,
            )

            self._bar = Progress(
                TextColumn("copy"),
                BarColumn(),
                DownloadColumn(),
                TransferSpeedColumn(),
                TextColumn("{task.fields[segments]:,} segments"),
                TimeRemainingColumn(),
                console=Console(file=self._stream),
            )
            self._bar.start()
            self._task = self._bar.add_task("copy", total=progress.total_bytes, segments=0)
        assert self._task is not None
        self._bar.update(self._task, completed=progress.done_bytes, segments=progress.segments)
