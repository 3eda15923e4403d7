"""KeyUpload: the keys of uploaded messages, and the index that may not take them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence

from tieredstore.clock import Clock
from tieredstore.errors import TieredStoreError, Unavailable
from tieredstore.metrics import Metrics
from tieredstore.tier.flat.batch import RecordBatch
from tieredstore.tier.flat.message_file import FlatMessageFile
from tieredstore.tier.upload import indexing
from tieredstore.tier.upload.indexing import KeyIndex
from tieredstore.tier.upload.queue_state import QueueState
from tieredstore.tier.upload.rest import Rest

REINDEX_BYTES = 64 << 20
"""Most bytes read back from the tier for the index in one visit."""
INDEX_FAILURES_METRIC = "rocketmq_tiered_store_x_index_failures_total"

_log = logging.getLogger(__name__)


class KeyUpload:
    """Puts the keys of a queue's messages into the index, in the order of its commit log.

    What fails is put later, read back from the tier. That costs as much as the messages are long,
    so it is done ever more rarely while it fails, and not while the index says that it takes none.
    """

    def __init__(self, index: KeyIndex, clock: Clock, metrics: Metrics) -> None:
        self._index = index
        self._clock = clock
        self._metrics = metrics
        self._rest = Rest(clock)

    def mark_first(self, files: Iterable[FlatMessageFile]) -> None:
        """Do `indexing.mark_first`."""
        indexing.mark_first(self._index, files)

    def is_due(self, state: QueueState) -> bool:
        """Tell whether missing keys of a queue are to be read back from the tier now."""
        return (
            not state.indexed
            and self._rest.is_over
            and (state.index_rest is None or state.index_rest.is_over)
            and indexing.takes_keys(self._index)
        )

    def put_batches(
        self, file: FlatMessageFile, batches: Sequence[RecordBatch], state: QueueState
    ) -> None:
        """Put the keys of committed messages; what is in front of them is in the index."""
        try:
            for batch in batches:
                indexing.put_batch(self._index, file, batch)
        except TieredStoreError as error:
            self._note_failure(file, state, error)
        else:
            state.indexed = True

    def put_missing(
        self,
        file: FlatMessageFile,
        state: QueueState,
        *,
        force: bool,
        is_ending: Callable[[], bool],
        give_way: Callable[[], None],
    ) -> bool:
        """Put what the index lacks, up to about REINDEX_BYTES of messages. force: also where that
        failed not long ago. give_way: called between two batches. Returns whether more is left that
        need not wait."""
        if state.indexed:
            return False
        if not self.is_due(state) and not (force and indexing.takes_keys(self._index)):
            return False
        left = REINDEX_BYTES
        while left > 0 and not is_ending() and not file.is_closed:
            try:
                found = indexing.read_missing(self._index, file)
            except TieredStoreError as error:
                self._note_failure(file, state, error, is_own=True)
                return False
            if found is None:
                state.indexed = True
                return False
            try:
                indexing.put_found(self._index, file, found)
            except TieredStoreError as error:
                self._note_failure(file, state, error)
                return False
            self._rest.end()
            state.index_rest = None
            left -= len(found.buffer)
            give_way()
        return True

    def _note_failure(
        self,
        file: FlatMessageFile,
        state: QueueState,
        error: TieredStoreError,
        *,
        is_own: bool = False,
    ) -> None:
        """is_own: it is of the queue alone, as is all but an index that is unavailable."""
        _log.warning("%s: keys not indexed, tried again later: %s", file.path, error)
        self._metrics.count(INDEX_FAILURES_METRIC, 1, topic=file.topic, queue_id=file.queue_id)
        if is_own or not isinstance(error, Unavailable):
            state.index_rest = state.index_rest or Rest(self._clock)
            state.index_rest.begin()
        elif indexing.takes_keys(self._index):
            self._rest.begin()  # where it takes none, it says itself when it does again
