"""`IndexStoreFile`: one index file of the tier, on the local disk or uploaded, and its status."""

from __future__ import annotations

from enum import Enum


class IndexStatus(Enum):
    """Where an index file stands in its life, by Java's names."""

    UNSEALED = "unsealed"
    """On the local disk; takes keys. At most one file of a broker."""
    SEALED = "sealed"
    """On the local disk; full, or closed to further keys; the next to be uploaded."""
    UPLOAD = "upload"
    """Compacted, in an INDEX segment of the tier; read only."""
    SHUTDOWN = "shutdown"
    """Closed by the process, or removed; takes no keys. A query that began before may end."""


class IndexStoreFile:
    """What `LocalIndexStoreFile` and `UploadedIndexStoreFile` have in common.

    begin_ms: what the times of the items are relative to, and the name of a local file.
    """

    def __init__(self, begin_ms: int, status: IndexStatus) -> None:
        self.begin_ms = begin_ms
        self.status = status

    def seal(self) -> None:
        """Take no more keys. Does nothing unless the file is UNSEALED."""
        if self.status is IndexStatus.UNSEALED:
            self.status = IndexStatus.SEALED

    def close(self) -> None:
        """Release what the file holds of the system; SHUTDOWN from now on."""
        self.status = IndexStatus.SHUTDOWN
