"""TraceService: writes at intervals what is recorded, while somebody wants it recorded.

It harms nothing else: what cannot be written, as on a full disk, is dropped and counted.
"""

from __future__ import annotations

import logging
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tieredstore.clock import SYSTEM_CLOCK
from tieredstore.contracts.dispatch_source import ObservedSource
from tieredstore.disk.file_operations import FILES
from tieredstore.service_thread import ServiceHealth, ServiceThread
from tieredstore.tier.trace.blocks import TraceBlock, encode_block
from tieredstore.tier.trace.files import TRACE_FOLDER, TraceFiles
from tieredstore.tier.trace.recorder import TraceRecorder

if TYPE_CHECKING:
    from tieredstore.clock import Clock
    from tieredstore.config import StoreConfig
    from tieredstore.contracts.dispatch_source import DispatchSource
    from tieredstore.disk.file_operations import FileOperations
    from tieredstore.metrics import Metrics

DROPPED_METRIC: Final = "rocketmq_tiered_store_x_trace_dropped_rows_total"
_log = logging.getLogger(__name__)


class TraceService:
    """Records while `tieredStoreTraceEnable` says so, looked at every `tieredStoreTraceInterval`.

    state: the broker's `storePathRootDir`. recorder: to be told of gets while its `is_on` says so.
    clock: of what is recorded.
    """

    def __init__(
        self,
        config: StoreConfig,
        state: Path,
        clock: Clock,
        metrics: Metrics,
        files: FileOperations = FILES,
        *,
        loop_clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.recorder = TraceRecorder(clock)
        self._config = config
        self._folder = state / TRACE_FOLDER
        self._clock = clock
        self._metrics = metrics
        self._files = TraceFiles(self._folder, lambda: config.trace_max_size_bytes, files)
        self._source: ObservedSource | None = None
        self._lost = 0  # not written, and not yet told of in a block
        self._has_failed = False
        self._lock = threading.Lock()  # one round at a time
        self._loop = ServiceThread(
            "tiered-trace", self.run_round, lambda: config.trace_interval_ms, clock=loop_clock
        )

    def start(self, source: DispatchSource) -> None:
        """Begin to look whether to record what a source tells of, and gets."""
        self._source = source if isinstance(source, ObservedSource) else None
        self._loop.start()

    def stop(self) -> None:
        """Write what is left, and record nothing more. Idempotent."""
        self._loop.stop()
        with self._lock:
            self._switch(is_on=False)
            self._files.close()

    def health(self) -> list[ServiceHealth]:
        """Tell how the background loop is."""
        return [self._loop.health()]

    def run_round(self) -> None:
        """Write what was recorded since the last round, if anything was to be. Raises nothing that
        the disk says."""
        with self._lock:
            if self.recorder.is_on:
                self._write(self.recorder.take())
            self._switch(is_on=self._config.trace_enable)

    def _switch(self, *, is_on: bool) -> None:
        if is_on == self.recorder.is_on:
            return
        if is_on:
            self.recorder.begin()
        else:
            self.recorder.is_on = False
        if self._source is not None:
            self._source.set_observer(self.recorder.put if is_on else None)
        if not is_on:
            self._write(self.recorder.take())

    def _write(self, block: TraceBlock) -> None:
        self._lose(block.dropped)
        block = replace(block, dropped=self._lost)
        try:
            is_written = self._files.append(encode_block(block), self._clock.now_ms())
        except (OSError, MemoryError) as error:
            if not self._has_failed:
                _log.warning("%s: a part of the trace is lost: %s", self._folder, error)
            self._has_failed = True
            is_written = False
        else:
            self._has_failed = False
        if is_written:
            self._lost = 0
        else:
            self._lose(len(block.puts) + len(block.gets))

    def _lose(self, count: int) -> None:
        if count:
            self._lost += count
            self._metrics.count(DROPPED_METRIC, count)
