"""An offload of an unchanged store opens no queue and writes nothing. If the store may have
changed, the offload reads it as usual."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import files_of, tieredstore
from tests.kit.followed import Steps, fill, options
from tests.kit.local_stores import plain, running, small_config
from tests.kit.offloaded import stored_messages
from tests.kit.store_type import STORE_TYPE
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Fenced, Invalid, TieredStoreError, Unavailable
from tieredstore.jobs.offloading.following import follow_store
from tieredstore.jobs.offloading.job import offload_store, plan_offload
from tieredstore.jobs.offloading.report import OffloadReport
from tieredstore.jobs.offloading.unchanged import SEEN_FILE
from tieredstore.jobs.stopping import StopSignal
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.index.service import IndexStoreService
from tieredstore.tier.state_files import StateLock
from tieredstore.tier.upload.dispatcher import MessageStoreDispatcher

IN_FILES = pytest.mark.skipif(STORE_TYPE != "default", reason="queues are in no files")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with two topics. All messages are in the tier."""
    root = tmp_path / "store"
    fill(root, *(plain(topic, number=number) for topic in "AB" for number in range(3)))
    assert offload_store(options(root)).messages == 6
    return root


def seen_file(store: Path) -> Path:
    return store.parent / "state" / SEEN_FILE


def epoch(store: Path) -> int:
    """Return the epoch of the last writer. Each run that opens the tier for writing acquires a new
    epoch."""
    found = [json.loads(path.read_bytes()) for path in (store.parent / "tier").glob("*/b/.writer")]
    return sum(int(writer["number"]) for writer in found)  # one, or none


def run_looks(store: Path, **more: Any) -> bool:
    """Return whether a run with these options reads the queues. The run may fail."""
    opened: list[Any] = []
    scan = MessageStoreDispatcher.scan

    def noted(self: MessageStoreDispatcher, *args: Any, **named: Any) -> Any:
        opened.append(self)
        return scan(self, *args, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MessageStoreDispatcher, "scan", noted)
        offload_store(options(store, **more))
    return bool(opened)


def told(report: OffloadReport) -> dict[str, object]:
    return {name: value for name, value in report.fields().items() if "second" not in name}


def test_a_run_that_finds_nothing_changed_says_what_one_that_looks_says(store: Path) -> None:
    quick = offload_store(options(store))
    seen_file(store).unlink()
    before = epoch(store)
    assert told(offload_store(options(store))) == told(quick)
    assert epoch(store) == before + 1


def test_it_takes_no_right_and_writes_nothing(store: Path) -> None:
    before = files_of(store.parent)
    report = offload_store(options(store))
    assert (report.queues, report.messages, report.failed) == (2, 0, [])
    assert files_of(store.parent) == before


def test_from_one_process_to_the_next(store: Path) -> None:
    before = epoch(store)
    ran = tieredstore(
        *("offload", store, "--tier", f"file://{store.parent / 'tier'}", "--broker", "b"),
        *("--cluster", "c", "--state", store.parent / "state", "--output", "json"),
    )
    assert (ran.code, ran.record["queues"], ran.record["messages"]) == (0, 2, 0)
    assert epoch(store) == before


def _with_times_kept(root: Path, change: Callable[[], object]) -> None:
    """Change a file, and then restore the earlier times of all files and folders."""
    times = {path: path.stat() for path in (root, *root.rglob("*"))}
    change()
    for path, found in times.items():
        if path.exists():
            os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


def test_a_message_more_is_found_whatever_the_times_of_files_say(store: Path) -> None:
    _with_times_kept(store, lambda: fill(store, plain("A", number=3)))
    assert offload_store(options(store)).messages == 1


def test_a_message_in_a_new_file_of_the_log_is_found(tmp_path: Path) -> None:
    root = tmp_path / "store"
    fill(root, plain("A", body=bytes(3700)))
    offload_store(options(root))
    assert not run_looks(root)
    _with_times_kept(root, lambda: fill(root, plain("A", body=bytes(1000))))
    assert offload_store(options(root)).messages == 1
    assert not run_looks(root)


def put_back(store: Path) -> None:
    """Delete a store, and put an older copy in its place."""
    copy = store.parent / "copy"
    shutil.copytree(store, copy)
    fill(store, plain("A", number=3))
    assert offload_store(options(store)).messages == 1
    shutil.rmtree(store)
    copy.rename(store)


def delete_local_topic(store: Path) -> None:
    for topic in (store / "consumequeue").glob("B"):
        shutil.rmtree(topic)


def make_batch_topic(store: Path) -> None:
    (store / "config").mkdir(exist_ok=True)
    topics = {"topicConfigTable": {"B": {"attributes": {"+queue.type": "BatchCQ"}}}}
    (store / "config" / "topics.json").write_text(json.dumps(topics))


def leave_unclean(store: Path) -> None:
    (store / "abort").touch()


def run_a_broker(store: Path) -> None:
    fill(store)


def delete_tier(store: Path) -> None:
    shutil.rmtree(store.parent / "tier")


def segments(store: Path) -> list[Path]:
    return sorted((store.parent / "tier").glob("*/b/A/0/COMMIT_LOG/[!.]*"))


def delete_segment(store: Path) -> None:
    segments(store)[0].unlink()


def cut_segment(store: Path) -> None:
    os.truncate(segments(store)[0], 1)


def lengthen_segment(store: Path) -> None:
    with segments(store)[0].open("ab") as file:
        file.write(b"x")


def add_segment(store: Path) -> None:
    segment = SegmentId("b/A/0", FileSegmentType.COMMIT_LOG, 1 << 20)
    PosixProvider(store.parent / "tier", "c").open(segment).write(0, [b"x"])


def write_elsewhere(store: Path) -> None:
    PosixProvider(store.parent / "tier", "c").acquire_writer("b").release()


def delete_metadata(store: Path) -> None:
    for path in (store.parent / "state" / "config").iterdir():
        path.unlink()


def leave_index_file(store: Path) -> None:
    (store.parent / "state" / "tiered_index_file" / "1700000000000").write_bytes(b"")


def spoil(store: Path) -> None:
    seen_file(store).write_text("{")


def age(store: Path) -> None:
    found = json.loads(seen_file(store).read_bytes())
    seen_file(store).write_text(json.dumps({**found, "format": found["format"] + 1}))


CHANGES = [
    put_back,
    pytest.param(delete_local_topic, marks=IN_FILES),
    make_batch_topic,
    leave_unclean,
    run_a_broker,
    delete_tier,
    delete_segment,
    cut_segment,
    lengthen_segment,
    add_segment,
    write_elsewhere,
    delete_metadata,
    leave_index_file,
    spoil,
    age,
]


@pytest.mark.parametrize("change", CHANGES)
def test_what_has_changed_is_looked_at(
    store: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """After a change, an offload has the same result as a run without a record of the last run."""
    change(store)
    copies = tmp_path / "copies"
    for name in ("tier", "state"):
        if (tmp_path / name).exists():
            shutil.copytree(tmp_path / name, copies / name)
    outcomes = []
    for is_known in (True, False):
        if not is_known:
            for name in ("tier", "state"):
                shutil.rmtree(tmp_path / name, ignore_errors=True)
                if (copies / name).exists():
                    shutil.copytree(copies / name, tmp_path / name)
            seen_file(store).unlink(missing_ok=True)
        number = epoch(store)
        try:
            outcomes.append(told(offload_store(options(store))))
        except TieredStoreError as error:
            outcomes.append({"error": f"{type(error).__name__}: {error}"})
        # What does not belong together may be refused before the right is taken.
        assert epoch(store) in {number + 1, number + ("error" not in outcomes[-1])}
    assert outcomes[0] == outcomes[1]


@pytest.mark.parametrize(
    "more",
    [
        {"topics": ["A"]},
        {"properties": {"tieredStoreExcludeTopics": "B"}},
        {"properties": {"messageIndexEnable": "false"}},
        {"recovered": True},
    ],
)
def test_another_choice_is_looked_at(store: Path, more: dict[str, Any]) -> None:
    assert run_looks(store, **more)
    assert run_looks(store)  # what that run left is not this one's


def test_whoever_asks_for_the_right_gets_it(store: Path) -> None:
    assert run_looks(store, take_over=True)


def test_another_tier_and_another_state_are_looked_at(store: Path, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="tier is empty"):
        offload_store(replace(options(store), tier=f"file://{tmp_path / 'another'}"))
    assert offload_store(options(store)).failed == []
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    before = epoch(store)
    assert offload_store(replace(options(store), state=tmp_path / "copy")).messages == 0
    assert epoch(store) == before + 1


def test_a_living_writer_is_met(store: Path) -> None:
    held = PosixProvider(store.parent / "tier", "c").acquire_writer("b")
    with pytest.raises(Fenced):
        offload_store(options(store))
    held.release()


def test_an_owner_of_the_store_or_of_the_state_is_met(store: Path) -> None:
    with running(small_config(store)):
        assert run_looks(store)
        assert not seen_file(store).exists()
    assert run_looks(store)
    lock = StateLock(store.parent / "state")
    lock.acquire()
    with pytest.raises(Fenced):
        offload_store(options(store))
    lock.release()


# What leaves nothing behind


def damage_record(store: Path) -> None:
    log = min((store / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    [at] = [m.physical_offset for m in stored_messages(store, {"A"}) if m.queue_offset == 1]
    data[at + 4 : at + 8] = bytes(4)  # its magic
    log.write_bytes(data)


def test_a_run_that_left_something_out_leaves_no_word(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, *(plain(topic, number=number) for topic in "AB" for number in range(3)))
    damage_record(store)
    report = offload_store(options(store))
    assert report.failed or report.damaged
    assert run_looks(store)


def test_a_run_that_met_a_hole_leaves_no_word(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, plain("A"))
    offload_store(options(store))
    fill(store, *(plain("A", number=number, body=bytes(1500)) for number in range(1, 6)))
    for path in sorted((store / "commitlog").iterdir())[:2]:
        path.unlink()
    assert offload_store(options(store)).holes
    assert not seen_file(store).exists()
    assert run_looks(store)
    assert not run_looks(store)


def test_a_run_that_was_stopped_leaves_no_word(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, plain("A"))
    stop = StopSignal()
    stop.set()
    assert offload_store(options(store), stop=stop).stopped
    assert offload_store(options(store)).messages == 1
    assert offload_store(options(store), stop=stop).stopped


def test_keys_that_the_index_lacks_leave_no_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    fill(store, plain("A"))
    with monkeypatch.context() as patch:

        def refuse(*_: object, **__: object) -> None:
            raise Unavailable("no room")

        patch.setattr(IndexStoreService, "put_hashes", refuse)
        report = offload_store(options(store))
    assert (report.messages, report.failed) == (1, [])
    assert not seen_file(store).exists()
    assert run_looks(store)
    assert not run_looks(store)


def test_a_run_that_ends_early_leaves_no_word_of_the_one_before(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store, plain("A", number=3))
    there: list[bool] = []

    def fail(*_: object, **__: object) -> None:
        there.append(seen_file(store).exists())
        raise Unavailable("away")

    with monkeypatch.context() as patch:
        patch.setattr(MessageStoreDispatcher, "scan", fail)
        with pytest.raises(Unavailable):
            offload_store(options(store))
    assert there == [False]
    assert not seen_file(store).exists()
    assert offload_store(options(store)).messages == 1


def test_a_message_that_comes_while_a_run_ends_is_taken_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    fill(store, plain("A"))

    def put_and_seal(self: IndexStoreService, *more: Any) -> int:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(IndexStoreService, "seal_and_upload", seal)
            fill(store, plain("A", number=1))
        return seal(self, *more)

    seal = IndexStoreService.seal_and_upload
    with monkeypatch.context() as patch:
        patch.setattr(IndexStoreService, "seal_and_upload", put_and_seal)
        report = offload_store(options(store))
    assert report.messages == 1
    assert offload_store(options(store)).messages == 1


def test_a_plan_leaves_the_word_and_following_takes_it_away(store: Path) -> None:
    before = seen_file(store).read_bytes()
    assert plan_offload(options(store)).messages == 0
    assert seen_file(store).read_bytes() == before
    stop = StopSignal()
    clock = Steps([stop.set])
    follow_store(replace(options(store), follow=True), stop=stop, clock=clock)
    assert not seen_file(store).exists()


def test_without_room_for_the_word_the_next_run_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "store"
    fill(store, plain("A"))
    replace_file = type(FILES).replace_file

    def refuse(self: Any, path: Path, data: bytes, **more: Any) -> None:
        if path.name == SEEN_FILE:
            raise OSError(28, "No space left on device")
        replace_file(self, path, data, **more)

    with monkeypatch.context() as patch:
        patch.setattr(type(FILES), "replace_file", refuse)
        assert offload_store(options(store)).messages == 1
    assert run_looks(store)


def test_a_store_without_messages_is_looked_at(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    assert run_looks(tmp_path / "store")
    assert run_looks(tmp_path / "store")


def test_records_behind_the_last_of_the_chosen_topics_are_walked_over(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, plain("A"), *(plain("B", number=number, body=bytes(900)) for number in range(9)))
    assert offload_store(options(store, topics=["A"])).messages == 1
    assert not run_looks(store, topics=["A"])
    fill(store, plain("B", number=9))
    assert run_looks(store, topics=["A"])
