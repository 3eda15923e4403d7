"""Request model: the number of requests that a provider would send, computed without its backend. A
planner passes simulated writes of queues to the model, with simulated times. The model counts the
requests that the provider would send."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

from tieredstore.contracts.segment import Capabilities, FileSegmentType

Requests: TypeAlias = Counter[tuple[str, str]]
"""Number of requests, by operation (S3's name) and file type, as in `RequestUsage`."""


Deletions: TypeAlias = Counter[int]
"""Number of objects that became permanent garbage in each period of `gather_ms`. The key is the
number of the period since the Unix epoch."""


class ModelledQueue(ABC):
    """Model of one queue, starting with its first message. Times are epoch ms and never decrease.
    `requests`: requests until now, without deletions and fence checks, because one such request
    serves many queues. `deletions`: see `Deletions`. `regrouped`: bytes that were rewritten into
    group objects in each period of `regroup_ms`. The key is the number of the period since the Unix
    epoch."""

    def __init__(self) -> None:
        self.requests: Requests = Counter()
        self.deletions: Deletions = Counter()
        self.regrouped: Counter[int] = Counter()

    @property
    @abstractmethod
    def object_count(self) -> int:
        """Number of objects of the queue, without garbage."""

    @abstractmethod
    def append(
        self, log_bytes: int, unit_bytes: int, now_ms: int, *, may_wait: bool = False
    ) -> bool:
        """Write messages, then their units, at the ends of the queue's two files. Returns whether
        the bytes are stored together with writes of other queues. In that case no request of this
        queue is counted. `may_wait`: as `Companion.may_wait`."""

    @abstractmethod
    def roll(self, file_type: FileSegmentType, now_ms: int) -> None:
        """Seal a file's last segment, and begin the next segment."""

    def record_times(self, *, lists: bool, deletes: bool) -> None:  # noqa: B027
        """Count the requests that write the record of a segment's store times. Default: no request.
        `lists`: whether existing records are listed before the write. `deletes`: whether outdated
        records are deleted after the write."""

    @abstractmethod
    def expire(self) -> Requests:
        """Return the requests that delete the first, sealed segment of the commit log."""

    @abstractmethod
    def read(self, file_type: FileSegmentType, position: int, length: int) -> list[int]:
        """Read bytes of one of the queue's two files. `position`: offset in the whole file (bytes).
        Returns the sizes (bytes) of the requests that the read needs, which are sent concurrently.
        Bytes in memory need no request."""

    def settle(self, now_ms: int) -> None:  # noqa: B027
        """Do all work that is due by `now_ms`, such as merging objects. Default: no work."""

    def reopen(self) -> None:  # noqa: B027
        """Drop the writer's caches of this queue. Default: no caches."""


@dataclass(frozen=True, slots=True)
class GroupRules:
    """Rules of group objects, which hold writes of many queues. `setting`: configuration key of
    `group_bytes`. `group_bytes`: size of waiting writes at which a group object is stored
    immediately, or 0 for no groups. `regroup_ms`: interval at which group objects are rewritten in
    queue order, into objects of `regrouped_bytes`. `kept_ms`: maximum time that a group object is
    kept."""

    setting: str
    group_bytes: int
    regroup_ms: int
    regrouped_bytes: int
    kept_ms: int


class RequestModel(ABC):
    """Rules for the requests of one backend. `groups`: None if queues cannot share objects.
    `is_metered`: whether requests have a price. `read_operation`: operation under which a read is
    counted. `delete_batch`: number of objects that one request deletes. `gather_ms`: time for which
    garbage of all queues is collected before it is deleted."""

    capabilities: Capabilities
    groups: GroupRules | None = None
    is_metered = False
    read_operation = "Read"
    delete_batch = 1
    gather_ms = 1

    @abstractmethod
    def make_queue(self, share: float) -> ModelledQueue:
        """Create an empty queue. `share`: its share (0 to 1) of common resources such as caches."""

    def with_group_bytes(self, group_bytes: int) -> RequestModel:
        """Return these rules with a different minimum size of group objects. By default, returns
        the same rules, for a backend without group objects."""
        del group_bytes
        return self

    def count_a_day(self, objects: int) -> Requests:
        """Return the number of requests per day that a broker sends even without writes. `objects`:
        number of objects in the tier."""
        del objects
        return Counter()


@runtime_checkable
class ModelledProvider(Protocol):
    """Provider that has a model of its requests."""

    def make_request_model(self) -> RequestModel: ...
