"""Steps of the demo: offload a store, read the tier back, verify it, query it in SQL. Then run a
broker with a producer and a consumer, and replay the messages from the tier alone."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import orjson

from scripts.demonstration.arguments import Options
from scripts.demonstration.broker import Played, play
from scripts.demonstration.commands import Row, ask, tieredstore
from scripts.demonstration.folder import unpack_store
from scripts.demonstration.spark import Counting
from tieredstore.config import StoreConfig
from tieredstore.message.names import LMQ_PREFIX
from tieredstore.tier.policy.topic_filter import TopicFilter


def show(options: Options, counting: Counting | None) -> int:
    """Show every step and a summary. Return the exit code. `counting`: the running Spark program,
    or None to skip the Spark step."""
    folder = options.folder
    tier, state = folder / "tier", folder / "state"
    store, config = options.store, options.config
    if store is None:
        print("A store that a Java broker (RocketMQ 5.5.0) wrote, with transactions,")
        print("delayed messages, batches and light queues:")
        store, config = unpack_store(folder)
    tieredstore("store", "stat", store)

    names: list[object] = []
    for flag, value in (
        ("--config", config),
        ("--broker", options.broker),
        ("--cluster", options.cluster),
        ("--topics", options.topics),
    ):
        names += [flag, value] if value is not None else []
    told = folder / "offload.json"
    tieredstore("offload", store, *names, "--tier", tier, "--state", state, "--report", told)
    copied = orjson.loads(told.read_bytes())
    if counting is not None:
        counting.begin(tier)
    if options.topics is None:
        print(f"\n{explain_rest(ask('store', 'stat', store)[0]['topics'], StoreConfig())}")

    queues, read_seconds = read(tier)
    told = folder / "verify.json"
    tieredstore("verify", "--tier", tier, "--report", told)
    checked = orjson.loads(told.read_bytes())
    played = play(folder / "broker")
    if counting is not None:
        compare(counting.show(), queues)
    summarise(copied, read_seconds, checked, spark=options.spark, played=played)
    return 1 if checked["damage"] else 0


def explain_rest(topics: Sequence[Row], config: StoreConfig) -> str:
    """Return a text about the parts of a store that are not uploaded to a tier, and the reason.
    `topics`: as in `store stat`."""
    filtered = TopicFilter(config)
    rest: dict[str, int] = {}
    light = taken = 0
    for row in topics:
        name, messages = str(row["topic"]), int(row["messages"])
        if name.startswith(LMQ_PREFIX):
            light += messages
        elif filtered.is_filtered(name):
            rest[name] = messages
        else:
            taken += messages
    left = sum(rest.values())
    text = f"The store has {taken + left:,} messages; {taken:,} of them go into a tier."
    if left:
        listed = ", ".join(f"{count:,} of {name}" for name, count in rest.items())
        text += (
            f"\nThe other {left:,} are the broker's own bookkeeping, of delayed messages and "
            f"transactions,\nand are in no tier, Java's neither: {listed}."
        )
    if light:
        text += (
            f"\nThe {light:,} entries of light queues ({LMQ_PREFIX}…) are second names of messages "
            "that are counted already."
        )
    return text


def read(tier: Path) -> tuple[list[Row], float]:
    """Show the queues, some messages, one message by its key, and some messages by their time."""
    queues = ask("ls", "--tier", tier)
    if not queues:
        sys.exit("demo: the store has no messages to offload")
    begin = time.monotonic()
    tieredstore("ls", "--tier", tier)
    largest = max(queues, key=lambda row: int(row["messages"]))
    of_topic = ("--tier", tier, "--topic", largest["topic"])
    of_queue = (*of_topic, "--queue", largest["queue_id"], "--limit", 3)
    tieredstore("cat", *of_queue)
    keyed = next((row for row in ask("cat", *of_queue) if row["keys"]), None)
    if keyed is not None:
        tieredstore("query", *of_topic, "--key", keyed["keys"][0])
    middle = (int(largest["min_store_timestamp"]) + int(largest["max_store_timestamp"])) // 2
    tieredstore("cat", *of_topic, "--since", middle, "--limit", 3)
    return queues, time.monotonic() - begin


def compare(counted: dict[str, int], queues: Sequence[Row]) -> None:
    offloaded: Counter[str] = Counter()
    for row in queues:
        offloaded[row["topic"]] += int(row["messages"])
    if counted != offloaded:
        sys.exit(f"demo: Spark counted {counted}, offloaded were {dict(offloaded)}")


def summarise(
    copied: Row, read_seconds: float, checked: Row, *, spark: bool, played: Played
) -> None:
    rate = checked["messages"] / max(checked["seconds"], 1e-3)
    print(
        f"\nOffloaded  {copied['messages']:,} messages of {copied['queues']} queues, "
        f"{copied['message_bytes'] / 1e6:,.1f} MB, into {copied['segments']} segments "
        f"in {copied['seconds']:.1f} s ({copied['messages_per_second']:,} messages/s, synced)"
        f"\nRead back  by offset, key and time, from the tier alone, in {read_seconds:.1f} s"
        f"\nVerified   {checked['messages']:,} messages, {checked['segments']} segments, "
        f"{checked['index_items']:,} index items in {checked['seconds']:.1f} s "
        f"({rate:,.0f} messages/s): size, magic, body CRC, consume queue against commit log"
        f"\nDamage     {checked['damage'] or 'none'}"
    )
    if spark:
        print("Spark      counted of each topic as many messages as were offloaded")
    print(
        f"Broker     sent {played.sent:,} messages one by one in {played.send_seconds:.1f} s, "
        f"consumed {played.consumed:,} in {played.consume_seconds:.1f} s, uploaded "
        f"{played.uploaded:,} in {played.upload_seconds:.1f} s"
        f"\nReplayed   {played.replayed:,} of them from the tier alone, each once and in order, in "
        f"{played.replay_seconds:.1f} s"
    )
