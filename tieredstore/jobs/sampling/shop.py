"""Messages of a small web shop: orders, payments and events, with retries and dead letters."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from tieredstore.message import properties as props
from tieredstore.message.encoding import Message
from tieredstore.message.hashes import java_string_hash
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX

QUEUES: Final = 2
"""Number of queues of each topic of the shop. A retry topic and a dead-letter topic have one
queue."""
GROUP: Final = "billing"
"""Consumer group that fails to process some payments, so that they are retried."""
_RETRY_DELAYS_MS: Final = (10_000, 30_000, 60_000)
_DAY_MS: Final = 86_400_000
_PRODUCTS: Final = (
    ("espresso", 240),
    ("cappuccino", 360),
    ("filter coffee", 290),
    ("green tea", 320),
    ("croissant", 210),
    ("cheesecake", 480),
    ("beans 250 g", 990),
    ("grinder", 12_900),
)
_CUSTOMERS: Final = tuple(
    f"{name}-{number}"
    for name in ("ada", "bob", "chen", "dora", "eve", "finn")
    for number in range(1, 5)
)
_COUNTRIES: Final = ("DE", "FR", "NL", "PL", "US")
_CHANNELS: Final = ("web", "web", "app", "shop")
_METHODS: Final = ("card", "card", "card", "paypal", "transfer")
_HOURS: Final = (1, 1, 1, 1, 1, 2, 4, 8, 10, 9, 8, 10, 12, 10, 8, 8, 8, 9, 10, 9, 7, 5, 3, 2)
"""Relative number of visits in each hour of a day."""
_EVENTS: Final = ("view", "view", "view", "search", "cart")


@dataclass(frozen=True, slots=True)
class Shop:
    """Configuration of a shop. `start_ms`: start of the first day, epoch ms. `days`: number of
    days.
    `orders_per_day`: mean number of orders per day. `seed`: equal seeds give equal messages.
    """

    start_ms: int
    days: int = 7
    orders_per_day: int = 60
    seed: int = 1


class _Event(NamedTuple):
    """Message that has no unique key yet."""

    time_ms: int
    topic: str
    body: Mapping[str, object]
    tag: str
    keys: tuple[str, ...]
    properties: Mapping[str, str]
    sharding_key: str
    reconsume_times: int = 0


def make_messages(shop: Shop) -> list[Message]:
    """Return all messages of a shop, in time order (`born_timestamp_ms`)."""
    source = random.Random(shop.seed)  # noqa: S311
    events = sorted(_simulate(shop, source), key=lambda event: (event.time_ms, event.keys))
    return [_message_of(event, number) for number, event in enumerate(events)]


def _simulate(shop: Shop, source: random.Random) -> Iterator[_Event]:
    number = 1000
    for day in range(shop.days):
        day_ms = shop.start_ms + day * _DAY_MS
        weekend = 1.4 if day % 7 >= 5 else 1.0
        for _ in range(max(1, round(shop.orders_per_day * weekend * source.uniform(0.85, 1.15)))):
            hour = source.choices(range(24), _HOURS)[0]
            time_ms = day_ms + hour * 3_600_000 + source.randrange(3_600_000)
            number += 1
            yield from _visit(f"o-{number}", time_ms, source)


def _visit(order: str, time_ms: int, source: random.Random) -> Iterator[_Event]:
    """Yield the messages of a customer's visit: some events, an order, a payment."""
    customer = source.choice(_CUSTOMERS)
    country = _COUNTRIES[java_string_hash(customer) % len(_COUNTRIES)]
    channel = source.choice(_CHANNELS)
    session = f"s-{source.randrange(1 << 32):08x}"
    at_ms = time_ms - source.randrange(60_000, 600_000)
    for _ in range(source.randrange(2, 6)):
        at_ms += source.randrange(1_000, 60_000)
        kind = source.choice(_EVENTS)
        body = {
            "session": session,
            "customer": customer,
            "type": kind,
            "product": source.choice(_PRODUCTS)[0],
        }
        yield _Event(at_ms, "events", body, kind, (session,), {"channel": channel}, session)
    time_ms = max(time_ms, at_ms + 1_000)
    bought = [
        (product, source.randrange(1, 4), cents)
        for product, cents in source.sample(_PRODUCTS, source.randrange(1, 4))
    ]
    total = sum(quantity * cents for _, quantity, cents in bought)
    created: dict[str, object] = {
        "order": order,
        "customer": customer,
        "country": country,
        "items": [
            {"product": product, "quantity": quantity, "cents": cents}
            for product, quantity, cents in bought
        ],
        "cents": total,
    }
    properties = {"channel": channel, "country": country}
    yield _Event(time_ms, "orders", created, "new", (order, customer), properties, customer)
    if source.random() < 0.06:
        time_ms += source.randrange(60_000, 1_800_000)
        cancelled = {"order": order, "customer": customer, "country": country, "cents": 0}
        yield _Event(
            time_ms, "orders", cancelled, "cancelled", (order, customer), properties, customer
        )
        return
    yield from _pay(order, customer, total, time_ms + source.randrange(5_000, 900_000), source)


def _pay(
    order: str, customer: str, cents: int, time_ms: int, source: random.Random
) -> Iterator[_Event]:
    """Yield a payment, and its retries if the consumer fails."""
    method = source.choice(_METHODS)
    payment = f"p-{order.removeprefix('o-')}"
    body = {"payment": payment, "order": order, "cents": cents, "method": method}
    keys, properties = (payment, order), {"currency": "EUR"}
    yield _Event(time_ms, "payments", body, method, keys, properties, customer)
    retried = {**properties, props.RETRY_TOPIC: "payments"}
    for attempt, delay_ms in enumerate(_RETRY_DELAYS_MS, 1):
        if source.random() >= (0.08 if attempt == 1 else 0.5):
            return
        time_ms += delay_ms
        topic = f"{RETRY_PREFIX}{GROUP}"
        yield _Event(time_ms, topic, body, method, keys, retried, "", attempt)
    dead = {**retried, props.DLQ_ORIGIN_TOPIC: "payments"}
    attempts = len(_RETRY_DELAYS_MS)
    yield _Event(time_ms + 1_000, f"{DLQ_PREFIX}{GROUP}", body, method, keys, dead, "", attempts)


def _message_of(event: _Event, number: int) -> Message:
    sharding = {props.SHARDING_KEY: event.sharding_key} if event.sharding_key else {}
    queue_id = java_string_hash(event.sharding_key) % QUEUES if event.sharding_key else 0
    return Message.create(
        event.topic,
        json.dumps(event.body).encode(),
        queue_id=queue_id,
        tags=event.tag,
        keys=event.keys,
        uniq_key=f"7F0000010000{event.time_ms:012X}{number:08X}",
        properties={**event.properties, **sharding},
        born_timestamp_ms=event.time_ms,
        reconsume_times=event.reconsume_times,
    )
