"""An offload does not upload the keys of its messages until they fill an index file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.followed import fill, options
from tieredstore.clock import ManualClock
from tieredstore.jobs.offloading.job import offload_store
from tieredstore.jobs.run import JobProgress
from tieredstore.message.encoding import Message

COUNT = 30


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    fill(root, *(Message.create("T", b"x", keys=[f"k{number}"]) for number in range(COUNT)))
    return root


def segments(store: Path) -> list[Path]:
    return [*store.parent.glob("tier/*/b/rmq_sys_INDEX/*/INDEX/[!.]*")]


def finds(store: Path, *more: object) -> bool:
    where = ("--tier", f"file://{store.parent / 'tier'}", "--topic", "T", "--key", "k7")
    return tieredstore("query", *where, *more).code == 0


def test_j56_keys_stay_in_the_state_directory_until_a_file_is_full(store: Path) -> None:
    """Keys stay in the state directory until an index file is full. The slots of a file take 40 MB,
    so one file per run would be the largest part of a small tier."""
    report = offload_store(options(store))
    assert (report.messages, report.keys_waiting, segments(store)) == (COUNT, COUNT, [])
    assert report.fields()["keys_waiting"] == COUNT
    assert finds(store, "--state", store.parent / "state")
    assert offload_store(options(store)).keys_waiting == COUNT


def test_j56_a_full_file_is_uploaded(store: Path) -> None:
    """A full index file is uploaded. The broker's configuration sets its capacity."""
    conf = {"tieredStoreIndexFileMaxHashSlotNum": "10", "tieredStoreIndexFileMaxIndexNum": "13"}
    report = offload_store(options(store, properties=conf))
    assert len(segments(store)) == COUNT // 12
    assert report.keys_waiting == COUNT % 12


def test_j56_keys_are_uploaded_on_request(store: Path) -> None:
    offload_store(options(store))
    seen: list[JobProgress] = []
    report = offload_store(options(store, upload_index=True), seen.append)
    assert (report.keys_waiting, len(segments(store))) == (0, 1)
    assert finds(store)
    told = [(one.done, one.total) for one in seen if one.stage == "index"]
    assert told == [(0, COUNT), (COUNT, COUNT)]
    verified = tieredstore("verify", "--tier", f"file://{store.parent / 'tier'}", "--quiet")
    assert verified.code == 0


def test_j56_keys_are_uploaded_when_they_have_waited(store: Path) -> None:
    conf = {"tieredStoreIndexFileUploadInterval": "3600000"}
    clock = ManualClock(4_000_000_000_000)
    assert offload_store(options(store, properties=conf), clock=clock).keys_waiting == COUNT
    clock.advance(3_000_000)
    assert offload_store(options(store, properties=conf), clock=clock).keys_waiting == COUNT
    clock.advance(700_000)
    assert offload_store(options(store, properties=conf), clock=clock).keys_waiting == 0
    assert finds(store)


def test_j56_the_command_has_the_option_and_the_count(store: Path) -> None:
    root = store.parent
    command = (
        "offload", store, "--tier", root / "tier", "--state", root / "state", "--broker", "b",
        "--cluster", "c", "--quiet", "--output", "json",
    )  # fmt: skip
    assert tieredstore(*command).record["keys_waiting"] == COUNT
    assert tieredstore(*command, "--upload-index").record["keys_waiting"] == 0


def test_j73_waiting_keys_of_another_capacity_are_found_without_a_configuration(
    store: Path,
) -> None:
    """Keys in an index file that is not uploaded yet are found without a configuration. The file's
    capacity need not be the default, because the metadata has it."""
    conf = {"tieredStoreIndexFileMaxHashSlotNum": "10", "tieredStoreIndexFileMaxIndexNum": "1000"}
    assert offload_store(options(store, properties=conf)).keys_waiting == COUNT
    state = store.parent / "state"
    bounded = ("--state", state, "--unindexed-bytes", 0)
    assert finds(store, *bounded)
    (state / "tiered_index_file/watermarks.json").write_text("{")
    where = ("--tier", f"file://{store.parent / 'tier'}", "--topic", "T", "--key", "k7")
    ran = tieredstore("query", *where, *bounded)
    assert (ran.code, "--config" in ran.err) == (1, True)
