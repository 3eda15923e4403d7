"""Message classes and enums of the protocol, under the names of the protocol definition. The stubs
in `interface` give the type checker the same names. The classes are in a separate descriptor pool,
because RocketMQ's Python client registers the same names in the default pool."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, MethodDescriptor
    from google.protobuf.message import Message as ProtocolMessage

    from tieredstore.broker.grpc.interface.definition_pb2 import *  # noqa: F403
    from tieredstore.broker.grpc.interface.service_pb2 import *  # noqa: F403

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


if not TYPE_CHECKING:

    def __getattr__(name: str) -> type[ProtocolMessage] | EnumTypeWrapper:
        """Return a message class or an enum by its name in the protocol definition. Raises
        AttributeError for an unknown name."""
        full_name = f"{PACKAGE}.{name}"
        try:
            return find_class(_POOL.FindMessageTypeByName(full_name))
        except KeyError:
            pass
        try:
            values = EnumTypeWrapper(_POOL.FindEnumTypeByName(full_name))
        except KeyError:
            raise AttributeError(f"{PACKAGE} has no type {name}") from None
        vars(values).update(values.items())  # a look-up of a number by its name is slow otherwise
        return values


def list_methods() -> list[MethodDescriptor]:
    """Return the descriptors of the service's methods, in the order of the protocol definition."""
    return list(_POOL.FindServiceByName(SERVICE_NAME).methods)


def find_class(descriptor: Descriptor) -> type[ProtocolMessage]:
    """Return the class of a message type. `descriptor`: its descriptor in this module's pool."""
    return message_factory.GetMessageClass(descriptor)
