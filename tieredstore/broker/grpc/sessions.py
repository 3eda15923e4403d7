"""Telemetry streams of gRPC clients. Each stream is the session of its client."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from typing import Final

from tieredstore.broker.clients.session import ClientReply, VerifyResult
from tieredstore.broker.grpc import protocol
from tieredstore.broker.grpc.message_types import (
    Language,
    PrintThreadStackTraceCommand,
    Settings,
    TelemetryCommand,
    VerifyMessageCommand,
)
from tieredstore.broker.grpc.messages import make_message, make_transaction_message
from tieredstore.broker.hosts import HostShares, name_host
from tieredstore.broker.peer_warnings import PEERS
from tieredstore.errors import Busy, Invalid, Unavailable
from tieredstore.message.buffers import Buffer
from tieredstore.message.record import StoredMessage

MAX_SESSIONS: Final = 10_000
_COMMAND_LIMIT: Final = 256
_QUESTION_LIMIT: Final = 64
"""Maximum number of unanswered commands per client."""
_VERSION_5_0_0: Final = 413
"""Version that is reported for each gRPC client, as by Java's proxy: RocketMQ's number for
5.0.0."""
_OUTCOMES: Final[dict[int, str]] = {
    protocol.Code.OK: "CR_SUCCESS",
    protocol.Code.FAILED_TO_CONSUME_MESSAGE: "CR_LATER",
    protocol.Code.MESSAGE_CORRUPTED: "CR_RETURN_NULL",
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
_LANGUAGE_NAMES: Final = {number: name for name, number in Language.items()}


class GrpcSession:
    """Telemetry stream with the client's last settings and its unsent commands. `call`: the call
    that opened the stream."""

    version = _VERSION_5_0_0

    def __init__(self, call: protocol.Call) -> None:
        self.call = call
        self.client_id = call.client_id
        self.address = call.peer
        self.caller = call.caller
        self.language = call.language
        self.settings: Settings | None = None
        self.commands: asyncio.Queue[TelemetryCommand | None] = asyncio.Queue(_COMMAND_LIMIT)
        self._questions: dict[str, asyncio.Future[TelemetryCommand]] = {}  # by nonce

    def update_settings(self, settings: Settings) -> None:
        self.settings = settings
        name = _LANGUAGE_NAMES.get(settings.user_agent.language, "")
        self.language = _REMOTING_LANGUAGES.get(name, self.language)

    def send(self, command: TelemetryCommand | None) -> bool:
        """Queue a command for the client. None ends the stream. Returns False if too many commands
        are queued."""
        try:
            self.commands.put_nowait(command)
        except asyncio.QueueFull:
            PEERS.note(
                "gRPC commands dropped",
                f"client {self.client_id!r} takes no commands: one is dropped",
            )
            return False
        return True

    def end(self) -> None:
        """End the stream. Queued commands may be lost."""
        while not self.send(None):
            self.commands.get_nowait()
        for question in self._questions.values():
            question.cancel()

    def notify_consumers_changed(self, group: str) -> None:
        """No-op, because the server assigns the messages of a gRPC group."""

    def check_transaction(
        self,
        message: StoredMessage,
        transaction_id: str,  # noqa: ARG002
        group: str,  # noqa: ARG002
    ) -> None:
        """Ask the producer for the outcome of a transaction. Its answer names the half message by
        id."""
        command = TelemetryCommand()
        recover = command.recover_orphaned_transaction_command
        recover.transaction_id = message.offset_message_id
        topics = () if self.settings is None else self.settings.publishing.topics
        recover.message.CopyFrom(make_transaction_message(message, topics))
        self.send(command)

    async def verify_message(self, message: StoredMessage, timeout_ms: int) -> VerifyResult:
        """Ask the client to consume a message."""
        command = TelemetryCommand()
        command.verify_message_command.message.CopyFrom(make_message(message))
        answer = await self._ask(command, command.verify_message_command, timeout_ms)
        outcome = _OUTCOMES.get(int(answer.status.code))
        return VerifyResult(outcome, "" if outcome else protocol.show_status(answer.status))

    async def print_thread_stacks(self, timeout_ms: int) -> str:
        command = TelemetryCommand()
        command.print_thread_stack_trace_command.SetInParent()
        answer = await self._ask(command, command.print_thread_stack_trace_command, timeout_ms)
        if int(answer.status.code) != protocol.Code.OK:
            raise Invalid(f"client {self.client_id}: {protocol.show_status(answer.status)}")
        return answer.thread_stack_trace.thread_stack_trace

    async def _ask(
        self,
        command: TelemetryCommand,
        question: VerifyMessageCommand | PrintThreadStackTraceCommand,
        timeout_ms: int,
    ) -> TelemetryCommand:
        if len(self._questions) >= _QUESTION_LIMIT:
            raise Busy(f"client {self.client_id}: {_QUESTION_LIMIT} commands wait for an answer")
        question.nonce = nonce = uuid.uuid4().hex
        answer: asyncio.Future[TelemetryCommand] = asyncio.get_running_loop().create_future()
        self._questions[nonce] = answer
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

    def take_answer(self, nonce: str, command: TelemetryCommand) -> None:
        """Handle a client's answer to a command. Late answers are dropped."""
        question = self._questions.get(nonce)
        if question is not None and not question.done():
            question.set_result(command)

    def send_one_way(self, code: int, ext_fields: Mapping[str, str], body: Buffer) -> None:  # noqa: ARG002
        """Raise Invalid, like `request`."""
        raise Invalid(f"client {self.client_id} uses gRPC: request {code} cannot be put to it")

    async def request(
        self,
        code: int,
        ext_fields: Mapping[str, str],  # noqa: ARG002
        body: Buffer,  # noqa: ARG002
        timeout_ms: int,  # noqa: ARG002
    ) -> ClientReply:
        """Raise Invalid, because a gRPC client does not answer remoting requests."""
        raise Invalid(f"client {self.client_id} uses gRPC: request {code} cannot be put to it")


class Sessions:
    """Open telemetry streams. A client that reconnects has two streams for a while, of which the
    newer one is used."""

    def __init__(self, max_sessions: int = MAX_SESSIONS) -> None:
        self._shares = HostShares(max_sessions)
        self._sessions: dict[GrpcSession, None] = {}
        self._by_client: dict[tuple[str, str], GrpcSession] = {}  # by user and client id

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, call: protocol.Call) -> GrpcSession:
        """Open a session. Raises Rejected if there are too many, in total or from the client's
        host."""
        if not self._shares.take(name_host(call.peer)):
            text = f"{len(self._sessions)} clients are connected: no further one of this host"
            raise protocol.Rejected(protocol.Code.TOO_MANY_REQUESTS, text)
        session = GrpcSession(call)
        self._sessions[session] = None
        self._by_client[_key_of(call)] = session
        return session

    def close(self, session: GrpcSession) -> None:
        if session in self._sessions:
            del self._sessions[session]
            self._shares.give_back(name_host(session.address))
        key = _key_of(session.call)
        if self._by_client.get(key) is session:
            del self._by_client[key]

    def find(self, call: protocol.Call) -> GrpcSession | None:
        """Return the session of the client that sent a call. Sessions of other users with the same
        client id are ignored."""
        return self._by_client.get(_key_of(call))

    def end_all(self) -> None:
        """End every stream, so that clients reconnect."""
        for session in list(self._sessions):
            session.end()


def _key_of(call: protocol.Call) -> tuple[str, str]:
    return call.caller.username, call.client_id


def make_status_command(code: protocol.Code, text: str = "") -> TelemetryCommand:
    return TelemetryCommand(status=protocol.make_status(code, text))
