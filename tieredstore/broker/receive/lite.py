"""LiteQueues: tracks which lite topics may have messages for each client."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from tieredstore.broker.lite.subscriptions import LiteClient, LiteSubscriptions, OffsetOption
from tieredstore.broker.receive.polls import PollKey
from tieredstore.broker.receive.progress import QueueProgress
from tieredstore.broker.receive.requests import ReceiveRequest
from tieredstore.broker.receive.state import ReceiveState
from tieredstore.clock import Clock
from tieredstore.contracts.dispatch_source import find_light
from tieredstore.contracts.message_store import MessageStore
from tieredstore.errors import TieredStoreError
from tieredstore.message.lite import LITE_PREFIX, LITE_QUEUE_ID, make_parent_prefix

_MIN_LOCKS: Final = 64
MAX_LOOKS: Final = 5_000
"""Maximum number of light queues at which one receive looks in a search."""
_PAUSE_S: Final = 0.1
"""Time after which a waiting receive continues its search."""


@dataclass(slots=True)
class _Ready:
    """Up to `most` light queues that may have messages for a client. `after`: light queue after
    which the search for more continues, or None. `is_cut`: True if the search must start over,
    because a queue it may have passed was dropped. `is_over`: True if more queues have messages.
    The search then fills at least half of the places, so that every queue gets its turn. `pause`:
    timer of a search that continues later, or None."""

    most: int
    queues: dict[str, None] = field(default_factory=dict)
    after: str | None = None
    is_cut: bool = False
    is_over: bool = False
    pause: asyncio.TimerHandle | None = None

    def add(self, queue: str, *, is_new: bool) -> None:
        """Add a queue if there is room, or leave it to a search. `is_new`: True if a message has
        arrived."""
        most = self.most // 2 * is_new if self.is_over else self.most
        if queue in self.queues or len(self.queues) < most:
            self.queues[queue] = None
        else:
            self.is_over = True
            self.begin_search()

    def begin_search(self) -> None:
        self.is_cut |= self.after is not None
        self.after = self.after or ""


@dataclass(eq=False)
class LiteQueues:
    """Light queues that may have messages, for each client. A queue with unacknowledged messages is
    not read until they are acknowledged or due again. A queue with neither unacknowledged nor new
    messages takes no memory. `wake`: wakes the waiting receives of a client."""

    state: ReceiveState
    store: MessageStore
    subscriptions: LiteSubscriptions
    clock: Clock
    wake: Callable[[PollKey], object]
    _ready: dict[LiteClient, _Ready] = field(default_factory=dict)
    _locked: list[tuple[int, str, str]] = field(default_factory=list)  # a heap: due ms, group, …
    _most_locks: int = _MIN_LOCKS

    def __post_init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None
        self.subscriptions.on_added = self._note_added
        self.subscriptions.on_ended = lambda client: self._ready.pop(client, None)
        self.subscriptions.set_offset = self._set_offset

    def load(self) -> None:
        """Note the queues with messages that were unacknowledged before a restart."""
        for progress in self.state.list_queues():
            if progress.is_lite and progress.entries:
                self._lock(progress)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def has_ready(self, group: str, client_id: str) -> bool:
        ready = self._ready.get(LiteClient(group, client_id))
        return ready is not None and (
            bool(ready.queues) or (ready.after is not None and ready.pause is None)
        )

    def count_clients(self) -> int:
        """Return how many clients have had messages in lite topics."""
        return len(self._ready)

    def list_ready(self, request: ReceiveRequest) -> Iterator[QueueProgress]:
        """Yield the queues with messages for a client. The caller must pass each queue to `note`
        after reading it."""
        self.release_due()
        client = LiteClient(request.group, request.client_id)
        ready, subscription = self._ready.get(client), self.subscriptions.find(client)
        if ready is None or subscription is None:
            return
        wanted = subscription.queues
        parent = make_parent_prefix(request.topic)
        looks, taken = MAX_LOOKS, set[str]()
        while True:
            if ready.after is not None and looks and len(ready.queues) <= ready.most // 2:
                looks -= self._search(client.group, ready, wanted, parent, looks)
            for queue in [queue for queue in ready.queues if queue not in taken]:
                taken.add(queue)
                ready.queues.pop(queue, None)
                if not queue.startswith(parent) or wanted.isdisjoint((queue, parent)):
                    continue
                progress = self.state.find_queues(request.group, queue).get(LITE_QUEUE_ID)
                if progress is None and self._is_done(request.group, queue):
                    continue
                try:
                    progress = self.state.get_queue(
                        request.group, queue, LITE_QUEUE_ID, is_new=True
                    )
                except TieredStoreError:
                    ready.queues[queue] = None  # the last one: the next receive tries others first
                    raise
                if self._is_available(progress):
                    yield progress
            if ready.after is None or len(ready.queues) > ready.most // 2:
                return
            if not looks:
                if ready.pause is None:
                    loop = asyncio.get_running_loop()
                    ready.pause = loop.call_later(_PAUSE_S, self._resume, client, ready, parent)
                return

    def _resume(self, client: LiteClient, ready: _Ready, parent: str) -> None:
        ready.pause = None
        self._wake(client, parent)

    def _search(self, group: str, ready: _Ready, wanted: set[str], parent: str, looks: int) -> int:
        """Search for more queues with messages for a client until there are enough. Checks up to
        `looks` queues, and returns how many were checked."""
        after = ready.after or ""
        found: Iterable[tuple[str, int]]
        if parent in wanted:
            found = find_light(self.store.dispatch_source).list_light_queues(parent, after)
        else:
            names = sorted(queue for queue in wanted if queue > after)
            found = ((name, 0) for name in names)
        looked = 0
        for queue, found_end in itertools.islice(found, looks):
            looked, ready.after = looked + 1, queue
            progress = self.state.find_queues(group, queue).get(LITE_QUEUE_ID)
            is_done = progress is None and self._is_done(group, queue, found_end)
            if not is_done and (progress is None or self._is_available(progress)):
                ready.queues[queue] = None
                if len(ready.queues) >= ready.most:
                    ready.is_over = True
                    return looked
        if looked < looks:  # the last one, so queues left out before were looked at again
            ready.after = "" if ready.is_cut else None
            ready.is_over, ready.is_cut = ready.is_cut, False
        return max(looked, 1)

    def note(self, progress: QueueProgress, *, wakes: bool = True) -> None:
        """Note a queue whose messages were read, acknowledged or changed. `wakes`: True to wake the
        waiting receives immediately. Otherwise they read within a second. A receive that found
        nothing passes False to avoid waking itself."""
        if progress.locked_until_ms() > self.clock.now_ms():
            self._lock(progress)
        elif self._is_available(progress) and not progress.is_read:
            self._mark_all(progress.topic, progress.group, wakes=wakes)

    def note_arrived(self, queue: str) -> None:
        """Note a new message in a light queue."""
        self._mark_all(queue)

    def mark_all(self, client: LiteClient) -> None:
        """Make the next receive of a client search all its lite topics."""
        subscription = self.subscriptions.find(client)
        if subscription is not None and subscription.queues:
            self._find_ready(client).begin_search()
            self._wake(client, next(iter(subscription.queues)))

    def release_due(self) -> None:
        """Mark the queues whose messages are due for redelivery."""
        now_ms = self.clock.now_ms()
        while self._locked and self._locked[0][0] <= now_ms:
            _, group, queue = heapq.heappop(self._locked)
            progress = self.state.find_queues(group, queue).get(LITE_QUEUE_ID)
            if progress is not None and progress.entries:
                progress.noted_until_ms = 0
                self.note(progress)
        self._set_timer()

    def _mark_all(self, queue: str, group: str | None = None, *, wakes: bool = True) -> None:
        for client in self.subscriptions.list_clients(queue):
            if group is None or client.group == group:
                self._find_ready(client).add(queue, is_new=group is None)
                if wakes:
                    self._wake(client, queue)

    def _find_ready(self, client: LiteClient) -> _Ready:
        if client not in self._ready:
            self._ready[client] = _Ready(self.state.groups.find_max_lite_events(client.group))
        return self._ready[client]

    def _wake(self, client: LiteClient, queue: str) -> None:
        parent = queue.removeprefix(LITE_PREFIX).partition("$")[0]
        self.wake(PollKey(client.group, parent, client_id=client.client_id))

    def _note_added(self, client: LiteClient, queue: str) -> None:
        if queue.endswith("$"):  # all lite topics of a parent
            self.mark_all(client)
        elif self.store.get_max_offset_in_queue(queue, LITE_QUEUE_ID) > 0:
            self._find_ready(client).add(queue, is_new=False)
            self._wake(client, queue)

    def _set_offset(self, group: str, queue: str, option: OffsetOption) -> None:
        offsets = self.state.offsets
        end = self.store.get_max_offset_in_queue(queue, LITE_QUEUE_ID)
        if end <= 0:  # no message yet: the group begins at the first one
            return
        present = offsets.query_offset(group, queue, LITE_QUEUE_ID)
        target: int | None = None
        if option.kind == "POLICY" and option.value == 1:
            target = self.store.get_min_offset_in_queue(queue, LITE_QUEUE_ID)
        elif option.kind == "POLICY" and option.value == 2:
            target = end
        elif option.kind == "OFFSET":
            target = option.value
        elif option.kind == "TAIL_N" and present is not None:
            target = present - option.value
        target = None if target is None else min(max(target, 0), end)
        if target is not None and target != present:
            offsets.check_room(group, queue)
            offsets.commit_offset(group, queue, LITE_QUEUE_ID, target)
            self._mark_all(queue, group)

    def _is_done(self, group: str, queue: str, found_end: int = 0) -> bool:
        end = found_end or self.store.get_max_offset_in_queue(queue, LITE_QUEUE_ID)
        offset = self.state.offsets.query_offset(group, queue, LITE_QUEUE_ID)
        return end <= 0 or (offset is not None and offset == end)

    def _is_available(self, progress: QueueProgress) -> bool:
        if progress.entries:
            return progress.locked_until_ms() <= self.clock.now_ms()
        end = self.store.get_max_offset_in_queue(progress.topic, progress.queue_id)
        return progress.next_offset < end

    def _lock(self, progress: QueueProgress) -> None:
        until_ms = progress.locked_until_ms()
        if progress.noted_until_ms != until_ms:
            progress.noted_until_ms = until_ms
            heapq.heappush(self._locked, (until_ms, progress.group, progress.topic))
            self._forget_old_locks()
            if self._locked[0][0] == until_ms:
                self._set_timer()

    def _forget_old_locks(self) -> None:
        """Drop outdated entries once the list of locked queues has doubled in size."""
        if len(self._locked) > self._most_locks:
            self._locked = sorted(filter(self._is_noted, set(self._locked)))
            self._most_locks = _MIN_LOCKS + 2 * len(self._locked)

    def _is_noted(self, lock: tuple[int, str, str]) -> bool:
        until_ms, group, queue = lock
        progress = self.state.find_queues(group, queue).get(LITE_QUEUE_ID)
        return progress is not None and progress.noted_until_ms == until_ms

    def _set_timer(self) -> None:
        """Set a timer that calls `release_due` when the first queue becomes due."""
        self.stop()
        if self._locked:
            delay_s = max(self._locked[0][0] - self.clock.now_ms(), 0) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self.release_due)
