"""FileRequestModel: what the plain files of a tier are asked for. None of it has a price."""

from __future__ import annotations

from collections import Counter

from tieredstore.contracts.request_model import Deletions, Requests
from tieredstore.contracts.segment import Capabilities, FileSegmentType

_LOG, _UNITS = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE


class ModelledFiles:
    """A queue as two rows of files; each write and each read is one request."""

    def __init__(self) -> None:
        self._requests: Requests = Counter()
        self._files = {_LOG: 1, _UNITS: 1}

    @property
    def requests(self) -> Requests:
        return self._requests

    @property
    def deletions(self) -> Deletions:
        return Counter()

    @property
    def object_count(self) -> int:
        return sum(self._files.values())

    @property
    def regrouped(self) -> Counter[int]:
        return Counter()

    def append(
        self, log_bytes: int, unit_bytes: int, now_ms: int, *, may_wait: bool = False
    ) -> bool:
        """Write to both files."""
        del log_bytes, unit_bytes, now_ms, may_wait
        self._requests["Write", _LOG.name] += 1
        self._requests["Write", _UNITS.name] += 1
        return False

    def roll(self, file_type: FileSegmentType, now_ms: int) -> None:
        """Begin another file; a seal is nothing."""
        del now_ms
        self._files[file_type] += 1

    def expire(self) -> Requests:
        """Count the removal of a file."""
        return Counter({("Delete", _LOG.name): 1})

    def settle(self, now_ms: int) -> None:
        """Do nothing: there is no upkeep."""

    def reopen(self) -> None:
        """Do nothing: nothing is kept in memory."""

    def read(self, file_type: FileSegmentType, position: int, length: int) -> list[int]:
        del file_type, position
        return [length]


class FileRequestModel:
    """The rules of plain files."""

    def __init__(self, capabilities: Capabilities) -> None:
        self._capabilities = capabilities

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def groups(self) -> None:
        return None

    def with_group_bytes(self, group_bytes: int) -> FileRequestModel:
        """Return these rules: each queue has files of its own."""
        del group_bytes
        return self

    @property
    def is_metered(self) -> bool:
        return False

    @property
    def read_operation(self) -> str:
        return "Read"

    @property
    def delete_batch(self) -> int:
        return 1

    @property
    def gather_ms(self) -> int:
        return 1

    def make_queue(self, share: float) -> ModelledFiles:
        """Make an empty queue; there is nothing to have a share of."""
        del share
        return ModelledFiles()

    def count_a_day(self, objects: int) -> Requests:
        """Count nothing: files are looked at when they are opened."""
        del objects
        return Counter()
