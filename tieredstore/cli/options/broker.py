"""Options for the broker to connect to, and for credentials."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar, cast

import click

from tieredstore.cli.logs.lines import log_to_stderr
from tieredstore.cli.options.collecting import path, value
from tieredstore.errors import make_missing_error

if TYPE_CHECKING:
    from tieredstore.cli.remote import BrokerClient

_at_option = value(
    "--at", "HOST:PORT", "The broker's remoting port.", name="address", default="127.0.0.1:10911"
)
_credentials_option = path(
    "--credentials",
    "FILE",
    "accessKey and secretKey, as in mqadmin's tools.yml. "
    "By default ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY of the environment.",
)
_Command = TypeVar("_Command", bound=Callable[..., object])


class Place(NamedTuple):
    """Address of a broker, with the credentials file or None."""

    address: str
    credentials: Path | None


def broker_option(command: _Command) -> _Command:
    """Add --at and --credentials, passed to the command as `broker`."""

    @functools.wraps(command)
    def run(*args: object, address: str, credentials: Path | None, **kwargs: object) -> object:
        return command(*args, broker=Place(address, credentials), **kwargs)

    return cast(_Command, _at_option(_credentials_option(run)))


@contextmanager
def talk_to(broker: Place) -> Iterator[BrokerClient]:
    """Connect to a broker in a `with` block. Raises Unavailable, and Invalid without the extra
    `broker`."""
    log_to_stderr()
    try:
        from tieredstore.cli.remote import BrokerClient, find_credentials
    except ModuleNotFoundError as error:
        verb = click.get_current_context().command_path.partition(" ")[2]
        raise make_missing_error(verb, error, "broker") from error
    with BrokerClient(broker.address, find_credentials(broker.credentials)) as client:
        yield client
