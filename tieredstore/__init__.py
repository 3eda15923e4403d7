"""A RocketMQ 5 message store whose history lives in an object store, and the tools to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Message", "__version__", "errors", "jobs", "open", "open_store"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from tieredstore import errors, jobs
    from tieredstore.message.record import Message
    from tieredstore.stores import open_store
    from tieredstore.table import open_tier as open  # noqa: A004
else:
    _HOMES = {
        "Message": "tieredstore.message.record:Message",
        "errors": "tieredstore.errors",
        "jobs": "tieredstore.jobs",
        "open": "tieredstore.table:open_tier",
        "open_store": "tieredstore.stores:open_store",
    }

    def __getattr__(name: str) -> object:
        """Import what users call when it is used: every module imports this one first."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        found = import_module(module)
        return getattr(found, attribute) if attribute else found

    def __dir__() -> list[str]:
        return sorted(__all__)
