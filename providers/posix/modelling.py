"""Model of the requests to the files of a Posix tier. They have no price."""

from __future__ import annotations

from collections import Counter

from tieredstore.contracts.request_model import ModelledQueue, RequestModel, Requests
from tieredstore.contracts.segment import Capabilities, FileSegmentType

_LOG, _UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


class ModelledFiles(ModelledQueue):
    """Queue as a series of commit log files and consume queue files. Each write or read is one
    request."""

    def __init__(self) -> None:
        super().__init__()
        self._files = {_LOG: 1, _UNITS: 1}

    @property
    def object_count(self) -> int:
        return sum(self._files.values())

    def append(
        self, log_bytes: int, unit_bytes: int, now_ms: int, *, may_wait: bool = False
    ) -> bool:
        """Count a write to a commit log file and to a consume queue file."""
        del log_bytes, unit_bytes, now_ms, may_wait
        self.requests["Write", _LOG.name] += 1
        self.requests["Write", _UNITS.name] += 1
        return False

    def roll(self, file_type: FileSegmentType, now_ms: int) -> None:
        """Begin the next file. A seal needs no request."""
        del now_ms
        self._files[file_type] += 1

    def record_times(self, *, lists: bool, deletes: bool) -> None:
        """Count the write of a file of store times."""
        del lists, deletes
        self.requests["Write", "TIMES"] += 1

    def expire(self) -> Requests:
        """Count the removal of a segment's file."""
        return Counter({("Delete", _LOG.name): 1})

    def read(self, file_type: FileSegmentType, position: int, length: int) -> list[int]:
        del file_type, position
        return [length]


class FileRequestModel(RequestModel):
    """Model of requests to files."""

    def __init__(self, capabilities: Capabilities) -> None:
        self.capabilities = capabilities

    def make_queue(self, share: float) -> ModelledFiles:
        """Create an empty queue. Queues of files share no cache."""
        del share
        return ModelledFiles()
