"""Base class of handlers, shared headers, and JSON request bodies."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import Any, Final, TypeVar

import msgspec

from tieredstore.broker.auth.policies import Action, Want, want_group, want_topic
from tieredstore.broker.receive.requests import split_source
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting import handlers
from tieredstore.broker.remoting.codes import RequestCode, ResponseCode
from tieredstore.broker.remoting.command import Body, RemotingCommand
from tieredstore.broker.remoting.handler_table import (
    Group,
    HandlerTable,
    Outcome,
    RemotingGuard,
    Request,
    RequestHeader,
    Topic,
)
from tieredstore.broker.services import BrokerServices

_Body = TypeVar("_Body")
_Family = TypeVar("_Family", bound="Handlers")
_Header = TypeVar("_Header", bound=RequestHeader)
_Outcome = TypeVar("_Outcome", bound=Outcome)
_Route = tuple[RequestCode, type[RequestHeader], tuple[Action, ...]]
_routes: Final[dict[Callable[..., Outcome], list[_Route]]] = {}


class Handlers:
    """Base class for a family of handlers. Methods decorated with `answers` are the handlers."""

    def __init__(self, broker: BrokerServices) -> None:
        self._broker = broker

    @classmethod
    def register_all(cls, table: HandlerTable, broker: BrokerServices) -> None:
        family = cls(broker)
        for name, method in vars(cls).items():
            for code, header, actions in _routes.get(method, ()) if callable(method) else ():
                table.register(code, getattr(family, name), header, *actions)


def answers(
    code: RequestCode, header: type[_Header], *actions: Action
) -> Callable[
    [Callable[[_Family, Request[_Header]], _Outcome]],
    Callable[[_Family, Request[_Header]], _Outcome],
]:
    """Register a method as the handler of a request code. The sender needs one of the `actions`
    (see `Route`)."""

    def mark(
        method: Callable[[_Family, Request[_Header]], _Outcome],
    ) -> Callable[[_Family, Request[_Header]], _Outcome]:
        _routes.setdefault(method, []).append((code, header, actions))
        return method

    return mark


def list_source_wants(group: str, topics: Iterable[str], *actions: Action) -> Iterator[Want]:
    """Yield the permissions on a group and on topics that it consumes. A retry topic that a Java
    broker created for a group and a topic counts as that topic."""
    yield want_group(group, *actions)
    for topic in dict.fromkeys(split_source(group, topic)[0] for topic in topics):
        yield want_topic(topic, *actions)


class TopicHeader(RequestHeader):
    topic: Topic


class GroupHeader(RequestHeader):
    group: Group


class ConsumerGroupHeader(RequestHeader):
    """Header with a consumer group in the field `consumerGroup`."""

    consumer_group: Group


def decode_body(request: Request[Any], kind: type[_Body]) -> _Body:
    """Decode a JSON body. Raises Refused if it is invalid."""
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = f"request {request.code}: body: {error}"
        raise Refused(Reason.INVALID_PARAMETER, text) from None


def succeed(fields: dict[str, str] | None = None, body: Body = b"") -> RemotingCommand:
    """Return a SUCCESS response."""
    return RemotingCommand(ResponseCode.SUCCESS, fields or {}, body)


def succeed_with(body: object) -> RemotingCommand:
    """Return a SUCCESS response with a JSON body."""
    return succeed(body=msgspec.json.encode(body))


def make_handler_table(
    services: BrokerServices, guard: RemotingGuard | None = None
) -> HandlerTable:
    """Return the handler table of a broker. `guard`: checks each request."""
    table = HandlerTable(guard)
    for module in pkgutil.walk_packages(handlers.__path__, f"{handlers.__name__}."):
        import_module(module.name)
    for family in Handlers.__subclasses__():
        family.register_all(table, services)
    return table
