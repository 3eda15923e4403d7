"""The options that say which broker a verb talks to, and who it is there."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import click

from tieredstore.cli.logs.lines import log_to_stderr
from tieredstore.errors import make_missing_error

if TYPE_CHECKING:
    from tieredstore.cli.remote import BrokerClient

_at_option = click.option(
    "--at",
    "address",
    metavar="HOST:PORT",
    default="127.0.0.1:10911",
    show_default=True,
    help="The broker's remoting port.",
)
_credentials_option = click.option(
    "--credentials",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="accessKey and secretKey, as in mqadmin's tools.yml; "
    "by default ROCKETMQ_ACCESS_KEY and ROCKETMQ_SECRET_KEY of the environment.",
)
_Command = TypeVar("_Command", bound=Callable[..., object])


class Place(NamedTuple):
    """Where a broker is, and the file that says who asks."""

    address: str
    credentials: Path | None


def broker_option(command: _Command) -> _Command:
    """Add --at and --credentials; the command gets `broker`."""

    @functools.wraps(command)
    def run(*args: Any, address: str, credentials: Path | None, **kwargs: Any) -> object:
        return command(*args, broker=Place(address, credentials), **kwargs)

    return cast(_Command, _at_option(_credentials_option(run)))


@contextmanager
def talk_to(broker: Place) -> Iterator[BrokerClient]:
    """Connect to a broker for a `with` block. Raises Unavailable, and Invalid when the extra
    `broker` is not installed."""
    log_to_stderr()
    try:
        from tieredstore.cli.credentials import find_credentials
        from tieredstore.cli.remote import BrokerClient
    except ModuleNotFoundError as error:
        verb = click.get_current_context().command_path.partition(" ")[2]
        raise make_missing_error(verb, error, "broker") from error
    with BrokerClient(broker.address, find_credentials(broker.credentials)) as client:
        yield client
