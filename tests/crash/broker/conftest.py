"""Fixtures for brokers that are killed under the load of real clients."""

from tests.kit.clients.fixtures import java_grpc, java_remoting
from tests.kit.object_store.fixtures import credentials, servers

__all__ = ["credentials", "java_grpc", "java_remoting", "servers"]
