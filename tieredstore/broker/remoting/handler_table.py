"""Handlers by request code, decoding of requests, and permission checks."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Annotated,
    Final,
    Generic,
    NamedTuple,
    Self,
    TypeAlias,
    TypeVar,
    get_type_hints,
)

import msgspec

from tieredstore.broker.auth.access import (
    ANYBODY,
    AccessControl,
    Caller,
    Credentials,
    decode_base64,
)
from tieredstore.broker.auth.policies import Action, ResourceType, Want, want_group, want_topic
from tieredstore.broker.peer_warnings import PEERS
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.remoting.codes import ResponseCode
from tieredstore.broker.remoting.command import RemotingCommand
from tieredstore.broker.remoting.signing import ACCESS_KEY, SIGNATURE
from tieredstore.errors import Busy, Exhausted, Invalid, TieredStoreError, Unavailable

if TYPE_CHECKING:
    from tieredstore.broker.remoting.connection import Connection


Topic: TypeAlias = Annotated[str, msgspec.Meta(extra={"resource": ResourceType.TOPIC})]
"""Header field with a topic, on which the sender needs a permission."""
Group: TypeAlias = Annotated[str, msgspec.Meta(extra={"resource": ResourceType.GROUP})]
"""Header field with a consumer group, on which the sender needs a permission."""
Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]

_MAKERS: Final[dict[ResourceType, Callable[..., Want]]] = {
    ResourceType.TOPIC: want_topic,
    ResourceType.GROUP: want_group,
}
_FIELD: Final = re.compile(r"\$\.(\w+)")
_MISSING: Final = re.compile(r"missing required field `(\w+)`")
_Header_co = TypeVar("_Header_co", bound="RequestHeader", covariant=True)


class RequestHeader(msgspec.Struct, rename="camel", gc=False):
    """Fields of a request: Java's custom header for its code. A subclass declares each field once.
    Permissions are checked for each field of type Topic or Group. Handlers must read topics and
    groups only from this header, so that none is used unchecked. Numbers are received as text."""

    @classmethod
    def decode(cls, command: RemotingCommand) -> Self:
        """Decode the fields of a command. Raises msgspec.ValidationError."""
        return msgspec.convert(command.ext_fields, cls, strict=False)

    def list_wants(self, *actions: Action) -> Iterator[Want]:
        """Yield the permissions that the sender needs on the topics and groups of the request. If
        it names none, yield the permission on the cluster, with an empty name. An empty field with
        a default is ignored."""
        names_none = True
        for name, make_want, is_required in _list_resources(type(self)):
            value = getattr(self, name)
            if value or is_required:
                names_none = False
                yield make_want(value, *actions)
        if names_none:
            yield Want(ResourceType.CLUSTER, "", frozenset(actions))

    @classmethod
    def can_name_resources(cls) -> bool:
        """Return whether a request with this header may name a topic or a group."""
        return bool(_list_resources(cls)) or cls.list_wants is not RequestHeader.list_wants


class NoFields(RequestHeader):
    """Header without fields, for requests that concern the whole broker."""


NO_FIELDS: Final = NoFields()


class JsonBody(RequestHeader):
    """Request whose fields are in a JSON body instead of the header. Numbers may be written as
    strings."""

    @classmethod
    def decode(cls, command: RemotingCommand) -> Self:
        """Decode the body of a command. Raises msgspec.MsgspecError."""
        return msgspec.json.decode(command.body_bytes, type=cls, strict=False)


@dataclass(slots=True, eq=False)
class Request(Generic[_Header_co]):
    """Request as passed to a handler. `caller`: the sender, used to check permissions on objects
    that the request names only indirectly."""

    connection: Connection
    command: RemotingCommand
    header: _Header_co
    caller: Caller

    @property
    def code(self) -> int:
        return self.command.code

    @property
    def body(self) -> bytes:
        return self.command.body_bytes

    def require_again(self, *actions: Action) -> None:
        """Check the sender's permissions on the topics and groups of the header again. Call this
        after a wait, because users and policies may have changed. Raises Refused."""
        if self.caller.access is not None:
            self.caller.require(*self.header.list_wants(*actions))


def decode_request(command: RemotingCommand, kind: type[_Header_co]) -> _Header_co:
    """Decode the header of a request. Raises Refused for a missing or invalid field."""
    try:
        return kind.decode(command)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Refused(Reason.INVALID_PARAMETER, _explain(command, kind, error)) from None


def is_true(text: str) -> bool:
    """Return whether a field is true, by Java's rules."""
    return text.lower() == "true"


@functools.cache
def _list_resources(kind: type[RequestHeader]) -> list[tuple[str, Callable[..., Want], bool]]:
    hints = get_type_hints(kind, include_extras=True)
    found = []
    for field in msgspec.structs.fields(kind):
        for meta in getattr(hints[field.name], "__metadata__", ()):
            resource = (meta.extra or {}).get("resource")
            if resource is not None:
                found.append((field.name, _MAKERS[resource], field.required))
    return found


def _explain(command: RemotingCommand, kind: type[RequestHeader], error: Exception) -> str:
    start = f"request {command.code}"
    if issubclass(kind, JsonBody):
        return f"{start}: body: {error}"
    if missing := _MISSING.search(str(error)):
        return f"{start}: field {missing[1]}: expected a value, found none"
    if named := _FIELD.search(str(error)):
        found = command.ext_fields.get(named[1], "")
        return f"{start}: field {named[1]}: expected a number, found {found[:40]!r}"
    return f"{start}: {error}"


_UNSIGNED_BEFORE: Final = 399
"""Version number of 4.9.3. Clients up to this version do not sign the field `_UNIQUE_KEY_QUERY`."""
_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
Outcome: TypeAlias = Awaitable[RemotingCommand | None] | RemotingCommand | None
Answer: TypeAlias = Callable[["Connection", RemotingCommand], Outcome]
"""Function that answers a request. Errors are converted to a response by `respond_to_error`."""
_Header = TypeVar("_Header", bound=RequestHeader)
Handler: TypeAlias = Callable[[Request[_Header]], Outcome]
"""Function that answers a decoded request. A plain function is called inline. A coroutine runs as a
task that is cancelled when the connection ends. Returns None if no response is needed, because the
request is one-way or `connection.respond` has sent it."""


class RemotingGuard:
    """Authenticates and authorises requests with the users and policies of a broker."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def authenticate(self, connection: Connection, command: RemotingCommand) -> Caller:
        """Return the signer of a request. Raises NotAuthenticated."""
        user = self._access.authenticate(read_credentials(command))
        source_ip = connection.address.rpartition(":")[0].strip("[]")
        return Caller(self._access, user.username, source_ip, user)

    def authorize(self, caller: Caller, header: RequestHeader, actions: tuple[Action, ...]) -> None:
        """Raise Refused if the sender lacks a permission that the request needs."""
        cluster = self._access.cluster
        for want in header.list_wants(*actions):
            is_of_cluster = want.resource_type is ResourceType.CLUSTER
            caller.require(want._replace(name=cluster) if is_of_cluster else want)


def read_credentials(request: RemotingCommand) -> Credentials | None:
    """Return the credentials of a request, or None if it is not signed. The signature covers the
    values of all other fields, in the order of their names, followed by the body."""
    fields = request.ext_fields
    username, signature = fields.get(ACCESS_KEY), fields.get(SIGNATURE)
    if not username or not signature:
        return None
    is_old = request.version <= _UNSIGNED_BEFORE
    values = [
        value
        for name, value in sorted(fields.items())
        if name != SIGNATURE and not (is_old and name == _UNIQUE_KEY_QUERY)
    ]
    content = "".join(values).encode() + request.body_bytes
    return Credentials(username, decode_base64(signature), content)


class Route(NamedTuple):
    """Handler of a request code. `actions`: the sender needs one of these permissions on each topic
    and group in the header, or on the cluster if there are none."""

    handler: Callable[..., Outcome]
    header: type[RequestHeader]
    actions: tuple[Action, ...]


def refuse_unknown_code(request: Request[RequestHeader]) -> RemotingCommand:
    return RemotingCommand(
        ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f"request code {request.code} is not supported",
    )


_UNKNOWN = Route(refuse_unknown_code, RequestHeader, (Action.UPDATE,))


class HandlerTable:
    """Handlers by request code. Other codes get REQUEST_CODE_NOT_SUPPORTED. `guard`: checks each
    request, or None to allow all."""

    def __init__(self, guard: RemotingGuard | None = None) -> None:
        self._guard = guard
        self._routes: dict[int, Route] = {}
        self._answers: dict[int, Answer] = {}
        self._refuse = self._make_answer(_UNKNOWN)

    def register(
        self, code: int, handler: Handler[_Header], header: type[_Header], *actions: Action
    ) -> None:
        """Register the handler of a request code. Each code has one handler. The header is decoded
        once, for both the permission check and the handler. `actions`: see `Route`."""
        assert code not in self._routes, f"two handlers of request code {code}"
        assert actions, f"request code {code}: no right is named"
        route = self._routes[int(code)] = Route(handler, header, actions)
        self._answers[int(code)] = self._make_answer(route)

    def without(self, codes: Collection[int]) -> HandlerTable:
        """Return a copy of the table without the given request codes."""
        table = HandlerTable(self._guard)
        table._routes = {code: one for code, one in self._routes.items() if code not in codes}
        table._answers = {code: one for code, one in self._answers.items() if code not in codes}
        return table

    def find(self, code: int) -> Answer:
        return self._answers.get(code, self._refuse)

    def find_route(self, code: int) -> Route:
        return self._routes.get(code, _UNKNOWN)

    @property
    def codes(self) -> frozenset[int]:
        return frozenset(self._routes)

    def _make_answer(self, route: Route) -> Answer:
        guard, (handler, kind, actions) = self._guard, route
        is_of_cluster = not kind.can_name_resources()

        def answer(connection: Connection, command: RemotingCommand) -> Outcome:
            if guard is None:
                return handler(Request(connection, command, decode_request(command, kind), ANYBODY))
            caller = guard.authenticate(connection, command)
            if is_of_cluster:  # whatever its fields are
                guard.authorize(caller, NO_FIELDS, actions)
            header = decode_request(command, kind)
            guard.authorize(caller, header, actions)
            return handler(Request(connection, command, header, caller))

        return answer


def _code_of(error: TieredStoreError) -> int:
    if isinstance(error, Refused):
        return int(error.reason)
    if isinstance(error, Busy):
        return ResponseCode.SYSTEM_BUSY
    if isinstance(error, Exhausted | Unavailable):
        return ResponseCode.SERVICE_NOT_AVAILABLE
    if isinstance(error, Invalid):
        return ResponseCode.INVALID_PARAMETER
    return ResponseCode.SYSTEM_ERROR  # Fenced, Corrupt: no action of a client helps


def respond_to_error(error: Exception, request: RemotingCommand) -> RemotingCommand:
    """Return the response for an error of a handler. Unexpected errors are logged, and their text
    is not sent, because it may quote the request."""
    if isinstance(error, TieredStoreError):
        return RemotingCommand(_code_of(error), remark=str(error))
    PEERS.note("failed requests", f"request {request.code} failed: {error!r}", error)
    return RemotingCommand(
        ResponseCode.SYSTEM_ERROR, remark=f"request {request.code}: {type(error).__name__}"
    )
