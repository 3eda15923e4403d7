"""A store recovers from every crash state without loss of acknowledged data (L01 to L03 of
`docs/faults.md`)."""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.crash.recorder import Recorder, Recording, record
from tests.kit.crash.states import Loss, crash_state, cuts
from tests.kit.crash.store_check import (
    Acknowledged,
    Cleaning,
    Deleting,
    Put,
    check_contents,
    read_contents,
)
from tests.kit.local_stores import START_MS, plain, small_config
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.local.cleaning.service import DiskWatch
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message

EVERY = [3, pytest.param(1, marks=pytest.mark.slow)]
"""Stride of the crash points. The daily run tests every third point, the slow run all points."""
RANDOM_STEP = 3
"""Stride of the crash points that are also tested with random losses."""
THOROUGH_STEP = 3
"""Stride of the crash states that get a longer test: the recovered store is also written, closed,
reopened and recovered again."""


class Writer:
    """A store whose puts are recorded for the test."""

    def __init__(self, config: StoreConfig, recorder: Recorder) -> None:
        self.store = DefaultMessageStore(config, ManualClock(START_MS))
        self.store.load()
        self.store.start()
        self._recorder = recorder
        self._is_durable = config.flush_disk_type == "SYNC_FLUSH"
        self._count = 0

    def message(self, topic: str, queue_id: int, size: int = 30) -> Message:
        self._count += 1
        body = (b"%s-%d-%d-" % (topic.encode(), queue_id, self._count)).ljust(size, b"x")
        return plain(topic, queue_id, self._count, body=body)

    def put(self, topic: str, queue_id: int = 0, *, count: int = 1, size: int = 30) -> None:
        messages = [self.message(topic, queue_id, size) for _ in range(count)]
        self._recorder.mark(Put(topic, queue_id, tuple(bytes(it.body) for it in messages)))
        if count == 1:
            result = self.store.put_message(messages[0])
        else:
            result = self.store.put_messages(messages)
        assert result.ok, result
        if self._is_durable:
            assert result.durable.result(10) is not None
            self._recorder.mark(Acknowledged())

    def flush(self) -> None:
        self.store.wait_until_dispatched()
        self.store.flush()
        self._recorder.mark(Acknowledged())

    def delete(self, topic: str) -> None:
        self._recorder.mark(Deleting(topic))
        self.store.delete_topics({topic})
        self._recorder.mark(Deleting(topic, is_done=True))

    def clean(self) -> None:
        """Delete the two oldest files of the commit log, as on a full disk."""
        self._recorder.mark(Cleaning())
        watch = self.store.cleaning._disk
        assert isinstance(watch, DiskWatch)
        watch._measure = lambda _: 0.87
        assert self.store.cleaning.run_once().log_files == 2

    def close(self) -> None:
        self.store.shutdown()
        self._recorder.mark(Acknowledged())


def put_and_flush(writer: Writer) -> None:
    """Put messages into three queues of two topics, with batches, two rolls of the log and a flush
    in between."""
    for _ in range(4):
        writer.put("A")
        writer.put("B", 1)
    writer.put("A", count=3)
    writer.flush()
    for _ in range(3):
        writer.put("B", 0, size=900)
        writer.put("A")
    writer.flush()
    writer.put("B", 0, size=1500)
    writer.put("A", count=2)
    writer.store.wait_until_dispatched()


def put_and_close(writer: Writer) -> None:
    for _ in range(6):
        writer.put("A")
        writer.put("B", size=800)
    writer.close()


def delete_and_make_again(writer: Writer) -> None:
    for _ in range(3):
        writer.put("A")
        writer.put("B")
    writer.flush()
    writer.put("A")
    writer.delete("A")
    writer.put("B")
    writer.put("A")
    writer.flush()
    writer.delete("A")
    writer.put("A", count=2)
    writer.flush()


def put_and_clean(writer: Writer) -> None:
    """Put messages until the commit log has six files, and then delete its first files. The consume
    queue files and index files of the deleted messages are deleted too."""
    for _ in range(9):
        writer.put("A", size=900)
        writer.put("B", size=1000)
    writer.flush()
    writer.clean()
    writer.put("A")
    writer.flush()


PROGRAMS: dict[str, Callable[[Writer], None]] = {
    "put and flush": put_and_flush,
    "put and close": put_and_close,
    "delete and make again": delete_and_make_again,
    "put and clean": put_and_clean,
}


CONFIGS: dict[str, dict[str, Any]] = {
    "ASYNC_FLUSH": {"flush_disk_type": "ASYNC_FLUSH"},
    "SYNC_FLUSH": {"flush_disk_type": "SYNC_FLUSH"},
    "extended units": {
        "flush_disk_type": "SYNC_FLUSH",
        "enable_consume_queue_ext": True,
        "mapped_file_size_consume_queue_ext_bytes": 84,
    },
}


@pytest.fixture(params=CONFIGS.values(), ids=list(CONFIGS))
def changes(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = request.param
    return found


def record_program(root: Path, config: StoreConfig, program: Callable[[Writer], None]) -> Recording:
    root.mkdir()
    with record(root) as recorder:
        writer = Writer(config, recorder)
        program(writer)
        operations = len(recorder.recording.operations)
        writer.store.shutdown()
        del recorder.recording.operations[operations:]
    return recorder.recording


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """Return a folder in memory if the machine offers one. On a disk, a recovery would spend most
    of its time on syncs."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


def losses(cut: int) -> Iterator[tuple[Loss, int]]:
    yield Loss.NOTHING, 0
    yield Loss.UNSYNCED, 0
    if cut % RANDOM_STEP == 0:
        for loss in (Loss.SOME_WRITES, Loss.SOME_NAMES, Loss.ANY):
            yield loss, 1


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_l01_l02_l03_every_crash_state_is_recovered(
    request: pytest.FixtureRequest,
    scratch: Path,
    program: Callable[[Writer], None],
    changes: dict[str, Any],
    every: int,
) -> None:
    """After each possible crash, the recovery keeps all acknowledged messages, adds no others, and
    leaves no gap of offsets. A second recovery changes nothing."""
    logging.disable(logging.WARNING)
    request.addfinalizer(lambda: logging.disable(logging.NOTSET))
    config = small_config(
        scratch / "store",
        **changes,
        delete_commit_log_files_interval_ms=0,
        delete_file_batch_max=2,
    )
    recording = record_program(scratch / "store", config, program)
    seen: set[bytes] = set()
    for cut in cuts(recording)[::every]:
        for loss, seed in losses(cut):
            state = crash_state(recording, cut, loss, seed)
            digest = hashlib.sha256(repr(sorted(state.files.items())).encode())
            digest.update(repr((state.folders, len(state.facts))).encode())
            if digest.digest() in seen:
                continue
            seen.add(digest.digest())
            root = scratch / "crashed"
            shutil.rmtree(root, ignore_errors=True)
            root.mkdir()
            state.write_to(root)
            try:
                _check_recovery(
                    root, changes, state.facts, thoroughly=len(seen) % THOROUGH_STEP == 0
                )
            except Exception as error:
                error.add_note(
                    f"crash before operation {cut} ({loss.name}, seed {seed}): "
                    f"{recording.operations[max(cut - 2, 0) : cut + 1]}"
                )
                raise
    assert len(seen) > 100 // every


def _check_recovery(
    root: Path, changes: dict[str, Any], facts: list[object], *, thoroughly: bool
) -> None:
    config = small_config(root, **changes)
    store = DefaultMessageStore(config, ManualClock(START_MS))
    try:
        store.load()
        store.start()
        contents = read_contents(store)
        check_contents(contents, facts)
        if not thoroughly:
            return
        again = root.with_name("again")
        shutil.rmtree(again, ignore_errors=True)
        shutil.copytree(root, again)  # killed right after its recovery
        for key, rows in contents.messages.items():
            for row in rows:
                assert row.keys, row
                found = store.query_message(key.topic, row.keys[0], 64, 0, 2**62)
                assert row.queue_offset in [
                    it.queue_offset for it in found if it.queue_id == key.queue_id
                ], (key, row.queue_offset, row.keys)
        result = store.put_message(plain("A", 0, 999, body=b"later"))
        assert result.ok, result
        store.wait_until_visible(result)
        assert store.get_message("g", "A", 0, result.queue_offset, 1).messages[
            0
        ].body == memoryview(b"later")
    finally:
        store.shutdown()
    after = DefaultMessageStore(config, ManualClock(START_MS))
    after.load()
    after.start()
    try:
        expected = contents.bodies()
        found_after = read_contents(after).bodies()
        for key, bodies in found_after.items():
            assert bodies == [*expected.get(key, []), *([b"later"] if key == ("A", 0) else [])]
    finally:
        after.shutdown()
    twice = DefaultMessageStore(small_config(again, **changes), ManualClock(START_MS))
    twice.load()
    twice.start()
    try:
        assert read_contents(twice).bodies() == contents.bodies()
        assert read_contents(twice).offsets == contents.offsets
    finally:
        twice.shutdown()
