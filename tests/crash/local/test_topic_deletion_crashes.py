"""The machine stops at any file operation while topics are deleted and recreated (L01 and L15 of
`docs/faults.md`)."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.kit.crash.recorder import Mark, Recording, Remove, record
from tests.kit.crash.states import CrashState, Loss, crash_state, cuts
from tests.kit.local_stores import FOREVER, START_MS, plain, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.local.message_store import DefaultMessageStore

COUNT = 60
STATES = 60
"""Number of crash states that one test checks, drawn at random from all states."""


def config_of(root: Path) -> StoreConfig:
    """Return settings with consume queue files of 150 units. With this size, the blank units before
    a queue's first message fill several sectors."""
    return small_config(
        root,
        mapped_file_size_commit_log_bytes=16_384,
        mapped_file_size_consume_queue_bytes=3_000,
        max_hash_slot_num=100,
        max_index_num=400,
    )


def put_life(store: DefaultMessageStore, life: int, offset: int) -> None:
    messages = [
        plain("T", 0, number, keys=[f"life{life}"], uniq_key=None, body=b"life %d" % life)
        for number in range(COUNT)
    ]
    result = store.put_messages(messages)
    assert (result.ok, result.queue_offset) == (True, offset)
    store.wait_until_dispatched()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    root = tmp_path_factory.mktemp("recorded")
    with record(root) as recorder, running(config_of(root)) as store:
        for life in range(2):
            put_life(store, life, life * COUNT)
            store.put_message(plain("other", 0, life))
            if life == 0:
                store.flush()
                recorder.mark("put 0")
            store.delete_topics({"T"})
            recorder.mark(f"deleted {life}")
        put_life(store, 2, 2 * COUNT)
        store.flush()
        recorder.mark("put 2")
    return recorder.recording


def read(store: Any) -> list[tuple[int, bytes]]:
    found: list[tuple[int, bytes]] = []
    offset = store.get_min_offset_in_queue("T", 0)
    while True:
        result = store.get_message("g", "T", 0, offset, 32)
        if result.status is not GetMessageStatus.FOUND:
            return found
        found += [(message.queue_offset, bytes(message.body)) for message in result.messages]
        offset = result.next_begin_offset


def check(state: CrashState, root: Path, *, is_stopped: bool) -> None:
    state.write_to(root)
    if not is_stopped:
        (root / "abort").touch()  # it is on disk before anything else
    facts = {fact for fact in state.facts if isinstance(fact, str)}
    last = max((life for life in range(2) if f"deleted {life}" in facts), default=-1)
    clock = ManualClock(START_MS + 1_000_000)
    for _ in range(2):
        with running(config_of(root), clock) as store:
            found = read(store)
            lives = {int(body[-1:]) for _, body in found}
            assert all(offset // COUNT == int(body[-1:]) for offset, body in found)
            assert not lives or lives == {max(lives)}
            assert not lives or min(lives) > last
            for life in range(last + 1):
                assert store.query_message("T", f"life{life}", 99, *FOREVER) == []
            if "put 0" in facts and last < 0 and lives != {0}:
                assert not lives or lives == {1}  # the deletion had reached the disk already
            if "put 2" in facts:
                assert found == [(2 * COUNT + n, b"life 2") for n in range(COUNT)]
    with running(config_of(root), clock) as store:
        offset = store.put_message(plain("T", 0, 0)).queue_offset
        assert offset >= (last + 1) * COUNT
        if found:
            assert offset == found[-1][0] + 1


@pytest.mark.parametrize("loss", list(Loss))
def test_l01_l15_a_deleted_topic_stays_deleted_wherever_the_machine_stops(
    recording: Recording, loss: Loss, tmp_path: Path
) -> None:
    chance = random.Random(loss.name)
    places = cuts(recording)[recording.operations.index(Mark("put 0")) :]
    chosen = sorted(chance.sample(places, min(len(places), STATES)))
    seen: list[dict[str, bytes]] = []
    for cut in chosen:
        state = crash_state(recording, cut, loss, seed=1)
        if seen and seen[-1] == state.files:
            continue
        seen.append(state.files)
        folder = tmp_path / str(cut)
        folder.mkdir()
        try:
            stopped = Remove("abort") in recording.operations[:cut]
            check(state, folder, is_stopped=stopped)
        except BaseException as error:
            error.add_note(f"{loss}, cut {cut}, facts {state.facts}, see {folder}")
            raise
    assert len(seen) > 10
