"""The index's part of the dispatch: it may fall behind the consume queues, and never stops them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

import numpy as np
import numpy.typing as npt

from tieredstore.local.index.service import IndexService
from tieredstore.local.running_flags import RunningFlag, RunningFlags, find_passing

_log: Final = logging.getLogger(__name__)

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]


class IndexBuilder:
    """Puts entries of the index. One thread at a time.

    is_enabled: what `messageIndexEnable` says now. behind_from: where in the commit log (bytes) the
    messages without entries begin; None while all that is dispatched has those that it should.
    error: why it is behind. After a passing error the log is read from there on, later; a lasting
    one raises WRITE_INDEX_FILE_ERROR, and the next start goes on.
    """

    def __init__(
        self, index: IndexService, flags: RunningFlags, is_enabled: Callable[[], bool]
    ) -> None:
        self.behind_from: int | None = None
        self.error: Exception | None = None
        self.is_broken = False
        self.is_enabled = is_enabled
        self._index = index
        self._flags = flags
        self._off_since: int | None = None  # byte of the log; None: it takes entries

    def takes_entries(self, begin: int) -> bool:
        """Tell whether messages from a byte of the log on get entries now. Asked for each batch, so
        that it is known from where on they have none, and from where on again."""
        if self.is_enabled():
            if self._off_since is not None:
                _log.warning(
                    "the messages from %d to %d of the commit log have no entries in the index: "
                    "messageIndexEnable was false",
                    self._off_since,
                    begin,
                )
                self._off_since = None
            return True
        if self._off_since is None:
            self._off_since = begin
            if self.behind_from is not None and not self.is_broken:
                # Else the checkpoint, and the log's files, would wait for entries that nobody puts.
                self._off_since, self.behind_from, self.error = self.behind_from, None, None
            _log.info("no entries in the index from %d on: it is switched off", self._off_since)
        return False

    def put(self, hashes: Int32s, offsets: Int64s, timestamps: Int64s, begin: int) -> None:
        """Put entries, or fall behind.

        offsets, timestamps: of the message of each entry; begin: byte of the log from which on
        messages have none when this fails.
        """
        if self.behind_from is not None:
            return
        try:
            self.put_again(hashes, offsets, timestamps)
        except Exception as error:
            self.fall_behind(begin, error)

    def put_again(self, hashes: Int32s, offsets: Int64s, timestamps: Int64s) -> None:
        """Put entries of messages that come after those that have some. Raises what the index
        raises."""
        if len(hashes):
            self._index.put(hashes, offsets, timestamps)

    def fall_behind(self, begin: int, error: Exception) -> None:
        """Leave the messages from a byte of the log on without entries, for now."""
        if self.behind_from is None:
            _log.warning("no entries in the index from %d on: %s", begin, error)
        passing = find_passing(error)
        self.behind_from, self.error = begin, passing or error
        if passing is None:
            self.is_broken = True
            reason = f"the index cannot be written: {error}"
            self._flags.set(RunningFlag.WRITE_INDEX_FILE_ERROR, reason, lasting=True)

    def catch_up(self) -> None:
        """Say that all that is dispatched has its entries."""
        self.behind_from = self.error = None
        _log.info("the index is complete again")
