"""The next files of a log, and the next pages of the writer's, made in the background before the
writer needs them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from tieredstore.errors import Exhausted, TieredStoreError
from tieredstore.local.log.mapped_file import MappedFile
from tieredstore.service_thread import ServiceHealth, ServiceThread

WAIT_MS: Final = 5_000
"""How long a put waits for its file."""
_log = logging.getLogger(__name__)


class _Request:
    """One file to make. `done` is set when there is a file or an error."""

    __slots__ = ("done", "error", "file", "from_offset")

    def __init__(self, from_offset: int) -> None:
        self.from_offset = from_offset
        self.done = threading.Event()
        self.file: MappedFile | None = None
        self.error: TieredStoreError | None = None


class AllocateMappedFileService:
    """Makes files by `create(from_offset)`, one at a time, in the order of their offsets.

    `request` says which file will be needed, `take` waits for it. A file that could not be made is
    tried again when it is asked for again. Before `start` and after `stop`, `take` makes the file
    itself. Thread-safe.
    """

    def __init__(self, create: Callable[[int], MappedFile], *, wait_ms: int = WAIT_MS) -> None:
        self._create = create
        self._wait_ms = wait_ms
        self._lock = threading.Lock()
        self._requests: dict[int, _Request] = {}
        self._writer: tuple[MappedFile, int] | None = None
        self._loop = ServiceThread(
            "allocate-mapped-file",
            self._make_files,
            None,
            on_error=lambda error: _log.warning("a commit log file was not made: %s", error),
        )

    def start(self) -> None:
        """Begin to make files in the background."""
        self._loop.start()

    def stop(self) -> dict[int, MappedFile | None]:
        """End the thread; return the files that nobody took, by the order of their offsets: None
        for one that could not be made, of which something may be left."""
        self._loop.stop()
        with self._lock:
            requests, self._requests = self._requests, {}
        for request in requests.values():
            request.done.set()
        return {offset: request.file for offset, request in sorted(requests.items())}

    def health(self) -> ServiceHealth:
        """Tell how the loop is."""
        return self._loop.health()

    def request(self, from_offset: int) -> None:
        """Have a file made, unless that is under way. Never waits for it."""
        if self._loop.is_running:
            self._ask(from_offset)

    def touch_ahead(self, file: MappedFile, position: int) -> None:
        """Have the pages made that come behind a position of the writer's file. Never waits; while
        a file is made, the writer makes its pages itself."""
        if self._loop.is_running:
            self._writer = file, position
            self._loop.wake()

    def _ask(self, from_offset: int) -> _Request:
        with self._lock:
            request = self._requests.get(from_offset)
            if request is None or request.error is not None:
                request = self._requests[from_offset] = _Request(from_offset)
            if not request.done.is_set():
                self._loop.wake()
            return request

    def take(self, from_offset: int) -> MappedFile:
        """Return the file, made by now or within the waiting time; it stays at hand until
        `confirm`. Raises what hindered the making, Exhausted when it takes too long."""
        if not self._loop.is_running:
            return self._create(from_offset)
        request = self._ask(from_offset)
        request.done.wait(self._wait_ms / 1000)
        if request.error is not None:
            raise request.error
        if request.file is None:
            raise Exhausted(
                f"commit log file {from_offset:020d}: expected it within {self._wait_ms} ms: the "
                "disk is too slow",
                offset=from_offset,
            )
        return request.file

    def confirm(self, from_offset: int) -> None:
        """Forget a file that its taker owns now."""
        with self._lock:
            self._requests.pop(from_offset, None)

    def _find_next(self) -> _Request | None:
        """The file to make now; None when there is none. Raises why one before it could not be
        made, for which nobody has asked again: a crash would leave a gap in front of a later
        one."""
        with self._lock:
            missing = [it for it in self._requests.values() if it.file is None]
        first = min(missing, key=lambda it: it.from_offset, default=None)
        if first is not None and first.error is not None:
            raise first.error
        return first

    def _make_files(self) -> None:
        while not self._loop.is_stopping:
            writer, self._writer = self._writer, None
            if writer is not None:
                writer[0].touch_ahead(writer[1])
            request = self._find_next()
            if request is None:
                return
            try:
                request.file = self._create(request.from_offset)
            except TieredStoreError as error:
                request.error = error
                raise
            except Exception as error:
                request.error = TieredStoreError(
                    f"commit log file {request.from_offset:020d}: {error!r}",
                    offset=request.from_offset,
                )
                raise
            finally:
                request.done.set()
            self._loop.report_progress()
