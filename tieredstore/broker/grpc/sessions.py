"""The clients' telemetry streams, as sessions of the broker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.messages import make_transaction_message
from tieredstore.broker.grpc.statuses import Code, Rejected, make_status
from tieredstore.broker.grpc.stubs import TelemetryCommand, list_values
from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.broker.clients.session import ClientReply
    from tieredstore.message.buffers import Buffer
    from tieredstore.message.record import StoredMessage

MAX_SESSIONS: Final = 10_000
_COMMAND_LIMIT: Final = 256
_REMOTING_LANGUAGES: Final = {
    "JAVA": "JAVA",
    "CPP": "CPP",
    "DOT_NET": "DOTNET",
    "GOLANG": "GO",
    "RUST": "RUST",
    "PYTHON": "PYTHON",
    "PHP": "PHP",
    "NODE_JS": "NODE_JS",
    "RUBY": "RUBY",
}
_LANGUAGE_NAMES: Final = {number: name for name, number in list_values("Language").items()}

logger = logging.getLogger(__name__)


class GrpcSession:
    """One telemetry stream: what its client said last, and the commands that go to it."""

    version = 0

    def __init__(self, call: Call) -> None:
        self.client_id = call.client_id
        self.address = call.peer
        self.language = call.language
        self.user = call.user
        self.settings: Any = None
        self.commands: asyncio.Queue[Any] = asyncio.Queue(_COMMAND_LIMIT)

    def update_settings(self, settings: Any) -> None:
        """Take the settings that the client sent."""
        self.settings = settings
        name = _LANGUAGE_NAMES.get(settings.user_agent.language, "")
        self.language = _REMOTING_LANGUAGES.get(name, self.language)

    def send(self, command: Any) -> bool:
        """Send a command (None ends the stream); False when too many wait already."""
        try:
            self.commands.put_nowait(command)
        except asyncio.QueueFull:
            logger.warning("client %s takes no commands: one is dropped", self.client_id)
            return False
        return True

    def end(self) -> None:
        """End the stream; what still waits to be sent may be lost."""
        while not self.send(None):
            self.commands.get_nowait()

    def notify_consumers_changed(self, group: str) -> None:
        """Do nothing: the server gives messages to members as they ask."""

    def check_transaction(
        self,
        message: StoredMessage,
        transaction_id: str,  # noqa: ARG002
        group: str,  # noqa: ARG002
    ) -> None:
        """Ask the producer to say again what became of a transaction: it answers with the place of
        the half message."""
        command = TelemetryCommand()
        recover = command.recover_orphaned_transaction_command
        recover.transaction_id = message.offset_message_id
        topics = () if self.settings is None else self.settings.publishing.topics
        recover.message.CopyFrom(make_transaction_message(message, topics))
        self.send(command)

    def send_one_way(self, code: int, ext_fields: Mapping[str, str], body: Buffer) -> None:  # noqa: ARG002
        """Raise Invalid, as `request` does."""
        raise Invalid(f"client {self.client_id} uses gRPC: request {code} cannot be put to it")

    async def request(
        self,
        code: int,
        ext_fields: Mapping[str, str],  # noqa: ARG002
        body: Buffer,  # noqa: ARG002
        timeout_ms: int,  # noqa: ARG002
    ) -> ClientReply:
        """Raise Invalid: a gRPC client answers no requests of remoting."""
        raise Invalid(f"client {self.client_id} uses gRPC: request {code} cannot be put to it")


class Sessions:
    """The open telemetry streams. A client that connects anew has two for a while: the newer one
    counts."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self.max_sessions = max_sessions
        self._sessions: dict[GrpcSession, None] = {}
        self._by_client: dict[str, GrpcSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, call: Call) -> GrpcSession:
        """Begin a session. Raises Rejected when there are too many."""
        if len(self._sessions) >= self.max_sessions:
            raise Rejected(Code.TOO_MANY_REQUESTS, f"{self.max_sessions} clients are connected")
        session = GrpcSession(call)
        self._sessions[session] = None
        self._by_client[session.client_id] = session
        return session

    def close(self, session: GrpcSession) -> None:
        """Forget a session."""
        self._sessions.pop(session, None)
        if self._by_client.get(session.client_id) is session:
            del self._by_client[session.client_id]

    def find(self, client_id: str) -> GrpcSession | None:
        """Find the session of a client."""
        return self._by_client.get(client_id)

    def end_all(self) -> None:
        """End every stream, so that clients connect anew."""
        for session in list(self._sessions):
            session.end()


def make_status_command(code: Code, text: str = "") -> Any:
    """Make the command that says how a client's own one ended."""
    return TelemetryCommand(status=make_status(code, text))
