"""Makes the table of all request codes that are served: each module of this folder that has a
`register_handlers` adds its own."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

from tieredstore.broker.remoting import handlers
from tieredstore.broker.remoting.handler_table import HandlerTable

if TYPE_CHECKING:
    from tieredstore.broker.services import BrokerServices


def make_handler_table(services: BrokerServices) -> HandlerTable:
    """Make the table of a broker whose parts are all made."""
    table = HandlerTable()
    for module in pkgutil.walk_packages(handlers.__path__, f"{handlers.__name__}."):
        register = getattr(import_module(module.name), "register_handlers", None)
        if register is not None:
            register(table, services)
    return table
