"""What reading blocks asks of a queue in the tier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tieredstore.tier.reading import Reading


class ReadableQueue(Protocol):
    """The part of a `FlatMessageFile` that is read; offsets in messages for units, in bytes for
    the commit log."""

    topic: str
    queue_id: int

    @property
    def commit_log_min_offset(self) -> int: ...
    @property
    def commit_log_commit_offset(self) -> int: ...
    def next_valid_offset(self, offset: int) -> int: ...
    def read_units(self, offset: int, count: int) -> Reading[npt.NDArray[np.void]]: ...
    def read_commit_log(self, offset: int, length: int) -> Reading[memoryview]: ...
