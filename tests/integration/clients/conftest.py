"""Real clients, each in its own process, against a broker of ours."""

from tests.kit.clients.fixtures import (
    go_client,
    java_grpc,
    java_remoting,
    java_remoting4,
    node_client,
    python_client,
)

__all__ = [
    "go_client",
    "java_grpc",
    "java_remoting",
    "java_remoting4",
    "node_client",
    "python_client",
]
