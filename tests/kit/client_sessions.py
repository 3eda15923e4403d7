"""Client sessions that record the messages sent to them."""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.broker.auth.access import ANYBODY
from tieredstore.broker.clients.session import ClientReply
from tieredstore.errors import Unavailable
from tieredstore.message.record import StoredMessage


class NotingSession:
    """A session without a connection, which records the messages that the broker sends."""

    def __init__(self, client_id: str) -> None:
        self.client_id = client_id
        self.language = "JAVA"
        self.version = 513
        self.address = "127.0.0.1:1"
        self.caller = ANYBODY
        self.notified: list[str] = []
        self.checked: list[str] = []
        self.sent: list[tuple[int, dict[str, str]]] = []

    def notify_consumers_changed(self, group: str) -> None:
        self.notified.append(group)

    def check_transaction(self, message: StoredMessage, transaction_id: str, group: str) -> None:
        self.checked.append(transaction_id)

    def send_one_way(self, code: int, ext_fields: Mapping[str, str], body: object) -> None:
        self.sent.append((code, dict(ext_fields)))

    async def request(
        self, code: int, ext_fields: Mapping[str, str], body: object, timeout_ms: int
    ) -> ClientReply:
        raise Unavailable("nobody is there")
