"""Authentication and authorisation of gRPC calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tieredstore.broker.auth.access import (
    AccessControl,
    Caller,
    Credentials,
    NotAuthenticated,
    decode_hex,
)
from tieredstore.broker.auth.policies import Action, ResourceType, Want, want_group, want_topic
from tieredstore.broker.grpc.message_types import Settings
from tieredstore.broker.grpc.protocol import Call, Code, Rejected, read_group, read_topic

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
_ALGORITHM: Final = "MQv2-HMAC-SHA1"
_OF_GROUP_AND_TOPIC: Final = frozenset(
    {
        "AckMessage",
        "ForwardMessageToDeadLetterQueue",
        "ChangeInvisibleDuration",
        "QueryAssignment",
        "SyncLiteSubscription",
    }
)


class GrpcAccess:
    """Authenticates and authorises calls."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def check(self, method: str, request: object, call: Call) -> None:
        """Authenticate the sender of a call and check its permissions. Permissions of a telemetry
        stream depend on its settings and are checked later by `check_settings`. Raises Rejected or
        Refused."""
        call.caller = self._authenticate(call)
        if method != "Telemetry":
            wants = _list_wants(method, request, self._access.cluster)
            call.caller.require(*wants)

    def check_settings(self, settings: Settings, call: Call) -> None:
        """Check the permissions that a client's settings need, under the current users and
        policies. A stream may be open for months. `call`: the call that sent the settings. Raises
        Rejected or Refused."""
        self._authenticate(call).require(*_list_wants_of_settings(settings))

    def _authenticate(self, call: Call) -> Caller:
        try:
            user = self._access.authenticate(read_credentials(call))
        except NotAuthenticated as error:
            raise Rejected(Code.UNAUTHORIZED, str(error)) from None
        return Caller(self._access, user.username, call.peer.rpartition(":")[0].strip("[]"), user)


def read_credentials(call: Call) -> Credentials | None:
    """Return the credentials of a call, or None without a valid signature. The signature is
    MQv2-HMAC-SHA1 over `x-mq-date-time`."""
    scheme, _, rest = call.metadata.get(AUTHORIZATION, "").partition(" ")
    signed = call.metadata.get(DATE_TIME, "")
    if scheme != _ALGORITHM or not signed:
        return None
    parts = {}
    for part in rest.split(","):
        name, separator, value = part.strip().partition("=")
        if not separator:
            return None
        parts[name] = value
    username = parts.get("Credential", "").partition("/")[0]
    if not username or "Signature" not in parts:
        return None
    return Credentials(username, decode_hex(parts["Signature"]), signed.encode())


def _list_wants(method: str, request: Any, cluster: str) -> Iterator[Want]:
    if method == "QueryRoute":
        yield want_topic(read_topic(request.topic), Action.PUB, Action.SUB)
    elif method == "SendMessage":
        for topic in {read_topic(message.topic) for message in request.messages}:
            yield want_topic(topic, Action.PUB)
    elif method in {"EndTransaction", "RecallMessage"}:
        yield want_topic(read_topic(request.topic), Action.PUB)
    elif method in {"Heartbeat", "NotifyClientTermination"}:
        if request.HasField("group") and request.group.name:
            # Producers of transactions name a group too, but do not consume with it.
            yield want_group(read_group(request.group), Action.PUB, Action.SUB)
    elif method == "ReceiveMessage":
        yield want_group(read_group(request.group), Action.SUB)
        yield want_topic(read_topic(request.message_queue.topic), Action.SUB)
    elif method in _OF_GROUP_AND_TOPIC:
        yield want_group(read_group(request.group), Action.SUB)
        yield want_topic(read_topic(request.topic), Action.SUB)
    else:
        yield Want(ResourceType.CLUSTER, cluster, frozenset((Action.UPDATE,)))


def _list_wants_of_settings(settings: Settings) -> Iterator[Want]:
    for topic in settings.publishing.topics:
        yield want_topic(read_topic(topic), Action.PUB)
    subscription = settings.subscription
    if subscription.HasField("group") and subscription.group.name:
        yield want_group(read_group(subscription.group), Action.SUB)
    for entry in subscription.subscriptions:
        yield want_topic(read_topic(entry.topic), Action.SUB)
