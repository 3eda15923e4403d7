"""Runs a broker in this process, for the verbs that do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import click

from tieredstore.errors import make_missing_error

if TYPE_CHECKING:
    from tieredstore.broker.broker import Broker


def serve(properties: Mapping[str, str], *, origin: str) -> None:
    """Run a broker with the keys of a broker.conf, as `serve_broker` does."""

    def make_broker() -> Broker:
        from tieredstore.broker.broker import Broker

        return Broker.from_properties(properties, origin=origin)

    serve_broker(make_broker)


def serve_broker(make_broker: Callable[[], Broker]) -> None:
    """Run a broker until a signal ends it; the JSON line of its addresses goes to stdout once it
    serves. Raises Invalid when the extra `broker` is not installed, and what the start raises."""
    import logging

    from tieredstore.cli.logs.choice import LogFormat, find_choice
    from tieredstore.cli.logs.lines import JsonLines

    try:
        from tieredstore.broker.process import log_to_stderr, run_broker

        choice = find_choice()
        lines = JsonLines() if choice.format is LogFormat.JSON else None
        log_to_stderr(getattr(logging, choice.find_level("info").upper()), lines)
        run_broker(make_broker, announce)
    except ModuleNotFoundError as error:
        raise make_missing_error("the broker", error, "broker") from error


def announce(broker: Broker) -> None:
    """Print where a broker listens, as one line of JSON."""
    import orjson

    click.echo(orjson.dumps(broker.addresses).decode())
