"""RocketMQ 5 message store whose history is in an object store, and the tools to use it."""

from __future__ import annotations

from typing import TYPE_CHECKING

__all__ = ["Message", "__version__", "errors", "jobs", "open", "open_store", "testing"]
__version__ = "0.1.0"

if TYPE_CHECKING:
    from tieredstore import errors, jobs, testing
    from tieredstore.message.encoding import Message
    from tieredstore.stores import open_store
    from tieredstore.table import open_tier as open  # noqa: A004
else:
    _HOMES = {
        "Message": "tieredstore.message.encoding:Message",
        "errors": "tieredstore.errors",
        "jobs": "tieredstore.jobs",
        "open": "tieredstore.table:open_tier",
        "open_store": "tieredstore.stores:open_store",
        "testing": "tieredstore.testing",
    }

    def __getattr__(name: str) -> object:
        """Import public names on first use, because every import of a submodule imports this module
        first."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module, _, attribute = _HOMES[name].partition(":")
        found = import_module(module)
        return getattr(found, attribute) if attribute else found

    def __dir__() -> list[str]:
        return sorted(__all__)
