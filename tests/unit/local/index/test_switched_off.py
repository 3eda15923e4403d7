"""Tests of disabling the index for some time, before a start or at run time."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.kit.local_stores import FOREVER, plain, put_all, running, small_config
from tests.kit.recovered import leave_unclean
from tests.kit.waiting import wait_for
from tieredstore.clock import ManualClock
from tieredstore.config import StoreConfig, change_config
from tieredstore.errors import Exhausted
from tieredstore.local.index.reader import index_paths
from tieredstore.local.loading import recover
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.checkpoint import Checkpoint, read_checkpoint
from tieredstore.service_thread import ServiceState


@pytest.mark.parametrize("first", [0, 3])
def test_what_was_put_meanwhile_is_named_and_found_after_a_rebuild(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, first: int
) -> None:
    config = small_config(tmp_path)
    with running(config) as store:
        put_all(store, [plain(number=number) for number in range(first)])
    with running(small_config(tmp_path, message_index_enable=False)) as store:
        put_all(store, [plain(number=number) for number in range(first, 6)])
    with caplog.at_level(logging.WARNING), running(config) as store:
        put_all(store, [plain(number=6)])
        assert find_numbers(store) == {*range(first), 6}
    [warning] = [text for text in caplog.messages if "messageIndexEnable" in text]
    assert f"store recover {tmp_path} --rebuild --yes" in warning
    recover(tmp_path, config, rebuild=True)
    caplog.clear()
    with running(config) as store:
        assert find_numbers(store) == {*range(7)}
    assert not any("messageIndexEnable" in text for text in caplog.messages)


def find_numbers(store: DefaultMessageStore) -> set[int]:
    numbers = range(30)
    return {number for number in numbers if store.query_message("T", f"k{number}", 9, *FOREVER)}


def test_a_store_whose_messages_have_no_keys_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(tmp_path)
    with running(config, ManualClock(1)) as store:
        put_all(store, [plain(keys=[], uniq_key=None, tags=None)])
    with running(config):
        pass
    assert caplog.messages == []


def switch(config: StoreConfig, is_on: bool) -> None:
    change_config(config, {"messageIndexEnable": is_on})


def test_switched_at_run_time_it_counts_for_what_is_dispatched_then(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = small_config(tmp_path)
    with running(config) as store, caplog.at_level(logging.WARNING):
        put_all(store, [plain(number=number) for number in range(8)])  # the second file begins
        switch(config, False)
        off = put_all(store, [plain(number=number) for number in range(8, 12)])
        assert find_numbers(store) == {*range(8)}, "what it has is found, as in Java"
        assert [health.name for health in store.health()].count("index") == 0
        switch(config, True)
        on = put_all(store, [plain(number=number) for number in range(12, 20)])
        assert find_numbers(store) == {*range(8), *range(12, 20)}
    [warning] = [text for text in caplog.messages if "messageIndexEnable" in text]
    begin, end = off[0].physical_offset, on[0].physical_offset
    assert f"from {begin} to {end} of the commit log have no entries" in warning
    caplog.clear()
    with running(config) as store:
        assert find_numbers(store) == {*range(8), *range(12, 20)}
        assert caplog.messages == [], "an index that ends at the last message needs no warning"
    recover(tmp_path, config, rebuild=True)
    with running(config) as store:
        assert find_numbers(store) == {*range(20)}


def test_a_store_that_began_without_one_gets_one_at_run_time(tmp_path: Path) -> None:
    config = small_config(tmp_path, message_index_enable=False)
    with running(config) as store:
        put_all(store, [plain(number=0, sys_flag=0x8), plain(number=1)])
        assert index_paths(tmp_path) == []
        switch(config, True)
        put_all(store, [plain(number=2, sys_flag=0x8), plain(number=3)])
        assert find_numbers(store) == {2, 3}


@pytest.mark.parametrize("is_on", [False, True], ids=["the file says no", "the file says yes"])
def test_a_crash_while_it_is_off_loses_no_entry_that_was_there(tmp_path: Path, is_on: bool) -> None:
    """A crash while the index is disabled loses no existing entries. With `is_on`, the next start
    enables the index and adds the missing entries."""
    config = small_config(tmp_path)
    with running(config) as store:
        put_all(store, [plain(number=number) for number in range(12)])
        switch(config, False)
        put_all(store, [plain(number=number) for number in range(12, 15)])
    checkpoint = read_checkpoint(tmp_path)
    leave_unclean(tmp_path)
    config = small_config(tmp_path, message_index_enable=is_on)
    with running(config) as store:
        assert find_numbers(store) == {*range(15 if is_on else 12)}
        switch(config, True)
        put_all(store, [plain(number=20)])
        assert find_numbers(store) == {*range(15 if is_on else 12), 20}
    assert checkpoint.index_msg_timestamp_ms > 0


def test_entries_behind_a_cut_log_go_also_while_it_is_off(tmp_path: Path) -> None:
    """Index entries after the end of a truncated log are removed even while the index is
    disabled."""
    config = small_config(tmp_path)
    with running(config) as store:
        put_all(store, [plain(number=number) for number in range(5)])
        lost = put_all(store, [plain(number=5), plain(number=6)])[0].physical_offset
    wipe(tmp_path, lost)
    leave_unclean(tmp_path, checkpoint=Checkpoint())
    config = small_config(tmp_path, message_index_enable=False)
    with running(config) as store:
        assert find_numbers(store) == {*range(5)}
        switch(config, True)
        assert put_all(store, [plain(number=7)])[0].physical_offset == lost
        assert find_numbers(store) == {*range(5), 7}


def wipe(root: Path, offset: int) -> None:
    """Zero the first file of the log, starting at the given byte."""
    [path, *_] = sorted((root / "commitlog").iterdir())
    data = path.read_bytes()
    path.write_bytes(data[:offset] + bytes(len(data) - offset))


def test_an_index_that_is_behind_holds_nothing_up_once_it_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An incomplete index that is disabled delays neither the checkpoint nor the deletion of
    files."""
    config = small_config(tmp_path)

    def full(*_: object) -> None:
        raise Exhausted("index: no space")

    with running(config) as store:
        put_all(store, [plain(number=0)])
        with monkeypatch.context() as patched:
            patched.setattr(store._index, "put", full)
            for number in range(1, 4):
                assert store.put_message(plain(number=number)).ok
            wait_for(lambda: store.get_max_offset_in_queue("T", 0) == 4)
            wait_for(lambda: store.health()[1].state is ServiceState.FAILED)
            assert store._reput.built_offset < store.commit_log.max_offset
            switch(config, False)
            put_all(store, [plain(number=4)])
            wait_for(lambda: store._reput.built_offset == store.commit_log.max_offset)
            store.flush()
        kept = read_checkpoint(tmp_path).logics_physical_offset
        assert kept == store.commit_log.max_offset
        switch(config, True)
        put_all(store, [plain(number=5)])
        assert find_numbers(store) == {0, 5}
