"""All file-based consume queues of a store with `enableConsumeQueueExt`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.local.positional_files import PositionalFiles
from tieredstore.local.queues.consume_queue_store import ConsumeQueueStore
from tieredstore.local.queues.extension.consume_queue import ExtendedConsumeQueue
from tieredstore.local.queues.extension.files import EXTENSION_DIRECTORY, ConsumeQueueExt
from tieredstore.local.queues.interface import LogSpan, QueueUnits
from tieredstore.local.queues.names import check_queue_name
from tieredstore.message.names import LMQ_PREFIX


class ExtendedConsumeQueueStore(ConsumeQueueStore):
    """A `ConsumeQueueStore` that puts what units hold in extensions. Light queues have none, as in
    Java. extension_file_size: bytes."""

    def __init__(
        self, root: Path, files: PositionalFiles, file_size: int, extension_file_size: int
    ) -> None:
        super().__init__(root, files, file_size)
        self._extension_directory = root / EXTENSION_DIRECTORY
        self._extension_file_size = extension_file_size

    def load(self) -> None:
        """Open every queue and find its tail. Raises Corrupt, Invalid or Unavailable."""
        super().load()
        for key in self._find_kept(self._extension_directory):
            if key not in self._queues:  # of a queue that was deleted
                folder = self._extension_directory / key.topic / str(key.queue_id)
                self._files.delete_folder(folder)

    def load_kept(self) -> LogSpan | None:
        """Take nothing: what units hold in the extensions is found as they are read."""
        return None

    def keep(self, log: LogSpan) -> None:
        """Leave nothing."""

    def _make_queue(self, key: QueueKey) -> ExtendedConsumeQueue:
        check_queue_name(key)
        place = Path(key.topic) / str(key.queue_id)
        return ExtendedConsumeQueue(
            key.topic,
            key.queue_id,
            self._directory / place,
            self._files,
            self._file_size,
            ConsumeQueueExt(
                self._extension_directory / place, self._files, self._extension_file_size
            ),
            self._note_dirty,
        )

    def append(self, groups: Sequence[QueueUnits], dispatched_offset: int) -> None:
        """Put the units of a round of dispatch, queue by queue, with what they hold in the
        extensions."""
        for group in groups:
            queue = self.get_or_create(group.key)
            if group.key.topic.startswith(LMQ_PREFIX):
                super().append([group], dispatched_offset)
            else:
                assert isinstance(queue, ExtendedConsumeQueue)
                queue.append_extended(group)
