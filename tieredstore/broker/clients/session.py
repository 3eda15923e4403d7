"""Connected clients of both protocols and their subscriptions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Protocol, Self, runtime_checkable

import msgspec

from tieredstore.broker.auth.access import Caller
from tieredstore.message.buffers import Buffer
from tieredstore.message.record import StoredMessage
from tieredstore.message.tag_filter import SUBSCRIBE_ALL, parse_tags

TAG: Final = "TAG"
SQL92: Final = "SQL92"


class Subscription(msgspec.Struct, frozen=True):
    """Subscription of a consumer (Java's SubscriptionData). `expression`: tags separated by `||`,
    or `*`, or an SQL92 expression, depending on `expression_type`. `version`: creation time, epoch
    ms. `tags`: tags in the expression, empty for all messages."""

    topic: str
    expression: str = SUBSCRIBE_ALL
    expression_type: str = TAG
    version: int = 0
    tags: frozenset[str] = frozenset()

    @classmethod
    def parse(
        cls,
        topic: str,
        expression: str | None,
        expression_type: str | None = None,
        version: int = 0,
    ) -> Self:
        """Parse a subscription to a topic. None or an empty string selects all messages. SQL92
        expressions are parsed later, by `pull.filters`."""
        expression = expression or SUBSCRIBE_ALL
        kind = expression_type or TAG
        if kind != TAG:
            return cls(topic, expression, kind, version)
        tags = parse_tags(expression)
        if not tags:
            return cls(topic, SUBSCRIBE_ALL, TAG, version)
        return cls(topic, expression, TAG, version, tags)


SILENCE_LIMIT_MS: Final = 120_000
"""Time without a heartbeat (ms) after which a client is removed."""


class ClientReply(Protocol):
    """Response of a client to a request of the broker."""

    @property
    def code(self) -> int: ...

    @property
    def remark(self) -> str | None: ...

    @property
    def ext_fields(self) -> Mapping[str, str]: ...

    @property
    def body(self) -> Buffer | Sequence[Buffer]: ...


class ClientSession(Protocol):
    """Connected client: a remoting connection or a gRPC telemetry stream. `client_id`, `language`
    (RocketMQ's name: JAVA, GO, …) and `version` (RocketMQ's version number) come from the last
    heartbeat. `address`: `ip:port` of the peer. `caller`: signer of that heartbeat. When the
    session closes, its owner calls `remove_session` of ProducerManager and ConsumerManager."""

    @property
    def client_id(self) -> str: ...

    @property
    def language(self) -> str: ...

    @property
    def version(self) -> int: ...

    @property
    def address(self) -> str: ...

    @property
    def caller(self) -> Caller: ...

    def notify_consumers_changed(self, group: str) -> None:
        """Notify the client that the members of a group changed (request code 40, one-way). No-op
        for gRPC, where the server assigns the queues. Never raises."""

    def check_transaction(self, message: StoredMessage, transaction_id: str, group: str) -> None:
        """Ask the client for the outcome of a transaction (request code 39, or
        RecoverOrphanedTransaction in gRPC)."""

    def send_one_way(self, code: int, ext_fields: Mapping[str, str], body: Buffer) -> None:
        """Send a request that gets no response. Raises Invalid for a gRPC client."""

    async def request(
        self, code: int, ext_fields: Mapping[str, str], body: Buffer, timeout_ms: int
    ) -> ClientReply:
        """Send a request and wait for its response. Raises Unavailable on timeout or if the
        connection is lost, and Invalid for a gRPC client."""


class VerifyResult(msgspec.Struct, frozen=True):
    """Result of asking a client to consume a message. `outcome`: Java's name (CR_SUCCESS, CR_LATER,
    …), or None with a reason if the client did not consume the message."""

    outcome: str | None
    reason: str = ""


@runtime_checkable
class TelemetryClient(ClientSession, Protocol):
    """gRPC client that accepts commands on its telemetry stream instead of remoting requests."""

    async def verify_message(self, message: StoredMessage, timeout_ms: int) -> VerifyResult:
        """Ask the client to consume a message (VerifyMessage). Raises Unavailable on timeout or if
        the stream ends, Busy if too many commands are pending, and Corrupt for a body that cannot
        be decompressed."""

    async def print_thread_stacks(self, timeout_ms: int) -> str:
        """Return the client's thread stacks (PrintThreadStackTrace). Raises Invalid if the client
        does not support the command, and Unavailable or Busy like `verify_message`."""
