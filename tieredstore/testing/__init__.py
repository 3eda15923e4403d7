"""Public test kits: contracts that every plugin must hold, faults to try them with, and a broker
for the tests of applications."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tieredstore.testing.broker import Broker

__all__ = ["Broker"]


def __getattr__(name: str) -> Any:
    # The kits need nothing of what a broker needs.
    if name == "Broker":
        from tieredstore.testing.broker import Broker

        return Broker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
