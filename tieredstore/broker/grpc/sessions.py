"""The clients' telemetry streams, as sessions of the broker."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.clients import VerifyResult
from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.messages import make_message, make_transaction_message
from tieredstore.broker.grpc.statuses import Code, Rejected, make_status, show_status
from tieredstore.broker.grpc.stubs import TelemetryCommand, list_values
from tieredstore.errors import Busy, Invalid, Unavailable

if TYPE_CHECKING:
    from tieredstore.broker.clients.session import ClientReply
    from tieredstore.message.buffers import Buffer
    from tieredstore.message.record import StoredMessage

MAX_SESSIONS: Final = 10_000
_COMMAND_LIMIT: Final = 256
_QUESTION_LIMIT: Final = 64
"""Commands of which a client has not said what came of them."""
_VERSION_5_0_0: Final = 413
"""RocketMQ's number of the version that a gRPC client is shown as, as by Java's proxy."""
_OUTCOMES: Final = {
    Code.OK: "CR_SUCCESS",
    Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
}
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
    """One telemetry stream: what its client said last, and the commands that go to it. call: that
    opened it."""

    version = _VERSION_5_0_0

    def __init__(self, call: Call) -> None:
        self.call = call
        self.client_id = call.client_id
        self.address = call.peer
        self.language = call.language
        self.settings: Any = None
        self.commands: asyncio.Queue[Any] = asyncio.Queue(_COMMAND_LIMIT)
        self._questions: dict[str, asyncio.Future[Any]] = {}  # by nonce

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
        for question in self._questions.values():
            question.cancel()

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

    async def verify_message(self, message: StoredMessage, timeout_ms: int) -> VerifyResult:
        """Let the client consume one message."""
        command = TelemetryCommand()
        command.verify_message_command.message.CopyFrom(make_message(message))
        answer = await self._ask(command, command.verify_message_command, timeout_ms)
        outcome = _OUTCOMES.get(answer.status.code)
        return VerifyResult(outcome, "" if outcome else show_status(answer.status))

    async def print_thread_stacks(self, timeout_ms: int) -> str:
        """Ask the client what its threads do."""
        command = TelemetryCommand()
        command.print_thread_stack_trace_command.SetInParent()
        answer = await self._ask(command, command.print_thread_stack_trace_command, timeout_ms)
        if answer.status.code != Code.OK:
            raise Invalid(f"client {self.client_id}: {show_status(answer.status)}")
        return str(answer.thread_stack_trace.thread_stack_trace)

    async def _ask(self, command: Any, question: Any, timeout_ms: int) -> Any:
        """Send a command with a question in it and wait for the client's answer."""
        if len(self._questions) >= _QUESTION_LIMIT:
            raise Busy(f"client {self.client_id}: {_QUESTION_LIMIT} commands wait for an answer")
        question.nonce = nonce = uuid.uuid4().hex
        answer = self._questions[nonce] = asyncio.get_running_loop().create_future()
        try:
            if not self.send(command):
                raise Busy(f"client {self.client_id} takes no commands")
            done, _ = await asyncio.wait({answer}, timeout=timeout_ms / 1000)
        finally:
            del self._questions[nonce]
        if not done:
            raise Unavailable(f"no answer in {timeout_ms} ms")
        if answer.cancelled():
            raise Unavailable("its stream has ended")
        return answer.result()

    def take_answer(self, nonce: str, command: Any) -> None:
        """Take what the client says to a question; too late for one that is over."""
        question = self._questions.get(nonce)
        if question is not None and not question.done():
            question.set_result(command)

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
