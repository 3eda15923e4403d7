"""Put hooks: what a broker does with a message before it is stored (delays, transactions, quotas).

A store without hooks pays nothing for them: `put_message` is then the appender's own method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tieredstore.contracts.message_store import PutMessageHook, PutMessageResult
from tieredstore.message.encoding import Message


class HookedPuts:
    """Runs hooks, in the order in which they were added, and then the puts of a store."""

    def __init__(
        self,
        put: Callable[[Message], PutMessageResult],
        put_batch: Callable[[Sequence[Message]], PutMessageResult],
    ) -> None:
        self._put = put
        self._put_batch = put_batch
        self._hooks: tuple[PutMessageHook, ...] = ()

    def add(self, hook: PutMessageHook) -> None:
        """Add a hook behind those that are there, for the puts that come from now on."""
        self._hooks = (*self._hooks, hook)

    def put(self, message: Message) -> PutMessageResult:
        """Put a message as the hooks leave it, unless one of them ends the put. Raises what a hook
        raises; then nothing is stored."""
        # What `_run` does, without the call.
        for hook in self._hooks:
            found = hook(message)
            if found is not None:
                if isinstance(found, PutMessageResult):
                    return found
                message = found
        return self._put(message)

    def put_batch(self, messages: Sequence[Message]) -> PutMessageResult:
        """Put messages as the hooks leave them: none of them when a hook ends the put of one."""
        left: list[Message] = []
        for message in messages:
            found = self._run(message)
            if isinstance(found, PutMessageResult):
                return found
            left.append(found)
        return self._put_batch(left)

    def _run(self, message: Message) -> Message | PutMessageResult:
        for hook in self._hooks:
            found = hook(message)
            if isinstance(found, PutMessageResult):
                return found
            if found is not None:
                message = found
        return message
