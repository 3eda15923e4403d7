"""Message classes and enum values of the gRPC protocol by name."""

from __future__ import annotations

from typing import Any

from tieredstore.broker.grpc import message_types


def find_message(name: str) -> Any:
    """Return a message class. Raises AttributeError for an unknown name."""
    return getattr(message_types, name)


def list_values(enumeration: str) -> dict[str, Any]:
    """Return the values of an enum by their names."""
    return dict(getattr(message_types, enumeration).items())
