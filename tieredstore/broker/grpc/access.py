"""What a call of gRPC wants and who signed it: checked before it is answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from tieredstore.broker.auth.access import (
    AccessControl,
    Credentials,
    NotAuthenticated,
    decode_hex,
)
from tieredstore.broker.auth.policies import Action, ResourceType, Want, want_group, want_topic
from tieredstore.broker.auth.users import User
from tieredstore.broker.grpc.call import Call
from tieredstore.broker.grpc.conversion import read_group, read_topic
from tieredstore.broker.grpc.statuses import Code, Rejected

AUTHORIZATION: Final = "authorization"
DATE_TIME: Final = "x-mq-date-time"
_ALGORITHM: Final = "MQv2-HMAC-SHA1"
_OF_GROUP_AND_TOPIC: Final = frozenset(
    {
        "AckMessage",
        "ForwardMessageToDeadLetterQueue",
        "ChangeInvisibleDuration",
        "QueryAssignment",
    }
)


class GrpcAccess:
    """Checks calls."""

    def __init__(self, access: AccessControl) -> None:
        self._access = access

    def check(self, method: str, request: Any, call: Call) -> None:
        """Note the user of a call, who must be allowed to make it. What a telemetry stream wants is
        in its settings. Raises Rejected and Refused."""
        call.user = self._authenticate(call)
        if method != "Telemetry":
            wants = _list_wants(method, request, self._access.cluster)
            self._access.authorize(call.user, wants, _source_ip(call.peer))

    def check_settings(self, settings: Any, call: Call) -> None:
        """Let a client be what its settings say, as users and policies are now: a stream may be
        open for months. call: who says so. Raises Rejected and Refused."""
        user = self._authenticate(call)
        self._access.authorize(user, _list_wants_of_settings(settings), _source_ip(call.peer))

    def _authenticate(self, call: Call) -> User:
        try:
            return self._access.authenticate(read_credentials(call))
        except NotAuthenticated as error:
            raise Rejected(Code.UNAUTHORIZED, str(error)) from None


def read_credentials(call: Call) -> Credentials | None:
    """Return who signed a call: MQv2-HMAC-SHA1 over its `x-mq-date-time`."""
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
            # Producers of transactions name a group, too, which they do not consume with.
            yield want_group(read_group(request.group), Action.PUB, Action.SUB)
    elif method == "ReceiveMessage":
        yield want_group(read_group(request.group), Action.SUB)
        yield want_topic(read_topic(request.message_queue.topic), Action.SUB)
    elif method in _OF_GROUP_AND_TOPIC:
        yield want_group(read_group(request.group), Action.SUB)
        yield want_topic(read_topic(request.topic), Action.SUB)
    else:
        yield Want(ResourceType.CLUSTER, cluster, frozenset((Action.UPDATE,)))


def _list_wants_of_settings(settings: Any) -> Iterator[Want]:
    for topic in settings.publishing.topics:
        yield want_topic(read_topic(topic), Action.PUB)
    subscription = settings.subscription
    if subscription.HasField("group") and subscription.group.name:
        yield want_group(read_group(subscription.group), Action.SUB)
    for entry in subscription.subscriptions:
        yield want_topic(read_topic(entry.topic), Action.SUB)


def _source_ip(peer: str) -> str:
    return peer.rpartition(":")[0].strip("[]")
