"""HandlerTable: which function answers which request code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

from tieredstore.broker.remoting.codes import ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection

Handler: TypeAlias = Callable[
    ["Connection", RemotingCommand],
    Awaitable[RemotingCommand | None] | RemotingCommand | None,
]
"""Answers one request. A plain function is called inline; a coroutine runs as a task, which is
cancelled when the connection ends. None: there is no response (one-way), or `connection.respond`
has sent it. What it raises becomes a response by `errors.respond_to_error`."""


def refuse_unknown_code(_: Connection, request: RemotingCommand) -> RemotingCommand:
    """Answer a code that nobody has registered."""
    return RemotingCommand(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f"request code {request.code} is not supported",
    )


class HandlerTable:
    """Handlers by request code; other codes get REQUEST_CODE_NOT_SUPPORTED."""

    def __init__(self) -> None:
        self._handlers: dict[int, Handler] = {}

    def register(self, code: int, handler: Handler) -> None:
        """Let a handler answer a code. One code has one handler."""
        assert code not in self._handlers, f"two handlers of request code {code}"
        self._handlers[int(code)] = handler

    def find(self, code: int) -> Handler:
        """Return who answers a code."""
        return self._handlers.get(code, refuse_unknown_code)

    @property
    def codes(self) -> frozenset[int]:
        """The codes that are served."""
        return frozenset(self._handlers)
