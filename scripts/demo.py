"""The main jobs, end to end: offload a store, read the tier back, verify it, query it in SQL; then
a broker with a producer, a consumer, and a replay from the tier alone.

Every step on the tier is a command of `tieredstore`, shown before it runs, or SQL.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson

from scripts.demo_broker import play

ROOT = Path(__file__).resolve().parent.parent
BUNDLE = ROOT / "tests" / "fixtures" / "public-a.tar.xz"
MARK = ".made-by-scripts-demo"
EXTRACT_SAFELY: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # 3.11.4
Row = dict[str, Any]


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description="Offload a RocketMQ store into a tier, read it back from the tier alone, and "
        "verify every message, count them with Spark SQL; then run a broker with a producer, a "
        "consumer and a replay from its tier. Without arguments: the bundled store of a Java "
        "broker.",
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="a store of your own (storePathRootDir); read only",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="its broker.conf")
    parser.add_argument("--broker", metavar="NAME", help="broker name, when there is no --config")
    parser.add_argument("--cluster", metavar="NAME", help="cluster name, likewise")
    parser.add_argument("--topics", metavar="T,…", help="only these topics (shell patterns)")
    parser.add_argument(
        "--folder",
        type=Path,
        default=ROOT / "demo",
        metavar="DIR",
        help="where tier and state go (default: demo/ in this clone); emptied first if this "
        "script made it",
    )
    parser.add_argument("--keep", action="store_true", help="keep the tier of the last run")
    parser.add_argument("--body", type=int, default=60, metavar="N", help="characters of a body")
    return parser.parse_args()


def prepare(folder: Path, *, keep: bool) -> None:
    """An empty folder of our own; somebody else's is never emptied."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            sys.exit(f"demo: {folder} is not empty and was not made by this script; use --folder")
        if not keep:
            shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()


def bundled_store(folder: Path) -> tuple[Path, Path]:
    """Unpack the Java broker's store; returns it and its broker.conf."""
    target = folder / "java-broker"
    if not target.exists():
        with tarfile.open(BUNDLE) as archive:
            members = [
                member
                for member in archive.getmembers()
                if member.name.startswith(("public-a/store", "public-a/broker.conf"))
            ]
            archive.extractall(target, members=members, **EXTRACT_SAFELY)
    return target / "public-a" / "store", target / "public-a" / "broker.conf"


def tieredstore(*words: object, show: bool = True) -> list[Row]:
    """Run the command line; its progress goes to the terminal, its JSON comes back."""
    command = [str(word) for word in words]
    if show:
        print(f"\n$ tieredstore {shlex.join(command)}", flush=True)
    program = Path(sys.executable).with_name("tieredstore")
    done = subprocess.run(
        [program, *command, "--output", "ndjson"], stdout=subprocess.PIPE, check=False
    )
    if done.returncode:
        sys.exit(done.returncode)
    return [orjson.loads(line) for line in done.stdout.splitlines()]


def show_messages(rows: list[Row], body: int) -> None:
    for row in rows:
        text = " ".join((row["body"] or "").split())
        cut = text if len(text) <= body else text[: body - 1] + "…"
        place = f"{row['topic']}/{row['queue_id']}@{row['queue_offset']}"
        print(f"  {place:24} {row['tags'] or '-':6} {' '.join(row['keys'][:2]):24.24} {cut}")


def ask_spark(tier_url: str) -> Counter[str]:
    """Messages by topic, as Spark SQL counts them."""
    from tieredstore.spark import enable, session

    path = tier_url.replace("'", "\\'")
    view = (
        "CREATE TEMPORARY VIEW messages USING rocketmq_tiered OPTIONS "
        f"(path '{path}', subscribePattern '.*', columns 'topic,queue_id,body,store_timestamp')"
    )
    query = (
        "SELECT topic, count(*) messages, count(DISTINCT queue_id) queues, "
        "sum(length(body)) bytes, date_format(max(store_timestamp), 'yyyy-MM-dd HH:mm') newest "
        "FROM messages GROUP BY topic ORDER BY topic"
    )
    print(f"\nspark-sql> {view};\nspark-sql> {query};", flush=True)
    spark = session(app_name="demo", conf={"spark.sql.shuffle.partitions": "2"})
    try:
        spark.sparkContext.setLogLevel("ERROR")
        enable(spark)
        spark.sql(view)
        rows = spark.sql(query).collect()
    finally:
        spark.stop()
    for row in rows:
        print(
            f"  {row.topic:20} {row.messages:>6,} messages of {row.queues} queues "
            f"{row.bytes:>12,} bytes of bodies, the newest of {row.newest} UTC"
        )
    return Counter({row.topic: row.messages for row in rows})


def main() -> int:
    options = arguments()
    folder = options.folder.resolve()
    prepare(folder, keep=options.keep)
    config: Path | None = options.config
    store: Path | None = options.store
    if store is None:
        store, config = bundled_store(folder)
        print(f"A store that a Java broker (RocketMQ 5.5.0) wrote: {store}")
    names: list[object] = []
    for flag, value in (
        ("--config", config),
        ("--broker", options.broker),
        ("--cluster", options.cluster),
        ("--topics", options.topics),
    ):
        names += [flag, value] if value is not None else []
    (folder / "tier").mkdir(exist_ok=True)
    tier = ["--tier", f"file://{folder / 'tier'}"]

    [copied] = tieredstore("offload", store, *tier, "--state", folder / "state", *names)

    queues = tieredstore("ls", *tier)
    if not queues:
        sys.exit("demo: the store has no messages to offload")
    for row in queues:
        print(
            f"  {row['topic']:20} queue {row['queue_id']:<3} {row['messages']:>6,} messages "
            f"{row['bytes']:>12,} bytes in {row['segments']} segments"
        )

    largest = max(queues, key=lambda row: int(row["messages"]))
    topic = largest["topic"]
    start = time.monotonic()
    found = tieredstore(
        "cat", *tier, "--topic", topic, "--queue", largest["queue_id"], "--limit", 3
    )
    show_messages(found, options.body)

    keyed = next((row for row in found if row["keys"]), None)
    if keyed is not None:
        show_messages(
            tieredstore("query", *tier, "--topic", topic, "--key", keyed["keys"][0]), options.body
        )

    middle = (int(largest["min_store_timestamp"]) + int(largest["max_store_timestamp"])) // 2
    show_messages(
        tieredstore("cat", *tier, "--topic", topic, "--since", middle, "--limit", 3), options.body
    )
    reads_seconds = time.monotonic() - start

    *_, checked = tieredstore("verify", *tier)

    start = time.monotonic()
    counted = ask_spark(f"file://{folder / 'tier'}")
    spark_seconds = time.monotonic() - start
    offloaded: Counter[str] = Counter()
    for row in queues:
        offloaded[row["topic"]] += int(row["messages"])
    if counted != offloaded:
        sys.exit(f"demo: Spark counted {counted}, offloaded were {dict(offloaded)}")

    played = play(folder / "broker")
    rate = checked["messages"] / max(checked["seconds"], 1e-3)
    print(
        f"\nOffloaded  {copied['messages']:,} messages of {copied['queues']} queues, "
        f"{copied['message_bytes'] / 1e6:,.1f} MB, into {copied['segments']} segments "
        f"in {copied['seconds']:.1f} s ({copied['messages_per_second']:,} messages/s, synced)"
        f"\nRead back  by offset, key and time, from the tier alone, in {reads_seconds:.1f} s"
        f"\nVerified   {checked['messages']:,} messages, {checked['segments']} segments, "
        f"{checked['index_items']:,} index items in {checked['seconds']:.1f} s "
        f"({rate:,.0f} messages/s): size, magic, body CRC, consume queue against commit log"
        f"\nSpark      {sum(counted.values()):,} messages of {len(counted)} topics by SQL, of each "
        f"as many as were offloaded, in {spark_seconds:.1f} s"
        f"\nDamage     {checked['damage'] or 'none'}"
        f"\nBroker     sent {played.sent:,} messages one by one in {played.send_seconds:.1f} s, "
        f"consumed {played.consumed:,} in {played.consume_seconds:.1f} s, uploaded "
        f"{played.uploaded:,} in {played.upload_seconds:.1f} s"
        f"\nReplayed   {played.replayed:,} of them from the tier alone, each once and in order, in "
        f"{played.replay_seconds:.1f} s"
        f"\nThe tier is {folder / 'tier'}; try scripts/tieredstore --help on it."
    )
    return 1 if checked["damage"] else 0


if __name__ == "__main__":
    sys.exit(main())
