"""ClientSession: one client on one connection, as the broker's parts see it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from tieredstore.message.buffers import Buffer
    from tieredstore.message.record import StoredMessage

SILENCE_LIMIT_MS: Final = 120_000
"""A client that has not sent a heartbeat for so long is taken for gone."""


class ClientReply(Protocol):
    """What a client answers to a request of the broker: a response of remoting."""

    @property
    def code(self) -> int: ...

    @property
    def remark(self) -> str | None: ...

    @property
    def ext_fields(self) -> Mapping[str, str]: ...

    @property
    def body(self) -> Buffer | Sequence[Buffer]: ...


class ClientSession(Protocol):
    """A client that is connected: a remoting connection, or the telemetry stream of gRPC.

    client_id, language (as RocketMQ names them: JAVA, GO, …) and version (RocketMQ's number of it)
    are those that its last heartbeat said; address: `ip:port` of the peer. When it closes, its
    owner calls `remove_session` of both managers.
    """

    @property
    def client_id(self) -> str: ...

    @property
    def language(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def address(self) -> str: ...

    def notify_consumers_changed(self, group: str) -> None:
        """Tell the client that the members of a group have changed (code 40, one-way). Does nothing
        where the server assigns queues (gRPC). Never raises."""

    def check_transaction(self, message: StoredMessage, transaction_id: str, group: str) -> None:
        """Ask the client what became of a transaction (39, RecoverOrphanedTransaction)."""

    def send_one_way(self, code: int, ext_fields: Mapping[str, str], body: Buffer) -> None:
        """Send a request that the client does not answer. Raises Invalid for a client that cannot
        be asked (gRPC)."""

    async def request(
        self, code: int, ext_fields: Mapping[str, str], body: Buffer, timeout_ms: int
    ) -> ClientReply:
        """Ask the client and wait for its answer. Raises Unavailable when it does not come in time
        or the connection ends, Invalid for a client that cannot be asked (gRPC)."""
        ...


class VerifyResult(msgspec.Struct, frozen=True):
    """What became of a message that a client was told to consume. outcome: Java's name of it
    (CR_SUCCESS, CR_LATER, …), None when the client did not consume it, for the reason."""

    outcome: str | None
    reason: str = ""


@runtime_checkable
class TelemetryClient(ClientSession, Protocol):
    """A client that speaks gRPC: it answers no request of remoting, but commands of its stream."""

    async def verify_message(self, message: StoredMessage, timeout_ms: int) -> VerifyResult:
        """Let the client consume one message (VerifyMessage). Raises Unavailable when no answer
        comes in time or the stream ends, Busy when too many commands wait, Corrupt for a body that
        cannot be inflated."""
        ...

    async def print_thread_stacks(self, timeout_ms: int) -> str:
        """Ask the client what its threads do (PrintThreadStackTrace). Raises Unavailable and Busy
        as `verify_message`, Invalid for a client that does not tell."""
        ...
