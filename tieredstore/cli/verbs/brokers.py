"""Verbs that run a broker, or send requests to one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tieredstore.cli.help.suggesting import hint_at_conf
from tieredstore.cli.lazy import VerbGroup
from tieredstore.cli.logs.choice import say
from tieredstore.cli.messages.rows import MESSAGE_COLUMNS
from tieredstore.cli.options.broker import Place, broker_option, talk_to
from tieredstore.cli.options.collecting import number, path, switch, value
from tieredstore.cli.options.messages import MOST_LIMIT, tag_option
from tieredstore.cli.options.output import message_output_options, output_option, yes_option
from tieredstore.cli.output.rows import Output
from tieredstore.errors import make_missing_error

if TYPE_CHECKING:
    from tieredstore.broker.broker import Broker
    from tieredstore.cli.output.messages import MessageOutput
    from tieredstore.cli.remote import BrokerClient
    from tieredstore.message.record import StoredMessage


def serve(properties: Mapping[str, str], *, origin: str) -> None:
    """Run a broker with broker.conf settings, like `serve_broker`."""

    def make_broker() -> Broker:
        from tieredstore.broker.broker import Broker

        return Broker.from_properties(properties, origin=origin)

    serve_broker(make_broker)


def serve_broker(make_broker: Callable[[], Broker]) -> None:
    """Run a broker until a signal. Once it serves, its addresses are printed as a line of JSON on
    stdout. Raises Invalid without the extra `broker`, and the errors of the start."""
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
    """Print the addresses of a broker as a line of JSON."""
    import orjson

    click.echo(orjson.dumps(broker.addresses).decode())


@click.command("broker")
@path("--config", "FILE", "The broker.conf.", name="-c", dir_okay=False)
@switch("--read-only", "Serve the history of a tier, and write nothing.")
@value("--tier", "URL", "With --read-only: the tier.")
@path("--state", "DIR", "With --read-only: keeps the offsets of its groups.", file_okay=False)
@value("--cluster", "NAME", "With --read-only: whose history, where several.")
@value("--broker", "NAME", "With --read-only: whose history, where several.")
def broker(
    config: Path | None,
    read_only: bool,
    tier: str | None,
    state: Path | None,
    cluster: str | None,
    broker: str | None,
) -> None:
    """Run a broker until SIGINT or SIGTERM.

    Once it serves, it prints its addresses as one line of JSON on standard output. The log goes to
    standard error.
    """
    if not read_only:
        if any(value is not None for value in (tier, state, cluster, broker)):
            raise click.UsageError("--tier, --state, --cluster, --broker go with --read-only")
        if config is None:
            raise click.UsageError(
                f"give --config FILE{hint_at_conf({'store': 'store'}, 'config')}"
            )
        from tieredstore.cli.conf_file import list_unknown, read_with_findings

        lines, findings = read_with_findings(config)
        for found in list_unknown(findings):
            say(f"{config}:{found.line}: {found.key}: {found.problem}", "warning")
        serve({line.key: line.value for line in lines}, origin=str(config))
        return
    if tier is None or state is None:
        raise click.UsageError("--read-only needs --tier and --state")

    def make_broker() -> Broker:
        from tieredstore.cli.reading_broker import make_reading_broker

        return make_reading_broker(tier, state, config=config, cluster=cluster, broker=broker)

    serve_broker(make_broker)


@click.command("dev")
@value("--port", "N", "0: free ports in place of the usual ones.", type=click.Choice(["0"]))
@path("--folder", "DIR", "Keep store and tier there. Default: a temporary folder.", file_okay=False)
def dev(port: str | None, folder: Path | None) -> None:
    """Run a broker for development, with a tier in files. Topics are created on the first send.

    Once it serves, it prints its addresses as one line of JSON on standard output. SIGINT or
    SIGTERM ends it, and deletes its temporary folder.
    """
    from tieredstore.broker.development import development_properties
    from tieredstore.disk.user_folders import make_temporary_folder

    def run(root: Path) -> None:
        properties = development_properties(root, port=None if port is None else int(port))
        (root / "tier").mkdir(parents=True, exist_ok=True)
        serve(properties, origin="tieredstore dev")

    if folder is not None:
        run(folder)
        return
    with make_temporary_folder("tieredstore-dev-") as temporary:
        run(temporary)


DELAY_MS = "TIMER_DELAY_MS"
SENT_COLUMNS = ("topic", "queue_id", "queue_offset", "msg_id", "offset_msg_id")


@click.command("send")
@click.argument("topic")
@click.argument("bodies", metavar="[BODY]...", nargs=-1)
@broker_option
@value("--tag", "T", "Its tag.")
@value("--key", "K", "A key. Repeatable.", name="keys", multiple=True)
@value("--property", "NAME=VALUE", "A property. Repeatable.", name="pairs", multiple=True)
@number("--delay-ms", 0, None, "Deliver it so late.", metavar="MS")
@output_option
def send(
    topic: str,
    bodies: tuple[str, ...],
    broker: Place,
    tag: str | None,
    keys: tuple[str, ...],
    pairs: tuple[str, ...],
    delay_ms: int | None,
    out: Output,
) -> None:
    """Send each BODY to TOPIC as a message. Without any BODY, send each line of standard input.

    A missing topic is created if the broker allows it.
    """
    from tieredstore.message.properties import KEYS, TAGS

    properties = dict(map(_split, pairs))
    if tag is not None:
        properties[TAGS] = tag
    if keys:
        properties[KEYS] = " ".join(keys)
    if delay_ms is not None:
        properties[DELAY_MS] = str(delay_ms)
    texts: Iterable[bytes] = (body.encode(errors="surrogateescape") for body in bodies)
    if not bodies:
        texts = (line.rstrip(b"\n") for line in sys.stdin.buffer)
    with talk_to(broker) as client:
        rows = (
            {"topic": topic, **client.send(topic, body, properties)._asdict()} for body in texts
        )
        out.rows(SENT_COLUMNS, rows)


def _split(pair: str) -> tuple[str, str]:
    name, separator, value = pair.partition("=")
    if not separator or not name:
        raise click.UsageError(f"--property: expected NAME=VALUE, found {pair!r}")
    return name, value


PAUSE_S = 0.25
LOOK_S = 2.0
"""Interval at which `tail` searches for new queues, in seconds."""


@click.command("tail")
@click.argument("topic")
@broker_option
@tag_option(default="*")
@switch("--from-start", "Begin at the first message, cold ones too.")
@number("--limit", 1, MOST_LIMIT, "End after so many messages.")
@switch("--no-follow", "End where the queues end now.")
@message_output_options
def tail(
    topic: str,
    broker: Place,
    tag: str,
    from_start: bool,
    limit: int | None,
    no_follow: bool,
    out: MessageOutput,
) -> None:
    """Print messages of TOPIC as they arrive, until SIGINT. Commits no offset, and joins no
    consumer group."""
    from tieredstore.cli.logs.lines import log_to_stderr
    from tieredstore.scan.rows import message_row

    out.require_live()
    log_to_stderr()
    with talk_to(broker) as client:
        found = _follow(client, topic, tag, from_start=from_start, follows=not no_follow)
        rows = (message_row(message, "", out.body) for message in islice(found, limit))
        if not out.write(MESSAGE_COLUMNS, rows, is_live=True):
            say(f"topic {topic!r} has no such message")


def _follow(
    client: BrokerClient, topic: str, tag: str, *, from_start: bool, follows: bool
) -> Iterator[StoredMessage]:
    import logging

    from tieredstore.broker.remoting.codes import RequestCode
    from tieredstore.cli.messages.loss import warn_of_loss

    log = logging.getLogger(__name__)
    begin = RequestCode.GET_MIN_OFFSET if from_start else RequestCode.GET_MAX_OFFSET
    offsets: dict[int, int] = {}
    looked: float | None = None
    while True:
        if looked is None or time.monotonic() - looked >= LOOK_S:
            for queue_id in client.find_queues(topic):
                if queue_id not in offsets:
                    offsets[queue_id] = client.find_offset(begin, topic, queue_id)
            begin, looked = RequestCode.GET_MIN_OFFSET, time.monotonic()
        is_idle = True
        for queue_id, offset in list(offsets.items()):
            pulled = client.pull(topic, queue_id, offset, expression=tag)
            following = pulled.next_offset
            if following < offset:
                text = "%s/%d: it ends in front of offset %d: recreated"
                log.warning(text, topic, queue_id, offset)
                following = client.find_offset(RequestCode.GET_MIN_OFFSET, topic, queue_id)
            elif following > offset and not pulled.messages:
                least = client.find_offset(RequestCode.GET_MIN_OFFSET, topic, queue_id)
                warn_of_loss(f"{topic}/{queue_id}", offset, least)
            offsets[queue_id] = following
            is_idle &= following == offset
            yield from pulled.messages
        if is_idle:
            if not follows:
                return
            time.sleep(PAUSE_S)


@click.group("topic", cls=VerbGroup)
def topic() -> None:
    """Create, list and delete topics of a running broker."""


@topic.command("create", short_help="Create a topic.")
@click.argument("topic")
@broker_option
@number("--queues", 1, 65_535, "Its number of queues.", default=8)
def create_topic(topic: str, broker: Place, queues: int) -> None:
    """Create TOPIC. For an existing topic, change the number of queues."""
    with talk_to(broker) as client:
        client.create_topic(topic, queues)


@topic.command("delete", short_help="Delete a topic, with its messages.")
@click.argument("topic")
@broker_option
@yes_option
def delete_topic(topic: str, broker: Place, yes: bool) -> None:
    """Delete TOPIC with all its messages, in the tier too."""
    with talk_to(broker) as client:
        if yes:
            client.delete_topic(topic)
            return
        queues = client.find_queues(topic)
    click.echo(
        f"{topic} would be deleted, with the messages of {len(queues)} queues: --yes does it"
    )


@topic.command("list", short_help="List the topics.")
@broker_option
@output_option
def list_topics(broker: Place, out: Output) -> None:
    """List all topics, the broker's own included."""
    with talk_to(broker) as client:
        topics = client.list_topics()
    if not out.rows(("topic",), ({"topic": topic} for topic in topics)):
        say(f"the broker at {broker.address} has no topic")
