"""Service: `apache.rocketmq.v2.MessagingService` for a broker, without a transport. A method takes
a request and a `Call`, and returns a message or an iterator of messages. Errors are reported in the
status of the response. The transport rejects unknown methods."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.auth.access import AccessControl
from tieredstore.broker.grpc.access import GrpcAccess
from tieredstore.broker.grpc.consuming import Consuming
from tieredstore.broker.grpc.lite import LiteSubscribing
from tieredstore.broker.grpc.message_types import find_class, list_methods
from tieredstore.broker.grpc.producing import Producing, Routes
from tieredstore.broker.grpc.protocol import (
    Call,
    Code,
    Rejected,
    convert_error,
    make_status,
)
from tieredstore.broker.grpc.sessions import Sessions
from tieredstore.broker.grpc.telemetry import Telemetry
from tieredstore.broker.peer_warnings import PEERS
from tieredstore.broker.services import BrokerServices
from tieredstore.errors import TieredStoreError

if TYPE_CHECKING:
    from google.protobuf.message import Message as ProtocolMessage

    from tieredstore.broker.grpc.server import Request

Answer = Callable[[Any, Call], Awaitable["ProtocolMessage"]]
Stream = Callable[[Any, Call], AsyncGenerator["ProtocolMessage", None]]

_RESPONSES: Final = {method.name: find_class(method.output_type) for method in list_methods()}
_WITHOUT_CLIENT_ID: Final = frozenset({"QueryRoute"})


class Service:
    """Methods of the service by name. `access` checks calls. Without it, calls are not checked."""

    def __init__(self, broker: BrokerServices, access: AccessControl | None = None) -> None:
        guard = self._guard = None if access is None else GrpcAccess(access)
        self.sessions = Sessions()
        routes = Routes(broker)
        telemetry = Telemetry(broker, self.sessions, guard)
        producing = Producing(broker)
        consuming = self._consuming = Consuming(broker, self.sessions)
        self._answers: dict[str, Answer] = {
            "QueryRoute": routes.query_route,
            "QueryAssignment": routes.query_assignment,
            "Heartbeat": telemetry.heartbeat,
            "NotifyClientTermination": telemetry.notify_client_termination,
            "SendMessage": producing.send_message,
            "EndTransaction": producing.end_transaction,
            "RecallMessage": producing.recall_message,
            "AckMessage": consuming.ack_message,
            "ChangeInvisibleDuration": consuming.change_invisible_duration,
            "ForwardMessageToDeadLetterQueue": consuming.forward_to_dead_letters,
            "SyncLiteSubscription": LiteSubscribing(broker, self.sessions).sync,
        }
        self._streams: dict[str, Stream] = {
            "Telemetry": telemetry.telemetry,
            "ReceiveMessage": consuming.receive_message,
        }

    def serves(self, method: str) -> bool:
        return method in self._answers or method in self._streams

    async def answer(self, method: str, request: ProtocolMessage, call: Call) -> Any:
        """Answer a call that has one response. Never raises because of a client's error."""
        try:
            if not call.client_id and method not in _WITHOUT_CLIENT_ID:
                raise Rejected(Code.CLIENT_ID_REQUIRED, "x-mq-client-id is missing")
            if self._guard is not None:
                self._guard.check(method, request, call)
            return await self._answers[method](request, call)
        except TieredStoreError as error:
            return _RESPONSES[method](status=convert_error(error))
        except Exception as error:
            _note(method, error)
            return _RESPONSES[method](status=make_status(Code.INTERNAL_SERVER_ERROR))

    async def stream(self, method: str, request: Request, call: Call) -> AsyncGenerator[Any, None]:
        """Answer a call that has many responses. Never raises because of a client's error."""
        try:
            if not call.client_id:
                raise Rejected(Code.CLIENT_ID_REQUIRED, "x-mq-client-id is missing")
            if self._guard is not None:
                self._guard.check(method, request, call)
            async with aclosing(self._streams[method](request, call)) as responses:
                async for response in responses:
                    yield response
        except TieredStoreError as error:
            yield _RESPONSES[method](status=convert_error(error))
        except Exception as error:
            _note(method, error)
            yield _RESPONSES[method](status=make_status(Code.INTERNAL_SERVER_ERROR))

    async def stop(self) -> None:
        """End the telemetry streams and wake the waiting calls. Clients reconnect when a server is
        available."""
        self._consuming.stop()
        self.sessions.end_all()


def _note(method: str, error: Exception) -> None:
    PEERS.note("failed gRPC calls", f"{method} failed: {error!r}", error)
