"""Memory, start and history of many lite topics: `python -m benchmarks.lite_topics [--topics N]`.

A store with consume queues in RocksDB gets one message in each of N lite topics. The messages are
uploaded to a Posix tier, with a run: a file that lists the messages of each lite topic. Then store
and tier are opened again, and lite topics are read from the tier. Each step is a process of its
own. Memory is the growth of resident bytes during a step. Nothing is synced.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.scale import make_config
from tieredstore.config import LoadedConfig, StoreConfig
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.message.lite import LiteTopic
from tieredstore.message.properties import encode_properties
from tieredstore.tier.store import TieredMessageStore

PARENT = "P"
READS = 100
TOPICS = {
    "topicConfigTable": {PARENT: {"topicName": PARENT, "attributes": {"message.type": "LITE"}}},
    "dataVersion": {"counter": 1},
}


def configure(folder: Path) -> StoreConfig:
    return msgspec.structs.replace(
        make_config(folder), store_type="defaultRocksDB", enable_lmq=True
    )


def name_queue(number: int) -> str:
    return LiteTopic(PARENT, f"session-{number:08d}").queue


def count_bytes() -> int:
    """Return the resident bytes of this process without mapped files."""
    fields = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) << 10


def put_all(folder: Path, topics: int) -> dict[str, float]:
    config = folder / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text(json.dumps(TOPICS))
    store = DefaultMessageStore(configure(folder))
    store.load()
    store.start()
    before, begun = count_bytes(), time.perf_counter()
    for number in range(topics):
        properties = encode_properties({"INNER_MULTI_DISPATCH": name_queue(number)})
        assert store.put_message(Message(PARENT, b"x" * 100, properties=properties)).ok
    store.wait_until_dispatched()
    found = {
        "put_seconds": time.perf_counter() - begun,
        "bytes_a_topic": (count_bytes() - before) / topics,
    }
    store.shutdown()
    return found


def open_tier(folder: Path) -> TieredMessageStore:
    config = configure(folder)
    loaded = LoadedConfig(config, frozenset({"brokerName"}), ())
    store = TieredMessageStore.from_config(DefaultMessageStore(config), loaded)
    store.load()
    store.start()
    return store


def upload(folder: Path, topics: int) -> dict[str, float]:
    store = open_tier(folder)
    begun = time.perf_counter()
    store.dispatcher.scan(force=True)
    store.lite.run_once()
    found = {"upload_seconds": time.perf_counter() - begun}
    assert sum(len(run.names) for run in store.lite.directory.runs) == topics
    store.shutdown()
    return found


def reopen(folder: Path, topics: int) -> dict[str, float]:
    before, begun = count_bytes(), time.perf_counter()
    store = open_tier(folder)
    found = {
        "start_seconds": time.perf_counter() - begun,
        "start_bytes_a_topic": (count_bytes() - before) / topics,
    }
    store.dispatch_source.is_in_store = lambda *_: False  # type: ignore[method-assign]
    begun = time.perf_counter()
    for number in range(0, topics, max(topics // READS, 1)):
        result = store.get_message("g", name_queue(number), 0, 0, 32)
        assert len(result.messages) == 1
    found["read_milliseconds"] = (time.perf_counter() - begun) / READS * 1000
    store.shutdown()
    return found


STEPS = {"put": put_all, "upload": upload, "reopen": reopen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=100_000)
    parser.add_argument("--step", choices=STEPS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step is not None:
        print(json.dumps(STEPS[options.step](options.folder, options.topics)))
        return
    with tempfile.TemporaryDirectory() as folder:
        for step in STEPS:
            command = [sys.executable, "-m", "benchmarks.lite_topics", "--step", step]
            command += ["--folder", folder, "--topics", str(options.topics)]
            ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            for name, value in json.loads(ran.stdout.splitlines()[-1]).items():
                print(f"{name}: {value:,.2f}")


if __name__ == "__main__":
    main()
