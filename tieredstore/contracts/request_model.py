"""What a backend would be asked for: a provider's own rules, without its backend.

Who plans ahead gives such a model the writes of queues, on a clock of its own, and gets requests
counted that nobody sends.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from tieredstore.contracts.segment import Capabilities, FileSegmentType

Requests: TypeAlias = Counter[tuple[str, str]]
"""How many, by operation, as S3 calls it, and file type, as `RequestUsage` has them."""


Deletions: TypeAlias = Counter[int]
"""Objects that became garbage for good, by when: the number of the `gather_ms` since the epoch."""


class ModelledQueue(Protocol):
    """One queue, written from its begin on. Times: epoch ms, never falling."""

    @property
    def requests(self) -> Requests:
        """So far; without deletions and looks, which queues share."""
        ...

    @property
    def deletions(self) -> Deletions: ...

    @property
    def object_count(self) -> int:
        """Objects that are there, garbage left out."""
        ...

    @property
    def regrouped(self) -> Counter[int]:
        """Bytes that were written to group objects anew, by the number of the `regroup_ms` since
        the epoch."""
        ...

    def append(
        self, log_bytes: int, unit_bytes: int, now_ms: int, *, may_wait: bool = False
    ) -> bool:
        """Write messages, then their units, at the ends of the queue's two files. may_wait: as
        `Companion.may_wait`. Returns whether they go with those of other queues: then it is no
        request of this queue."""
        ...

    def roll(self, file_type: FileSegmentType, now_ms: int) -> None:
        """Seal a file's last segment, and begin another one."""
        ...

    def expire(self) -> Requests:
        """Return what it takes to delete the first segment of the commit log, were it sealed."""
        ...

    def settle(self, now_ms: int) -> None:
        """Do all work that is due until then."""
        ...

    def reopen(self) -> None:
        """Forget what its writer has in memory of it."""
        ...

    def read(self, file_type: FileSegmentType, position: int, length: int) -> list[int]:
        """Read bytes of one of the two files, `position` in the whole file; returns the sizes of
        the requests that are sent side by side. What is kept in memory needs none."""
        ...


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Writes of many queues in one object. setting: what sets group_bytes, the size from which on
    it is stored at once; 0: each queue's writes by themselves. regroup_ms: how often they are
    written again in the order of queues, in objects of regrouped_bytes, which are kept for kept_ms
    at most."""

    setting: str
    group_bytes: int
    regroup_ms: int
    regrouped_bytes: int
    kept_ms: int


class RequestModel(Protocol):
    """The rules of one backend."""

    @property
    def groups(self) -> GroupRules | None:
        """How queues share objects; None where they cannot."""
        ...

    def with_group_bytes(self, group_bytes: int) -> RequestModel:
        """Return the rules with another size of groups, where there are any."""
        ...

    @property
    def capabilities(self) -> Capabilities: ...

    @property
    def is_metered(self) -> bool:
        """Whether requests have a price there."""
        ...

    @property
    def read_operation(self) -> str:
        """What a read is called."""
        ...

    @property
    def delete_batch(self) -> int:
        """Objects that one request deletes."""
        ...

    @property
    def gather_ms(self) -> int:
        """For so long garbage of all queues is gathered before it is deleted."""
        ...

    def make_queue(self, share: float) -> ModelledQueue:
        """Make an empty queue with that share of what queues have in common, such as caches."""
        ...

    def count_a_day(self, objects: int) -> Requests:
        """Count what a broker asks for a day, whatever it writes, with so many objects in its
        tier."""
        ...


@runtime_checkable
class ModelledProvider(Protocol):
    """A provider that knows what its backend is asked for."""

    def make_request_model(self) -> RequestModel: ...
