"""Broker part of the demo: a producer, a consumer, and a replay from the tier alone."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tieredstore.broker.remoting.codes import RequestCode
from tieredstore.cli.remote import BrokerClient
from tieredstore.testing.broker import Broker

TOPIC = "demo_orders"
MESSAGES = 2_000
_LONGEST_WAIT_S = 60


@dataclass(frozen=True, slots=True)
class Played:
    """Results of the broker part, and durations in seconds. `replayed`: messages from the tier
    alone, each once, in queue order."""

    sent: int
    consumed: int
    uploaded: int
    replayed: int
    send_seconds: float
    consume_seconds: float
    upload_seconds: float
    replay_seconds: float


def play(folder: Path) -> Played:
    """Run a broker in this process, with a producer and a consumer on its remoting port. Then run
    the consumer again over the tier alone."""
    (folder / "tier").mkdir(parents=True, exist_ok=True)
    with Broker(folder) as broker:
        print(f"\nA broker at {broker.remoting} (remoting), {broker.grpc} (gRPC)", flush=True)
        with BrokerClient(broker.remoting) as client:
            begin = time.monotonic()
            for number in range(MESSAGES):
                client.send(TOPIC, b"order %d" % number, {"KEYS": f"order-{number}"})
            send_seconds = time.monotonic() - begin
            print(f"  sent {MESSAGES:,} messages to {TOPIC}", flush=True)
            begin = time.monotonic()
            consumed = consume(client)
            consume_seconds = time.monotonic() - begin
            print(f"  consumed {len(consumed):,} of them", flush=True)
        begin = time.monotonic()
        uploaded = broker.flush_tier()
        upload_seconds = time.monotonic() - begin
        print(f"  uploaded {uploaded:,} to the tier", flush=True)
    with (
        Broker(folder, {"tieredStorageLevel": "FORCE"}) as broker,
        BrokerClient(broker.remoting) as client,
    ):
        begin = time.monotonic()
        replayed = consume(client)
        replay_seconds = time.monotonic() - begin
        print(f"  replayed {len(replayed):,} from the tier alone, after a restart", flush=True)
    if replayed != consumed or len(set(consumed)) != MESSAGES:
        raise SystemExit("demo: the tier gave other messages than the broker")
    return Played(
        MESSAGES,
        len(consumed),
        uploaded,
        len(replayed),
        send_seconds,
        consume_seconds,
        upload_seconds,
        replay_seconds,
    )


def consume(client: BrokerClient) -> list[bytes]:
    """Read every queue in order from its first message, until all sent messages were received."""
    bodies: dict[int, list[bytes]] = {}
    offsets = {
        queue_id: client.find_offset(RequestCode.GET_MIN_OFFSET, TOPIC, queue_id)
        for queue_id in client.find_queues(TOPIC)
    }
    came = time.monotonic()
    while sum(map(len, bodies.values())) < MESSAGES:
        for queue_id, offset in offsets.items():
            # A message can be read a moment after it was sent.
            if offset == client.find_offset(RequestCode.GET_MAX_OFFSET, TOPIC, queue_id):
                continue
            pulled = client.pull(TOPIC, queue_id, offset, wait_ms=1000)
            expected = list(range(offset, offset + len(pulled.messages)))
            if [message.queue_offset for message in pulled.messages] != expected:
                raise SystemExit(f"demo: a gap in queue {queue_id} behind offset {offset}")
            bodies.setdefault(queue_id, []).extend(bytes(found.body) for found in pulled.messages)
            offsets[queue_id] = pulled.next_offset
            came = time.monotonic()
        if time.monotonic() - came > _LONGEST_WAIT_S:
            break
    return [body for queue_id in sorted(bodies) for body in bodies[queue_id]]
