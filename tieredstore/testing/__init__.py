"""Public test kits: contracts and fault injection for plugins, and a broker for application
tests."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tieredstore.testing.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> object:
    # The kits need none of the broker's dependencies.
    if name == "Broker":
        from tieredstore.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
