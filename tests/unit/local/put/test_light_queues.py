"""Tests of changing `enableMultiDispatch`, which controls light queues, while the store runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import plain, put_all, running, small_config
from tieredstore.config import StoreConfig, change_config
from tieredstore.local.loading import recover
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.message.properties import encode_properties

LIGHT = "%LMQ%a"


def switch(config: StoreConfig, is_on: bool) -> None:
    change_config(config, {"enableMultiDispatch": is_on})


def named(number: int, **more: Any) -> Any:
    properties = {"INNER_MULTI_DISPATCH": LIGHT, **more.pop("properties", {})}
    return plain(number=number, properties=properties, **more)


def find_numbers(store: DefaultMessageStore) -> list[int]:
    """Return the message numbers in the light queue, in order."""
    found = store.get_message("g", LIGHT, 0, 0, 30).messages
    offsets = [message.properties["INNER_MULTI_QUEUE_OFFSET"] for message in found]
    assert offsets == [str(offset) for offset in range(len(found))]
    return [int(message.keys[0][1:]) for message in found]


@pytest.mark.parametrize("begins_on", [False, True])
def test_it_counts_for_what_is_put_then_and_leaves_no_hole(tmp_path: Path, begins_on: bool) -> None:
    config = small_config(tmp_path, enable_lmq=True, enable_multi_dispatch=begins_on)
    expected: list[int] = []
    with running(config) as store:
        for round_ in range(4):
            is_on = begins_on ^ bool(round_ % 2)
            switch(config, is_on)
            numbers = range(3 * round_, 3 * round_ + 3)
            put_all(store, [named(number) for number in numbers])
            expected += numbers if is_on else ()
            assert find_numbers(store) == expected
    for is_on in (False, True):
        config = small_config(tmp_path, enable_lmq=True, enable_multi_dispatch=is_on)
        with running(config) as store:
            assert find_numbers(store) == expected
    recover(tmp_path, config, rebuild=True)
    with running(config) as store:
        put_all(store, [named(20)])
        assert find_numbers(store) == [*expected, 20]


def test_what_was_put_counts_though_the_key_is_false_when_it_is_dispatched(tmp_path: Path) -> None:
    """A message in a light queue is dispatched even if the key is false by then, because its offset
    is already in use."""
    config = small_config(tmp_path, enable_lmq=True)
    with running(config) as store:
        switch(config, True)
        with store._reput.hold():
            assert store.put_message(named(0)).ok
            switch(config, False)
            assert store.put_message(named(1)).ok
            store._appender.drop_rows()
        store.wait_until_dispatched()
        assert find_numbers(store) == [0]
        switch(config, True)
        put_all(store, [named(2)])
        assert find_numbers(store) == [0, 2]


def test_offsets_that_a_producer_made_up_count_for_nothing(tmp_path: Path) -> None:
    config = small_config(tmp_path, enable_lmq=True)
    made_up = {"INNER_MULTI_QUEUE_OFFSET": "7"}
    with running(config) as store:
        with store._reput.hold():
            assert store.put_message(named(0, properties=made_up)).ok
            store._appender.drop_rows()  # so that it is read in the log, where offsets count
        store.wait_until_dispatched()
        assert store.find_queue(LIGHT, 0) is None
        [message] = store.get_message("g", "T", 0, 0, 9).messages
        assert "INNER_MULTI_QUEUE_OFFSET" not in message.properties
        switch(config, True)
        put_all(store, [named(1, properties=made_up)])
        assert find_numbers(store) == [1]


def test_offsets_that_java_gave_while_it_was_false_count_for_nothing(tmp_path: Path) -> None:
    """Light queue offsets that Java assigned while the key was false are ignored, because Java will
    assign them again."""
    with running(small_config(tmp_path)) as store:  # light queues are off: stored as it is
        java = {"INNER_MULTI_QUEUE_OFFSET": "0"}
        put_all(store, [named(number, properties=java) for number in range(3)])
    config = small_config(tmp_path, enable_lmq=True)
    (tmp_path / "checkpoint").unlink()
    (tmp_path / "abort").touch()
    with running(config) as store:
        assert store.find_queue(LIGHT, 0) is None
        switch(config, True)
        put_all(store, [named(3)])
        assert find_numbers(store) == [3]


def test_a_light_queue_has_no_template_of_records(tmp_path: Path) -> None:
    """The put path keeps no record templates for light queues, because there may be a million of
    them."""
    store = DefaultMessageStore(
        StoreConfig(store_path_root_dir=str(tmp_path), enable_lmq=True, enable_multi_dispatch=True)
    )
    store.load()
    store.start()
    properties = encode_properties({"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
    for _ in range(3):
        assert store.put_message(Message("T", b"x", properties=properties)).ok
    assert {topic for topic, _ in store._appender._plain} <= {"T"}
    store.shutdown()
