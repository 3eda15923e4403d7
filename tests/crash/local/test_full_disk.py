"""A store on its own small file system. The file system becomes full, and later has free space
again."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MOUNT = 'mount -t tmpfs -o size=24m tmpfs "$1" && exec "$2" -c "$3" "$1"'

CODE = """
import collections, logging, os, sys
from pathlib import Path
from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.contracts.message_store import PutMessageStatus

logging.disable(logging.CRITICAL)
folder = Path(sys.argv[1])
config = small_config(
    folder / "store",
    mapped_file_size_commit_log_bytes=1 << 20,
    mapped_file_size_consume_queue_bytes=20 * 1000,
    max_hash_slot_num=1000,
    max_index_num=4000,
)
statuses = collections.Counter()
acknowledged = 0

def put(count, **more):
    global acknowledged
    for _ in range(count):
        result = store.put_message(plain(number=acknowledged, **more))
        statuses[result.status] += 1
        acknowledged += result.ok

def check(store):
    store.wait_until_dispatched()
    assert store.get_max_offset_in_queue("T", 0) == acknowledged
    for number in range(acknowledged):
        [found] = store.get_message("g", "T", 0, number, 1).messages
        assert found.keys == [f"k{number}"], found.keys

with running(config) as store:
    put(100, body=b"x" * 3000)
    store.wait_until_dispatched()
    ballast = os.open(folder / "ballast", os.O_WRONLY | os.O_CREAT)
    size = 1 << 20
    while size:
        try:
            os.write(ballast, bytes(size))
        except OSError:
            size //= 2
    put(2000, body=b"x" * 3000)
    assert statuses[PutMessageStatus.CREATE_MAPPED_FILE_FAILED] > 0, statuses
    assert set(statuses) <= {
        PutMessageStatus.PUT_OK,
        PutMessageStatus.CREATE_MAPPED_FILE_FAILED,
        PutMessageStatus.SERVICE_NOT_AVAILABLE,
    }, statuses
    os.close(ballast)
    os.unlink(folder / "ballast")
    store.cleaning.run_once()  # sees that there is room
    before = acknowledged
    put(100)
    assert acknowledged == before + 100, statuses
    check(store)
    store.flush()
    raised = store.running_flags.list_raised()
    assert not [it for it in raised if it.is_lasting], raised
assert not (folder / "store" / "abort").exists()
with running(config) as store:
    check(store)
"""


def test_l05_a_file_system_that_is_really_full_passes(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs `unshare`, to mount a small file system")
    probe = [unshare, "-m", "sh", "-c", 'mount -t tmpfs -o size=1m tmpfs "$0"', str(tmp_path)]
    refused = subprocess.run(probe, capture_output=True, text=True, check=False)
    if refused.returncode:
        pytest.skip(f"may not mount a small file system: {refused.stderr.strip()}")
    done = subprocess.run(
        [unshare, "-m", "sh", "-c", MOUNT, "sh", str(tmp_path), sys.executable, CODE],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
