"""Scaling with the number of queues: `python -m benchmarks.scale [--queues N,…] [--document PAGE]`.

A broker's store has many topics, each with one queue of a few small messages, which are interleaved
in the log. The store is uploaded to a Posix tier. Then the broker is opened again, and the commands
run over store and tier. Each step is a process of its own. Seconds are CPU seconds of all threads
and child processes. Memory is the largest resident size. Open files are counted at the end of the
step. Nothing is synced, and files are in the page cache.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.report import environment
from benchmarks.workload import BROKER, CLUSTER, opened_tier
from tieredstore import registry
from tieredstore.config import StoreConfig
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.server_process import without_cycle_search
from tieredstore.tier.store import TieredMessageStore

MESSAGES = 4
"""Number of messages in each queue before the step that adds one message."""
BODY = b"x" * 100
BEGIN, END = "<!-- scale results: begin -->", "<!-- scale results: end -->"
FULL = 100_000
"""Number of queues for which the targets of the benchmark are defined."""

Found = dict[str, float]


def make_config(folder: Path) -> StoreConfig:
    return StoreConfig(
        broker_name=BROKER,
        broker_cluster_name=CLUSTER,
        store_path_root_dir=str(folder / "store"),
        tier_file_path=str(folder / "tier"),
        backend_service_provider="posix",
        posix_fsync_enable=False,
        mapped_file_size_commit_log_bytes=64 << 20,
        mapped_file_size_consume_queue_bytes=2_000,
        file_reserved_time_hours=876_000,
    )


# Steps


def fill(folder: Path, queues: int) -> Found:
    """Create the store, before any row is measured."""
    store = DefaultMessageStore(make_config(folder))
    store.load()
    store.start()
    _put(store, queues, range(MESSAGES))
    store.shutdown()
    (folder / "broker.conf").write_text("tieredStorePosixFsyncEnable=false\n")
    return {}


def _put(store: Any, queues: int, rounds: Sequence[int]) -> None:
    for number in rounds:
        for queue in range(queues):
            made = Message.create(
                f"topic-{queue:06d}",
                BODY,
                queue_id=0,
                keys=(f"key-{queue}-{number}",),
                properties={"UNIQ_KEY": f"7F000001{queue * 100 + number:024X}"},
            )
            assert store.put_message(made).ok


@contextmanager
def tiered(folder: Path) -> Iterator[TieredMessageStore]:
    """Open the tiered store of a broker during the block, without its background loops."""
    with opened_tier(make_config(folder)) as store:
        yield store


def upload(folder: Path, queues: int) -> Found:
    with tiered(folder) as store:
        return _scan(store, queues, queues * MESSAGES)


def upload_again(folder: Path, queues: int) -> Found:
    with tiered(folder) as store:
        store.next_store.start()
        store.dispatcher.scan(force=True)  # Each queue's last message is compared, once a process.
        _put(store, queues, range(MESSAGES, MESSAGES + 1))
        store.next_store.wait_until_dispatched()  # type: ignore[attr-defined]
        return _scan(store, queues, queues)


def _scan(store: TieredMessageStore, queues: int, messages: int) -> Found:
    started = time.process_time()
    outcomes = store.dispatcher.scan(force=True)
    seconds = time.process_time() - started
    assert sum(outcome.messages for outcome in outcomes) == messages
    return {"seconds": seconds, "queues": queues, **_count_used()}


def open_broker(folder: Path, queues: int) -> Found:
    started = time.process_time()
    with tiered(folder) as store:
        seconds = time.process_time() - started
        assert len(list(store.flat_files.files())) == queues
        return {"seconds": seconds, "queues": queues, **_count_used()}


def scan_idly(folder: Path, queues: int) -> Found:
    with tiered(folder) as store:
        store.dispatcher.scan(force=True)
        store.dispatcher.scan()
        started = time.process_time()
        for _ in range(10):
            assert store.dispatcher.scan() == []
        seconds = (time.process_time() - started) / 10
        return {"seconds": seconds, "queues": queues, **_count_used()}


def load_metadata(folder: Path, queues: int) -> Found:
    started = time.process_time()
    metadata = registry.metadata_store(make_config(folder))
    metadata.load()
    seconds = time.process_time() - started
    assert len(metadata.topics()) == queues
    return {"seconds": seconds, "queues": queues, **_count_used()}


class TimedLock:
    """Lock that records the longest time for which it was held, in CPU seconds."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._depth = 0
        self._since = self.longest = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._since = time.thread_time()

    def __exit__(self, *_: object) -> None:
        if self._depth == 1:
            self.longest = max(self.longest, time.thread_time() - self._since)
        self._depth -= 1
        self._lock.release()


def hold_lock(folder: Path, queues: int) -> Found:
    """Measure the longest time for which the metadata lock is held. A thread continuously writes
    snapshots of the metadata, while segment sizes change, and segments and topics are added, as on
    an object store."""
    copied = shutil.copytree(folder / "store" / "config", folder / "held" / "config").parent
    metadata = DefaultMetadataStore(copied / "config" / "tieredStoreMetadata.json", BROKER)
    metadata.load()
    metadata.journal_structure(is_wanted=True)
    metadata.flush()
    lock = metadata._kept.lock = TimedLock()  # type: ignore[assignment]
    entries = list(metadata.segments())
    lock.longest = 0.0
    snapshots = threading.Event()

    def write() -> None:
        while not snapshots.is_set():
            metadata.flush()

    writer = threading.Thread(target=write)
    writer.start()
    for number, entry in enumerate(entries):
        entry.size += 1
        metadata.put_segment(entry)
        if number % 100 == 0:
            metadata.put_segment(replace(entry, base_offset=1 << 40, size=0))
    with metadata.batch():
        for number in range(queues):
            metadata.add_topic(f"another-{number:06d}")
    snapshots.set()
    writer.join()
    metadata.close()
    shutil.rmtree(copied)
    return {"seconds": lock.longest, "queues": queues, **_count_used()}


def _count_used() -> Found:
    return {
        "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "files": len(list(Path("/proc/self/fd").iterdir())),
    }


Step = Callable[[Path, int], Found]
STEPS: dict[str, Step] = {
    "fill": fill,
    "upload": upload,
    "again": upload_again,
    "open": open_broker,
    "idle": scan_idly,
    "load": load_metadata,
    "lock": hold_lock,
}


# Rows


@dataclass(frozen=True, slots=True)
class Target:
    """Targets for a tier with `FULL` queues: total time, time per queue, and memory. None means no
    target."""

    seconds: float | None = None
    ms_a_queue: float | None = None
    mib: float | None = None

    def __str__(self) -> str:
        said = []
        if self.seconds is not None:
            small = self.seconds < 1
            said.append(f"≤ {self.seconds * 1e3:g} ms" if small else f"≤ {self.seconds:g} s")
        if self.ms_a_queue is not None:
            said.append(f"≤ {self.ms_a_queue:g} ms a queue")
        if self.mib is not None:
            said.append(f"≤ {self.mib / 1024:g} GiB")
        return ", ".join(said)

    def is_met(self, found: Found) -> bool:
        each_ms = found["seconds"] * 1e3 / found["queues"]
        return (
            (self.seconds is None or found["seconds"] <= self.seconds)
            and (self.ms_a_queue is None or each_ms <= self.ms_a_queue)
            and (self.mib is None or found["mib"] <= self.mib)
        )


@dataclass(frozen=True, slots=True)
class Row:
    """One row: a step, or a command in which {} stands for the tier and {store} for the store."""

    name: str
    target: Target
    step: str = ""
    command: Sequence[str] = ()


_TIER = ("--tier", "{tier}", "--cluster", CLUSTER, "--broker", BROKER)
_OFFLOAD = (
    *("offload", "{store}", "--tier", "{folder}/offloaded", "--state", "{folder}/state"),
    *("--cluster", CLUSTER, "--broker", BROKER, "--config", "{folder}/broker.conf", "--quiet"),
)
ROWS = (
    Row("first upload of all queues", Target(ms_a_queue=0.5, mib=2048), "upload"),
    Row("a message more in each, uploaded", Target(ms_a_queue=0.5, mib=2048), "again"),
    Row("open", Target(seconds=10, mib=2048), "open"),
    Row("idle scan", Target(seconds=0.02, mib=2048), "idle"),
    Row("metadata: load", Target(seconds=1.5, mib=2048), "load"),
    Row("metadata: longest hold of its lock", Target(seconds=0.005, mib=2048), "lock"),
    Row("`offload` of all", Target(), command=_OFFLOAD),
    Row("`offload`, nothing to do", Target(seconds=10), command=_OFFLOAD),
    Row(
        "`verify`",
        Target(ms_a_queue=1),
        command=("verify", *_TIER, "--state", "{store}", "--quiet"),
    ),
    Row("`ls`", Target(ms_a_queue=1), command=("ls", *_TIER, "--state", "{store}")),
    Row(
        "`export --format parquet`",
        Target(ms_a_queue=1),
        command=(
            *("export", *_TIER, "--state", "{store}", "--format", "parquet"),
            *("--partition-by", "day", "--to", "{folder}/export", "--quiet"),
        ),
    ),
    Row(
        "`rebuild metadata`",
        Target(ms_a_queue=1),
        command=("rebuild", "metadata", *_TIER, "--state", "{folder}/rebuilt", "--quiet"),
    ),
    Row(
        "`rebuild index`",
        Target(ms_a_queue=1),
        command=(
            *("rebuild", "index", *_TIER, "--state", "{store}", "--work", "{folder}/work"),
            *("--force", "--quiet"),
        ),
    ),
)


def run_step(name: str, folder: Path, queues: int) -> Found:
    """Run a step in a separate process."""
    given = [sys.executable, "-m", "benchmarks.scale", "--step", name]
    given += ["--folder", str(folder), "--queues", str(queues)]
    ran = subprocess.run(given, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"{name}: {ran.stderr[-2000:]}")
    found: Found = json.loads(ran.stdout.splitlines()[-1])
    return found


def run_command(row: Row, folder: Path, queues: int) -> Found:
    """Run a command. The CPU seconds include the start of Python."""
    store, tier = folder / "store", folder / "tier"
    given = [part.format(folder=folder, store=store, tier=tier) for part in row.command]
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "tieredstore", *given], stdout=output, stderr=output
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            output.seek(0)
            raise RuntimeError(f"{row.name}: {output.read()[-2000:].decode()}")
        lines = output.seek(0) or output.read().count(b"\n")
    seconds = used.ru_utime + used.ru_stime
    return {"seconds": seconds, "queues": queues, "mib": used.ru_maxrss / 1024, "lines": lines}


def measure(row: Row, folder: Path, queues: int) -> Found:
    return run_command(row, folder, queues) if row.command else run_step(row.step, folder, queues)


def show(row: Row, found: Found) -> str:
    seconds = found["seconds"]
    verdict = "–"
    if found["queues"] >= FULL:
        verdict = f"{row.target}: {'met' if row.target.is_met(found) else 'missed'}"
    return " | ".join(
        (
            f"| {row.name}",
            f"{found['queues']:,}",
            f"{seconds * 1e3:.2f} ms" if seconds < 0.1 else f"{seconds:.1f} s",
            f"{seconds * 1e3 / found['queues']:.3f} ms",
            f"{found['mib']:.0f}",
            f"{found['files']:.0f}" if "files" in found else "–",
            f"{found['lines']:.0f}" if "lines" in found else "–",
            f"{verdict} |",
        )
    )


HEAD = (
    "| what | queues | processor | a queue | MiB | open files | lines printed | target |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.scale", description=__doc__)
    parser.add_argument("--queues", default="1000,10000,100000", metavar="N,…")
    parser.add_argument(
        "--only", default="", metavar="TEXT,…", help="rows whose name has one of these"
    )
    parser.add_argument("--folder", type=Path, help="work on this disk (default: the temporary)")
    parser.add_argument("--document", type=Path, metavar="PAGE", help="put the table there")
    parser.add_argument("--step", choices=tuple(STEPS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.step:
        with without_cycle_search():
            print(json.dumps(STEPS[given.step](given.folder, int(given.queues))))
        return
    print(HEAD)
    lines = []
    with tempfile.TemporaryDirectory(prefix="tieredstore-scale-", dir=given.folder) as name:
        machine = environment(None, Path(name))
        for queues in map(int, given.queues.split(",")):
            folder = Path(name) / str(queues)
            folder.mkdir()
            run_step("fill", folder, queues)
            for row in ROWS:
                if row.step == "upload" or any(one in row.name for one in given.only.split(",")):
                    found = measure(row, folder, queues)
                    lines.append(show(row, found))
                    print(lines[-1], flush=True)
    if given.document:
        about = (
            f"Machine: {machine['cores']} cores ({machine['machine']}), {machine['memory_gib']} "
            f"GiB, {machine['file_system']}, Python {machine['python']}, load "
            f"{os.getloadavg()[0]:.0f}."
        )
        before, rest = given.document.read_text().split(BEGIN)
        table = "\n".join([HEAD, *lines])
        given.document.write_text(f"{before}{BEGIN}\n{about}\n\n{table}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
