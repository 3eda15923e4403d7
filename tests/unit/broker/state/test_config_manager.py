"""Files in `config/` are read in Java's format and written as strict JSON. A crash never destroys
both versions of a file."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tieredstore.broker import turns
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state import config_manager
from tieredstore.broker.state.config_manager import ConfigManager
from tieredstore.broker.state.groups import SubscriptionGroupConfig, SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.topics import TopicConfig, TopicConfigManager
from tieredstore.clock import ManualClock
from tieredstore.disk.file_operations import FileOperations
from tieredstore.errors import Corrupt

JAVA_OFFSETS = b"""{
\t"dataVersion":{
\t\t"counter":7,
\t\t"stateVersion":0,
\t\t"timestamp":1795266467329
\t},
\t"groupTopicMap":{},
\t"offsetTable":{
\t\t"orders@readers":{0:12,1:9223372036854775807,
\t\t\t2:0
\t\t},
\t\t"%RETRY%readers@readers":{0:3}
\t},
\t"pullOffsetTable":{"orders@readers":{0:5}}
}"""


async def loaded(folder: Path) -> ConsumerOffsetManager:
    offsets = ConsumerOffsetManager(folder)
    await offsets.load()
    return offsets


def written(folder: Path, offset: int) -> None:
    """Persist one offset with a separate manager."""

    async def write() -> None:
        offsets = await loaded(folder)
        offsets.commit_offset("readers", "orders", 0, offset)
        await offsets.persist()

    asyncio.run(write())


def read(folder: Path) -> int | None:
    return asyncio.run(loaded(folder)).query_offset("readers", "orders", 0)


def test_bare_integer_keys_are_read_and_strict_json_is_written(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(JAVA_OFFSETS)
    written(tmp_path, 13)
    table = json.loads(path.read_bytes())
    assert table["offsetTable"] == {
        "orders@readers": {"0": 13, "1": 2**63 - 1, "2": 0},
        "%RETRY%readers@readers": {"0": 3},
    }
    assert table["pullOffsetTable"] == {"orders@readers": {"0": 5}}
    assert (tmp_path / "consumerOffset.json.bak").read_bytes() == JAVA_OFFSETS


def test_text_that_looks_like_a_bare_key_stays(tmp_path: Path) -> None:
    async def run() -> None:
        topics = TopicConfigManager(tmp_path, BrokerSettings())
        (tmp_path / "topics.json").write_text(
            '{"topicConfigTable":{"a":{"topicName":"a","attributes":{"x":"{1:2, 3:4}"}}}}'
        )
        await topics.load()
        found = topics.find_topic("a")
        assert found is not None
        assert found.attributes == {"x": "{1:2, 3:4}"}

    asyncio.run(run())


def test_nothing_is_there_at_first(tmp_path: Path) -> None:
    assert read(tmp_path / "none") is None
    written(tmp_path / "none", 5)
    assert read(tmp_path / "none") == 5


def test_nothing_is_written_without_a_change(tmp_path: Path) -> None:
    written(tmp_path, 5)
    inode = (tmp_path / "consumerOffset.json").stat().st_ino

    async def persist() -> None:
        offsets = await loaded(tmp_path)
        offsets.commit_offset("readers", "orders", 0, 5)
        await offsets.persist()

    asyncio.run(persist())
    assert (tmp_path / "consumerOffset.json").stat().st_ino == inode


def test_a_crash_at_each_step_leaves_the_old_or_the_new_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after any file operation of a `persist` call leaves the old or the new state."""

    class Crash(BaseException):
        pass

    real = FileOperations.rename
    for crash_at in (1, 2, 3):
        folder = tmp_path / str(crash_at)
        written(folder, 1)
        written(folder, 2)
        steps = 0

        def rename(files: FileOperations, source: Path, target: Path) -> None:
            nonlocal steps
            steps += 1
            if steps == crash_at:  # noqa: B023
                raise Crash
            real(files, source, target)

        with monkeypatch.context() as patch:
            patch.setattr(FileOperations, "rename", rename)
            if crash_at <= 2:
                with pytest.raises(Crash):
                    written(folder, 3)
            else:
                written(folder, 3)
        assert (folder / "consumerOffset.json").exists()  # at no moment is it missing
        assert read(folder) == (2 if crash_at <= 2 else 3)
        written(folder, 4)
        assert read(folder) == 4


@pytest.mark.parametrize(
    "damage",
    [
        b'{"offsetTable":{"orders@re',
        b"\0" * 40,
        b"[]",
        b'{"offsetTable":{"orders":{"0":1}}}',
        b'{"offsetTable":{"a@b":{"0":NaN}}}',
        b"[" * 100_000,
    ],
    ids=["cut", "zeros", "list", "key", "nan", "deep"],
)
def test_i01_a_damaged_file_is_set_aside_and_the_backup_is_used(
    tmp_path: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, 1)
    written(tmp_path, 2)
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(damage)
    assert read(tmp_path) == 1
    (aside,) = tmp_path.glob("consumerOffset.json.damaged-*")
    assert aside.read_bytes() == damage
    assert str(path) in caplog.text
    assert aside.name in caplog.text
    written(tmp_path, 3)
    assert read(tmp_path) == 3
    assert aside.exists()


def test_i01_an_empty_file_is_as_none(tmp_path: Path) -> None:
    written(tmp_path, 1)
    written(tmp_path, 2)
    (tmp_path / "consumerOffset.json").write_bytes(b"")
    assert read(tmp_path) == 1
    written(tmp_path, 3)
    assert json.loads((tmp_path / "consumerOffset.json.bak").read_bytes())


def test_i01_a_start_is_refused_when_nothing_good_is_there(tmp_path: Path) -> None:
    path = tmp_path / "consumerOffset.json"
    path.write_bytes(b"{")
    with pytest.raises(Corrupt, match=r"consumerOffset\.json"):
        read(tmp_path)
    assert path.read_bytes() == b"{"
    written_backup = tmp_path / "consumerOffset.json.bak"
    written_backup.write_bytes(b"[1")
    with pytest.raises(Corrupt, match=r"consumerOffset\.json:"):
        read(tmp_path)
    assert path.read_bytes() == b"{"
    assert written_backup.read_bytes() == b"[1"


def test_a_failed_write_is_tried_again(tmp_path: Path) -> None:
    async def run() -> None:
        blocked = tmp_path / "config"
        blocked.write_text("a file where the folder should be")
        groups = SubscriptionGroupManager(blocked, BrokerSettings())
        groups.update_group(SubscriptionGroupConfig(group_name="g"))
        with pytest.raises(Exception, match="cannot write"):
            await groups.persist()
        assert groups.is_changed
        blocked.unlink()
        await groups.persist()
        assert (blocked / "subscriptionGroup.json").exists()

    asyncio.run(run())


@pytest.mark.parametrize("slow", ["open", "fsync"])
def test_a_write_that_the_end_of_the_loop_cancels_closes_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: str
) -> None:
    """A write that is cancelled at the end of the event loop still closes its file."""
    begun, go_on = threading.Event(), threading.Event()
    real = getattr(os, slow)
    failures: list[OSError] = []

    def wait_for_disk(file: int | str, *arguments: int) -> object:
        if slow == "open" and not str(file).endswith(".tmp"):
            return real(file, *arguments)
        begun.set()
        go_on.wait(60)
        try:
            return real(file, *arguments)
        except OSError as error:
            failures.append(error)
            raise

    async def end_of_the_loop() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            asyncio.get_running_loop().call_soon(go_on.set)

    async def run() -> list[asyncio.Task[None]]:
        offsets = await loaded(tmp_path)
        offsets.commit_offset("readers", "orders", 0, 5)
        monkeypatch.setattr(os, slow, wait_for_disk)
        tasks = [asyncio.create_task(offsets.persist()), asyncio.create_task(end_of_the_loop())]
        await asyncio.to_thread(begun.wait, 60)
        return tasks

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert all(task.cancelled() for task in asyncio.run(run()))
        gc.collect()
    assert not [str(one.message) for one in seen]
    assert not failures
    assert (tmp_path / "consumerOffset.json").stat().st_size > 0


def test_the_data_version_counts_changes(tmp_path: Path) -> None:
    async def run() -> None:
        clock = ManualClock(1_700_000_000_000)
        topics = TopicConfigManager(tmp_path, BrokerSettings(), clock)
        topics.update_topic(TopicConfig(topic_name="a"))
        topics.update_topic(TopicConfig(topic_name="a"))  # nothing new
        clock.advance(5)
        topics.delete_topic("a")
        await topics.persist()
        version = json.loads(topics.path.read_bytes())["dataVersion"]
        assert version == {"counter": 2, "stateVersion": 0, "timestamp": 1_700_000_000_005}

    asyncio.run(run())


def count_rows(fields: dict[str, object]) -> int:
    return max(len(value) if isinstance(value, dict) else 0 for value in fields.values())


async def make_large(folder: Path, rows: int) -> list[ConfigManager]:
    """Create topics, groups and offsets, including those of light queues, with this number of rows
    each."""
    settings = BrokerSettings()
    topics = TopicConfigManager(folder, settings)
    groups = SubscriptionGroupManager(folder, settings)
    offsets = ConsumerOffsetManager(folder, has_lmq=True)
    for number in range(rows):
        topics.update_topic(TopicConfig(topic_name=f"T{number}"))
        groups.update_group(SubscriptionGroupConfig(group_name=f"G{number}"))
        offsets.commit_offset(f"G{number}", "T", 3, number)
        offsets.commit_offset(f"G{number}", "%LMQ%$P$q", 0, number)
    return [topics, groups, offsets]


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 9, 24, 25])
def test_a_file_in_parts_has_the_text_of_a_whole_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(turns, "PART_ROWS", 8)

    async def run() -> None:
        for manager in await make_large(tmp_path, rows):
            text = manager.encode()
            assert text == msgspec.json.format(msgspec.json.encode(json.loads(text)), indent=1)
            assert text == await manager.encode_in_thread()
            await manager.persist(always=True)
            assert manager.path.read_bytes() == text
            manager.decode(text)
            assert manager.encode() == text

    asyncio.run(run())


def test_no_large_table_is_encoded_on_the_event_loop_or_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PART_ROWS", 8)
    real = config_manager._format
    list_rows = ConsumerOffsetManager._list_rows
    on_loop, in_threads = list[int](), list[int]()
    loop = threading.get_ident()

    def note(rows: int) -> None:
        (on_loop if threading.get_ident() == loop else in_threads).append(rows)

    def count(fields: dict[str, object]) -> bytes:
        note(count_rows(fields))
        return real(fields)

    def look(*table: Any, **more: Any) -> Iterator[tuple[str, object]]:
        for row in list_rows(*table, **more):
            note(1)
            yield row

    monkeypatch.setattr(config_manager, "_format", count)
    monkeypatch.setattr(ConsumerOffsetManager, "_list_rows", look)

    async def run() -> None:
        for manager in await make_large(tmp_path, 100):
            on_loop.clear()
            in_threads.clear()
            await manager.persist()
            await manager.encode_in_thread()
            assert sum(in_threads) >= 200
            assert max(in_threads) <= 8
            assert sum(on_loop) == 0

    asyncio.run(run())


def test_changes_while_a_table_is_encoded_are_written_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PART_ROWS", 8)

    async def run() -> None:
        _, _, offsets = await make_large(tmp_path, 20)
        assert isinstance(offsets, ConsumerOffsetManager)
        loop = asyncio.get_running_loop()
        steps = 0

        def change() -> None:
            nonlocal steps
            steps += 1
            offsets.commit_offset("G19", "T", 3, 1_000 + steps)
            offsets.commit_offset(f"new{steps}", "T", 3, 5)
            offsets.remove_group(f"G{steps}")

        def pause(seconds: float) -> None:
            done = threading.Event()
            loop.call_soon_threadsafe(change)
            loop.call_soon_threadsafe(done.set)
            assert done.wait(10)

        monkeypatch.setattr(turns, "time", SimpleNamespace(sleep=pause))
        await offsets.persist()
        assert steps == 6  # two tables with three parts each
        assert offsets.is_changed
        json.loads(offsets.path.read_bytes())
        monkeypatch.setattr(turns, "time", time)
        await offsets.persist()
        found = await loaded_light(tmp_path)
        assert found.query_offset("G19", "T", 3) == offsets.query_offset("G19", "T", 3)
        assert found.query_offset("new6", "T", 3) == 5
        assert [found.query_offset(f"G{number}", "T", 3) for number in range(8)] == [
            0, *[None] * 6, 7,
        ]  # fmt: skip

    asyncio.run(run())


async def loaded_light(folder: Path) -> ConsumerOffsetManager:
    offsets = ConsumerOffsetManager(folder, has_lmq=True)
    await offsets.load()
    return offsets
