"""Service: `apache.rocketmq.v2.MessagingService` over a broker, without any transport.

A method takes a request and a `Call` and returns a message, or an iterator of messages. What goes
wrong is said inside the response; a method that is not served is for the transport to refuse.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

from tieredstore.broker.auth.access import AccessControl
from tieredstore.broker.grpc.access import GrpcAccess
from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.consuming import Consuming
from tieredstore.broker.grpc.producing import Producing
from tieredstore.broker.grpc.routes import Routes
from tieredstore.broker.grpc.sessions import Sessions
from tieredstore.broker.grpc.statuses import Code, Rejected, convert_error, make_status
from tieredstore.broker.grpc.stubs import find_class, list_methods
from tieredstore.broker.grpc.telemetry import Telemetry
from tieredstore.errors import TieredStoreError

if TYPE_CHECKING:
    from tieredstore.broker.services import BrokerServices

Answer = Callable[[Any, Call], Awaitable[Any]]
Stream = Callable[[Any, Call], AsyncGenerator[Any, None]]

_RESPONSES: Final = {method.name: find_class(method.output_type) for method in list_methods()}
_WITHOUT_CLIENT_ID: Final = frozenset({"QueryRoute"})

logger = logging.getLogger(__name__)


class Service:
    """All methods that are served, by name. access: checks calls; None: nobody does."""

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
            "SyncLiteSubscription": _refuse_lite,
        }
        self._streams: dict[str, Stream] = {
            "Telemetry": telemetry.telemetry,
            "ReceiveMessage": consuming.receive_message,
        }

    def serves(self, method: str) -> bool:
        """Tell whether a method is served."""
        return method in self._answers or method in self._streams

    async def answer(self, method: str, request: Any, call: Call) -> Any:
        """Answer a call of one request and one response. Never raises for what a client did."""
        try:
            if not call.client_id and method not in _WITHOUT_CLIENT_ID:
                raise Rejected(Code.CLIENT_ID_REQUIRED, "x-mq-client-id is missing")
            if self._guard is not None:
                self._guard.check(method, request, call)
            return await self._answers[method](request, call)
        except TieredStoreError as error:
            return _RESPONSES[method](status=convert_error(error))
        except Exception:
            logger.exception("%s failed", method)
            return _RESPONSES[method](status=make_status(Code.INTERNAL_SERVER_ERROR))

    async def stream(self, method: str, request: Any, call: Call) -> AsyncGenerator[Any, None]:
        """Answer a call of many responses. Never raises for what a client did."""
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
        except Exception:
            logger.exception("%s failed", method)
            yield _RESPONSES[method](status=make_status(Code.INTERNAL_SERVER_ERROR))

    async def stop(self) -> None:
        """End the telemetry streams and the calls that wait for messages: clients connect anew when
        there is a server again."""
        self._consuming.stop()
        self.sessions.end_all()


async def _refuse_lite(request: Any, call: Call) -> Any:  # noqa: ARG001
    raise Rejected(Code.NOT_IMPLEMENTED, "lite topics are not supported")
