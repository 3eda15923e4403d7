"""The option that says which broker a verb talks to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from tieredstore.errors import Invalid

if TYPE_CHECKING:
    from tieredstore.cli.remote import BrokerClient

broker_option = click.option(
    "--at",
    "address",
    metavar="HOST:PORT",
    default="127.0.0.1:10911",
    show_default=True,
    help="The broker's remoting port.",
)
"""Adds --at; the command gets `address`."""


@contextmanager
def talk_to(address: str) -> Iterator[BrokerClient]:
    """Connect to a broker for a `with` block. Raises Unavailable, and Invalid when the extra
    `broker` is not installed."""
    try:
        from tieredstore.cli.remote import BrokerClient
    except ModuleNotFoundError as error:
        raise Invalid(
            f"this verb needs {error.name}, which is not installed: "
            "pip install 'tieredstore[broker]'"
        ) from error
    with BrokerClient(address) as client:
        yield client
