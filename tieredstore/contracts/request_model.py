"""Request model: counts the requests that a provider would send, without using its backend. A
planner simulates writes to queues at simulated times."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from tieredstore.contracts.segment import Capabilities, FileSegmentType

Requests: TypeAlias = Counter[tuple[str, str]]
"""Number of requests by operation (S3's name) and file type, as in `RequestUsage`."""


Deletions: TypeAlias = Counter[int]
"""Number of objects that became garbage in each period of `gather_ms`. The key is the number of the
period, counted from the Unix epoch."""


class ModelledQueue(ABC):
    """Model of a queue, starting with its first message. Times are epoch ms and never decrease.
    `requests`: requests so far, excluding deletions and fence checks, which serve many queues at
    once. `deletions`: see `Deletions`. `regrouped`: bytes rewritten into group objects in each
    period of `regroup_ms`, with the same kind of key."""

    def __init__(self) -> None:
        self.requests: Requests = Counter()
        self.deletions: Deletions = Counter()
        self.regrouped: Counter[int] = Counter()

    @property
    @abstractmethod
    def object_count(self) -> int:
        """Number of objects of the queue, excluding garbage."""

    @abstractmethod
    def append(
        self, log_bytes: int, unit_bytes: int, now_ms: int, *, may_wait: bool = False
    ) -> bool:
        """Append messages and then their units to the queue's two files. Returns True if the bytes
        are stored together with writes of other queues. No request is counted for this queue then.
        `may_wait`: as in `Companion.may_wait`."""

    @abstractmethod
    def roll(self, file_type: FileSegmentType, now_ms: int) -> None:
        """Seal the last segment of a file and begin the next one."""

    def record_times(self, *, lists: bool, deletes: bool) -> None:  # noqa: B027
        """Count the requests that write a record of a segment's store times. Counts none by
        default. `lists`: True if existing records are listed first. `deletes`: True if outdated
        records are deleted afterwards."""

    @abstractmethod
    def expire(self) -> Requests:
        """Return the requests needed to delete the first segment of the commit log, which is
        sealed."""

    @abstractmethod
    def read(self, file_type: FileSegmentType, position: int, length: int) -> list[int]:
        """Read bytes of one of the queue's two files. `position`: offset in the whole file (bytes).
        Returns the sizes (bytes) of the requests needed, which run concurrently. Cached bytes need
        no request."""

    def settle(self, now_ms: int) -> None:  # noqa: B027
        """Do all work that is due by `now_ms`, such as merging objects. Does nothing by default."""

    def reopen(self) -> None:  # noqa: B027
        """Drop the writer's caches of this queue. Does nothing by default."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Rules for group objects, which hold writes of many queues. `setting`: configuration key of
    `group_bytes`. `group_bytes`: size of pending writes that triggers a new group object, or 0 to
    disable groups. `regroup_ms`: interval at which group objects are rewritten in queue order, into
    objects of `regrouped_bytes`. `kept_ms`: maximum lifetime of a group object."""

    setting: str
    group_bytes: int
    regroup_ms: int
    regrouped_bytes: int
    kept_ms: int


class RequestModel(ABC):
    """Request model of a backend. `groups`: None if queues cannot share objects. `is_metered`: True
    if requests have a price. `read_operation`: operation counted for a read. `delete_batch`: number
    of objects per delete request. `gather_ms`: how long garbage of all queues is collected before
    it is deleted."""

    capabilities: Capabilities
    groups: GroupRules | None = None
    is_metered = False
    read_operation = "Read"
    delete_batch = 1
    gather_ms = 1

    @abstractmethod
    def make_queue(self, share: float) -> ModelledQueue:
        """Create an empty queue. `share`: its share of common resources such as caches, from 0 to
        1."""

    def with_group_bytes(self, group_bytes: int) -> RequestModel:
        """Return a copy of the model with another size of group objects. A model without group
        objects returns itself."""
        del group_bytes
        return self

    def count_a_day(self, objects: int) -> Requests:
        """Return the number of requests per day that an idle broker sends. `objects`: number of
        objects in the tier."""
        del objects
        return Counter()


@runtime_checkable
class ModelledProvider(Protocol):
    """Provider with a model of its requests."""

    def make_request_model(self) -> RequestModel: ...
