"""Assignment of a topic's queues to the members of a group, with the clients' own strategies."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, Protocol, TypeAlias


class AssignedQueue(NamedTuple):
    """Queue of a broker, sorted as in Java. A `queue_id` of ALL_QUEUES means all queues of the
    broker."""

    topic: str
    broker_name: str
    queue_id: int


class TopicQueues(Protocol):
    """Source of a topic's queues on all brokers."""

    async def list_queues(self, topic: str) -> list[AssignedQueue] | None:
        """Return the queues of a topic in Java's order, or None if no broker has the topic."""


ALL_QUEUES: Final = -1
Queues: TypeAlias = Sequence[AssignedQueue]
Strategy: TypeAlias = Callable[[str, Queues, Sequence[str]], list[AssignedQueue]]
"""Function that returns the queues of one client. Parameters: client id, queues, client ids of the
members. Queues and client ids are sorted and not empty. A client that is not a member gets no
queues."""


def allocate_averagely(
    client_id: str, queues: Queues, client_ids: Sequence[str]
) -> list[AssignedQueue]:
    """Give each member a range of consecutive queues. If the queues do not divide evenly, the first
    members get one more each."""
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    share, rest = divmod(len(queues), len(client_ids))
    begin = index * share + min(index, rest)
    return list(queues[begin : begin + share + (index < rest)])


def allocate_by_circle(
    client_id: str, queues: Queues, client_ids: Sequence[str]
) -> list[AssignedQueue]:
    """Assign the queues to the members in turn."""
    if client_id not in client_ids:
        return []
    return list(queues[client_ids.index(client_id) :: len(client_ids)])


STRATEGIES: Final[Mapping[str, Strategy]] = MappingProxyType(
    {"AVG": allocate_averagely, "AVG_BY_CIRCLE": allocate_by_circle}
)
"""Strategies by the names that clients send."""


def allocate_for_pop(
    strategy: Strategy, client_id: str, queues: Queues, client_ids: Sequence[str], share_count: int
) -> list[AssignedQueue]:
    """Return the queues that a client pops. A client pops its own queues and those of the next
    `share_count` members, so several members may pop the same queue. If `share_count` is 0 or less,
    or at least the number of other members, the client pops all queues. The result then has one
    entry per broker."""
    if share_count <= 0 or share_count >= len(client_ids) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=ALL_QUEUES) for queue in queues))
    if client_id not in client_ids:
        return []
    index = client_ids.index(client_id)
    if len(client_ids) > len(queues):
        return [queues[index % len(queues)]]
    taken: dict[AssignedQueue, None] = {}
    for number in range(share_count + 1):
        member = client_ids[(index + number) % len(client_ids)]
        taken |= dict.fromkeys(strategy(member, queues, client_ids))
    return list(taken)
