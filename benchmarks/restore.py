"""Reads of a restore: `python -m benchmarks.restore [--queues 1000] [--megabytes 100]`.

Creates a tier on disk with the given number of queues and MB per queue (messages of 4 MB of zeros),
and restores a store from it. Reports the number and bytes of read calls, CPU seconds and wall clock
seconds. Each written file becomes sparse immediately (`fallocate --dig-holes`), so that 100 GB need
little disk.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks.workload import BROKER, CLUSTER, config, opened_tier
from tieredstore import jobs
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.scan.location import locate

BODY = bytes((4 << 20) - 4096)
UPLOADED_TOGETHER = 8
"""Number of queues in one step. The messages of these queues are put, uploaded, and deleted from
the local store before the next step."""


def fill(folder: Path, queues: int, messages: int) -> None:
    """Put and upload `messages` messages into each queue, and stop cleanly."""
    settings = config(
        folder,
        posix_fsync_enable=False,
        mapped_file_size_commit_log_bytes=64 << 20,
        local_file_reserved_time_hours=0,
        delete_file_batch_max=1000,
        delete_commit_log_files_interval_ms=0,
        max_message_size_bytes=8 << 20,
    )
    local = DefaultMessageStore(settings)
    topics = {f"topic-{number:06d}": {"perm": 6} for number in range(queues)}
    table = Path(settings.store_path_root_dir, "config", "topics.json")  # A broker would write it.
    table.parent.mkdir(parents=True, exist_ok=True)
    table.write_text(json.dumps({"topicConfigTable": topics}))
    with opened_tier(settings, local) as store:
        store.start()
        for first in range(0, queues, UPLOADED_TOGETHER):
            together = list(topics)[first : first + UPLOADED_TOGETHER]
            for number in range(messages):
                for topic in together:
                    made = Message.create(topic, BODY, queue_id=0, keys=(f"{topic}-{number}",))
                    assert store.put_message(made).ok
            local.wait_until_dispatched()
            outcomes = store.dispatcher.scan(force=True)
            assert sum(one.messages for one in outcomes) == len(together) * messages
            for topic in together:
                for path in Path(settings.tier_file_path).glob(
                    f"*/*/{topic}/0/COMMIT_LOG/[0-9a-f]*"
                ):
                    subprocess.run(["fallocate", "--dig-holes", path], check=True)
            local.execute_delete_files_manually()
            local.cleaning.run_once()


def count_reads() -> tuple[int, int]:
    """Return the number and bytes of this process's read calls so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    found = {name: int(value) for name, value in (line.split(": ") for line in lines)}
    return found["syscr"], found["rchar"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.restore", description=__doc__)
    parser.add_argument("--queues", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=100, help="of each queue (1e6 bytes)")
    parser.add_argument("--folder", type=Path, help="work on this disk (default: the temporary)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tieredstore-restore-", dir=given.folder) as name:
        folder = Path(name)
        fill(folder, given.queues, max(given.megabytes * 10**6 // len(BODY), 1))
        tier = locate(config(folder).tier_file_path, cluster=CLUSTER, broker=BROKER)
        calls, size = count_reads()
        processor, clock = time.process_time(), time.perf_counter()
        report = jobs.restore(tier, folder / "restored")
        processor, clock = time.process_time() - processor, time.perf_counter() - clock
        calls, size = (
            now - before for now, before in zip(count_reads(), (calls, size), strict=True)
        )
    print(
        f"{report['queues']} queues, {report['messages']} messages, "
        f"{report['size_bytes'] / 1e9:.1f} GB: {calls} reads of {size / 1e6:.1f} MB, "
        f"{processor:.1f} s of the processor, {clock:.1f} s"
    )


if __name__ == "__main__":
    main()
