"""Tests of the recorder and its crash states with programs whose outcome is known."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import pytest

from tests.kit.crash.recorder import Recorder, Write, record
from tests.kit.crash.states import Loss, crash_state, cuts
from tieredstore.disk.file_operations import FileOperations
from tieredstore.disk.sync import sync_file, sync_folder


def write(path: Path, data: bytes, position: int = 0, *, sync: bool = False) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    os.pwrite(fd, data, position)
    if sync:
        sync_file(fd)
    os.close(fd)


def outcomes(recorder: Recorder, loss: Loss, seeds: int = 1) -> list[dict[str, bytes]]:
    found = []
    for cut in cuts(recorder.recording):
        for seed in range(seeds):
            state = crash_state(recorder.recording, cut, loss, seed).files
            if state not in found:
                found.append(state)
    return found


def test_a_killed_process_loses_nothing(tmp_path: Path) -> None:
    with record(tmp_path) as recorder:
        write(tmp_path / "a", b"one")
        write(tmp_path / "a", b"two", 3)
    assert outcomes(recorder, Loss.NOTHING) == [{}, {"a": b""}, {"a": b"one"}, {"a": b"onetwo"}]


def test_only_what_was_synced_survives_a_power_cut(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"before")
    with record(tmp_path) as recorder:
        write(tmp_path / "a", b"one", sync=True)
        sync_folder(tmp_path)
        write(tmp_path / "a", b"two", 3)
        (tmp_path / "old").unlink()
    assert outcomes(recorder, Loss.UNSYNCED) == [
        {"old": b"before"},
        {"old": b"before", "a": b"one"},
    ]


def test_a_replaced_file_is_the_old_or_the_new_one(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with record(tmp_path) as recorder:
        FileOperations().replace_file(tmp_path / "a", b"new")
    for loss in Loss:
        assert {state["a"] for state in outcomes(recorder, loss, 20)} == {b"old", b"new"}


def test_a_replacement_without_a_sync_may_be_empty(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    with record(tmp_path) as recorder:
        write(tmp_path / "b", b"new")
        (tmp_path / "b").replace(tmp_path / "a")
    assert {state["a"] for state in outcomes(recorder, Loss.SOME_WRITES, 20)} == {
        b"old",
        b"",
        b"new",
    }


def test_writes_are_lost_in_any_order_and_torn_at_sectors(tmp_path: Path) -> None:
    with record(tmp_path) as recorder:
        write(tmp_path / "a", b"1" * 1024)
        write(tmp_path / "a", b"2" * 512, 1024)
    found = {
        tuple(state["a"][at : at + 512][:1] for at in (0, 512, 1024))
        for state in outcomes(recorder, Loss.SOME_WRITES, 200)
        if "a" in state
    }
    assert (b"\0", b"\0", b"2") in found  # the second write without the first
    assert (b"1", b"\0", b"2") in found
    assert (b"\0", b"1", b"") in found


def test_writes_through_a_mapping_are_seen_and_synced(tmp_path: Path) -> None:
    with record(tmp_path) as recorder:
        fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(fd, 2048)
        mapping = mmap.mmap(fd, 2048)
        mapping[600:603] = b"one"
        sync_file(fd)
        sync_folder(tmp_path)
        mapping[603:606] = b"two"
        recorder.mark("written")
        os.close(fd)
        mapping.close()
    mapped = [it for it in recorder.recording.operations if isinstance(it, Write)]
    assert [(it.position, it.is_mapped) for it in mapped] == [(512, True), (512, True)]
    end = len(recorder.recording.operations)
    assert crash_state(recorder.recording, end, Loss.NOTHING).files["a"][600:606] == b"onetwo"
    state = crash_state(recorder.recording, end, Loss.UNSYNCED)
    assert state.files["a"][600:606] == b"one\0\0\0"
    assert state.facts == ["written"]


def test_folders_are_made_and_removed(tmp_path: Path) -> None:
    with record(tmp_path) as recorder:
        (tmp_path / "x" / "y").mkdir(parents=True)
        write(tmp_path / "x" / "y" / "a", b"1")
        (tmp_path / "x").rename(tmp_path / "z")
        os.unlink(tmp_path / "z" / "y" / "a")  # noqa: PTH108
        (tmp_path / "z" / "y").rmdir()
    states = [
        crash_state(recorder.recording, cut, Loss.NOTHING) for cut in cuts(recorder.recording)
    ]
    assert [sorted((*it.folders, *it.files)) for it in states] == [
        [],
        ["x"],
        ["x", "x/y"],
        ["x", "x/y", "x/y/a"],
        ["x", "x/y", "x/y/a"],
        ["z", "z/y", "z/y/a"],
        ["z", "z/y"],
        ["z"],
    ]


def test_an_operation_may_be_made_to_fail(tmp_path: Path) -> None:
    def fail(name: str, path: str) -> None:
        if name == "write":
            raise OSError(28, f"no space for {path}")

    with record(tmp_path) as recorder:
        recorder.on_operation = fail
        with pytest.raises(OSError, match="no space for a"):
            write(tmp_path / "a", b"one")
    assert recorder.recording.operations[1:] == []
