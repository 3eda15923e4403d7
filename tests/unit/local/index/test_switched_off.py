"""An index that was switched off for a while."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.kit.local_stores import FOREVER, plain, put_all, running, small_config
from tieredstore.clock import ManualClock
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.opening import recover


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
    numbers = range(7)
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
