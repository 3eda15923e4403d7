"""A RocketMQ 5 message store whose history lives in an object store, and the tools to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["__version__", "open"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from tieredstore.table import open_tier as open  # noqa: A004
else:

    def __getattr__(name: str) -> object:
        """`tieredstore.open`, imported when it is used: every module imports this one first."""
        if name == "open":
            from tieredstore.table import open_tier

            return open_tier
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
