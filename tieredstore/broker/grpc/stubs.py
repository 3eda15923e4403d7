"""The messages of `apache.rocketmq.v2`, made from the published interface definition.

They live in a descriptor pool of their own: RocketMQ's Python client registers the same names in
the pool that a process shares, and both are to work in one process. `interface/` has the
definition; after a change of it `scripts/compile_interface.py` makes the descriptors anew.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

PACKAGE: Final = "apache.rocketmq.v2"
SERVICE_NAME: Final = f"{PACKAGE}.MessagingService"
DESCRIPTORS: Final = "interface/descriptors.binpb"


def _load_pool() -> descriptor_pool.DescriptorPool:
    descriptors = descriptor_pb2.FileDescriptorSet.FromString(
        files(__package__).joinpath(DESCRIPTORS).read_bytes()
    )
    pool = descriptor_pool.DescriptorPool()
    for file in descriptors.file:
        pool.Add(file)
    return pool


_POOL: Final = _load_pool()


def find_message(name: str) -> Any:
    """Return the class of a message of the package. Raises KeyError for an unknown name."""
    descriptor = _POOL.FindMessageTypeByName(f"{PACKAGE}.{name}")
    return message_factory.GetMessageClass(descriptor)


def list_methods() -> list[Any]:
    """Return the descriptors of the service's methods, in the definition's order."""
    return list(_POOL.FindServiceByName(SERVICE_NAME).methods)


def find_class(descriptor: Any) -> Any:
    """Return the class of a message of this pool by its descriptor."""
    return message_factory.GetMessageClass(descriptor)


def list_values(enumeration: str) -> dict[str, int]:
    """Return the numbers of an enumeration of the package, by name."""
    values = _POOL.FindEnumTypeByName(f"{PACKAGE}.{enumeration}").values
    return {value.name: value.number for value in values}


AckMessageResponse: Final = find_message("AckMessageResponse")
ChangeInvisibleDurationResponse: Final = find_message("ChangeInvisibleDurationResponse")
Message: Final = find_message("Message")
MessageQueue: Final = find_message("MessageQueue")
QueryAssignmentResponse: Final = find_message("QueryAssignmentResponse")
QueryRouteResponse: Final = find_message("QueryRouteResponse")
RecallMessageResponse: Final = find_message("RecallMessageResponse")
ReceiveMessageResponse: Final = find_message("ReceiveMessageResponse")
Resource: Final = find_message("Resource")
SendMessageResponse: Final = find_message("SendMessageResponse")
SendResultEntry: Final = find_message("SendResultEntry")
Settings: Final = find_message("Settings")
Status: Final = find_message("Status")
TelemetryCommand: Final = find_message("TelemetryCommand")
