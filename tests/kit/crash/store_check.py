"""Checks of a store's content after a crash against the recorded puts and acknowledgements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from tieredstore.contracts.dispatch_source import QueueKey
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.hashes import tags_code
from tieredstore.message.record import StoredMessage


@dataclass(frozen=True, slots=True)
class Put:
    """Fact in a recording: a put begins. `bodies`: bodies of its messages, unique within the
    recording."""

    topic: str
    queue_id: int
    bodies: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Fact in a recording: all previous puts are acknowledged."""


@dataclass(frozen=True, slots=True)
class Deleting:
    """Fact in a recording: the deletion of a topic begins or, with `is_done`, ends."""

    topic: str
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class Cleaning:
    """Fact in a recording: from now on, the oldest commit log files may be deleted."""


@dataclass(slots=True)
class Contents:
    """Content of a store. `offsets` maps queues to their offset ranges [min, max)."""

    offsets: dict[QueueKey, tuple[int, int]] = field(default_factory=dict)
    messages: dict[QueueKey, list[StoredMessage]] = field(default_factory=dict)

    def bodies(self) -> dict[QueueKey, list[bytes]]:
        return {key: [bytes(it.body) for it in rows] for key, rows in self.messages.items() if rows}


def read_contents(store: DefaultMessageStore) -> Contents:
    """Return all user messages of a started store, read by gets."""
    store.wait_until_dispatched()
    contents = Contents()
    for key in store.dispatch_source.queues():
        if key.topic.startswith("rmq_sys_"):
            continue
        low = store.get_min_offset_in_queue(*key)
        high = store.get_max_offset_in_queue(*key)
        contents.offsets[key] = (low, high)
        rows = contents.messages.setdefault(key, [])
        offset = low
        while offset < high:
            got = store.get_message("g", key.topic, key.queue_id, offset, 32)
            assert got.status is GetMessageStatus.FOUND, (key, offset, low, high, got.status)
            rows += got.messages
            assert got.next_begin_offset > offset
            offset = got.next_begin_offset
        assert [it.queue_offset for it in rows] == list(range(low, high)), (key, low, high)
        # The tags codes of the units, or of the records.
        assert all(it.tags_code == tags_code(it.tags) for it in rows), (key, low, high)
    return contents


def check_contents(contents: Contents, facts: Sequence[object]) -> None:
    """Assert that the content is a prefix of the puts and includes all acknowledged messages.
    Messages of a deleted topic must be gone. An unfinished deletion may have removed all messages
    of a topic or none."""
    puts: list[Put] = []
    lives: dict[str, int] = defaultdict(int)
    life_of: dict[bytes, int] = {}
    topic_of: dict[bytes, str] = {}
    promised = 0
    gone: dict[str, int] = defaultdict(int)
    maybe_gone: dict[str, int] = defaultdict(int)
    for fact in facts:
        match fact:
            case Put():
                puts.append(fact)
                for body in fact.bodies:
                    life_of[body] = lives[fact.topic]
                    topic_of[body] = fact.topic
            case Acknowledged():
                promised = len(puts)
            case Deleting(topic, is_done):
                if is_done:
                    gone[topic] = lives[topic]
                else:
                    lives[topic] += 1
                    maybe_gone[topic] = lives[topic]
    found: dict[bytes, QueueKey] = {}
    for key, bodies in contents.bodies().items():
        for body in bodies:
            assert body not in found, f"{body!r} is there twice"
            found[body] = key
    expected_order: dict[QueueKey, list[bytes]] = defaultdict(list)
    missing_after: bytes | None = None
    may_have_expired = Cleaning() in facts
    for number, put in enumerate(puts):
        key = QueueKey(put.topic, put.queue_id)
        there = [body for body in put.bodies if body in found]
        life = life_of[put.bodies[0]]
        if life < gone[put.topic]:
            assert not there, f"{there!r} of a deleted topic are there"
            continue
        if there and missing_after is not None:
            raise AssertionError(f"{there!r} are there, {missing_after!r} before them is not")
        # A batch that was not acknowledged may be torn between two of its records.
        assert there == list(put.bodies[: len(there)]), f"of {put.bodies!r} {there!r} are there"
        if len(there) < len(put.bodies):
            if not there and (life < maybe_gone[put.topic] or may_have_expired):
                continue  # the deletion, or the cleaning, may be on disk
            assert number >= promised, f"{put.bodies!r} was acknowledged, {there!r} are there"
            missing_after = put.bodies[len(there)]
        may_have_expired &= not there  # only the oldest go
        expected_order[key] += there
    for body in found:
        assert body in topic_of, f"{body!r} was never put"
    got = contents.bodies()
    for key, bodies in expected_order.items():
        assert got.get(key, []) == bodies, key
