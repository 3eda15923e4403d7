"""Tests of the keys for the local store: files, indexes, accepted messages, and the size of a
get."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.kit.configured_broker import FOREVER, T0, TOPIC, Broker, MakeBroker
from tests.kit.local_stores import plain, put_all, running, small_config
from tests.kit.recovered import leave_unclean
from tests.kit.waiting import wait_for
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.send.lite import RECOUNT_MS, LightQuota
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.errors import Corrupt
from tieredstore.local.loading import recover
from tieredstore.local.log.commit_log import FILES_AHEAD
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.checkpoint import Checkpoint
from tieredstore.message.encoding import Message
from tieredstore.message.properties import encode_properties
from tieredstore.message.record import StoredMessage
from tieredstore.message.tag_filter import TagFilter

LIGHT = "%LMQ%light"


def file_sizes(folder: Path) -> list[int]:
    return [path.stat().st_size for path in sorted(folder.iterdir())]


@pytest.mark.parametrize(("size", "count"), [(4096, 3), (8192, 2)])
def test_mapped_file_size_commit_log_is_the_size_of_each_file(
    broker: MakeBroker, size: int, count: int
) -> None:
    made = broker(mappedFileSizeCommitLog=size)
    made.put(40)
    # A file under creation has no size yet.
    sizes = [found for found in file_sizes(made.root / "store/commitlog") if found]
    assert {*sizes} == {size}
    assert count <= len(sizes) <= count + FILES_AHEAD  # the next ones lie ready, or will


@pytest.mark.parametrize(("key_value", "expected"), [(100, [100] * 4), (190, [200] * 2)])
def test_mapped_file_size_consume_queue_is_rounded_up_to_whole_units(
    broker: MakeBroker, key_value: int, expected: list[int]
) -> None:
    made = broker(mappedFileSizeConsumeQueue=key_value)
    made.put(20)
    assert file_sizes(made.root / f"store/consumequeue/{TOPIC}/0") == expected


@pytest.mark.parametrize("enabled", [False, True])
def test_enable_consume_queue_ext_puts_tags_codes_in_files_of_their_own(
    broker: MakeBroker, enabled: bool
) -> None:
    made = broker(enableConsumeQueueExt=enabled)
    made.put(20)
    assert (made.root / f"store/consumequeue_ext/{TOPIC}/0").exists() == enabled


@pytest.mark.parametrize(("size", "expected"), [(204, [204] * 2), (203, [203] * 3)])
def test_mapped_file_size_consume_queue_ext_is_the_size_of_each_file(
    broker: MakeBroker, size: int, expected: list[int]
) -> None:
    made = broker(enableConsumeQueueExt=True, mappedFileSizeConsumeQueueExt=size)
    made.put(20)
    assert file_sizes(made.root / f"store/consumequeue_ext/{TOPIC}/0") == expected


@pytest.mark.parametrize("slots", [10, 100])
def test_max_hash_slot_num_is_in_the_size_of_a_local_index_file(
    broker: MakeBroker, slots: int
) -> None:
    made = broker(maxHashSlotNum=slots, maxIndexNum=50)
    made.put(1)
    assert file_sizes(made.root / "store/index") == [40 + slots * 4 + 50 * 20]
    assert made.query("k000", made.local) == [0]


@pytest.mark.parametrize(("items", "files"), [(20, 4), (200, 1)])
def test_max_index_num_is_how_many_keys_a_local_index_file_takes(
    broker: MakeBroker, items: int, files: int
) -> None:
    made = broker(maxHashSlotNum=10, maxIndexNum=items)
    made.put(25)  # two keys and a tag each
    assert file_sizes(made.root / "store/index") == [40 + 10 * 4 + items * 20] * files
    assert made.query("k024", made.local) == [24]


@pytest.mark.parametrize("enabled", [True, False])
def test_message_index_enable_puts_keys_in_both_indexes(broker: MakeBroker, enabled: bool) -> None:
    made = broker(messageIndexEnable=enabled)
    made.put(3)
    made.upload()
    assert made.query("k001", made.local) == ([1] if enabled else [])
    assert made.query("k001", made.store.fetcher) == ([1] if enabled else [])
    assert (made.root / "store/index").exists() == enabled


@pytest.mark.parametrize("is_batch", [False, True])
@pytest.mark.parametrize(
    ("limit", "status"),
    [(1000, PutMessageStatus.MESSAGE_ILLEGAL), (1001, PutMessageStatus.PUT_OK)],
)
def test_max_message_size_is_the_largest_body(
    broker: MakeBroker, limit: int, status: PutMessageStatus, is_batch: bool
) -> None:
    store = broker(maxMessageSize=limit).store
    message = Message.create(TOPIC, b"x" * 1001)

    def put() -> PutMessageStatus:
        result = store.put_messages([message]) if is_batch else store.put_message(message)
        return PutMessageStatus(result.status)

    wait_for(lambda: put() is status)  # at run time a change counts with the next look at the puts


@pytest.mark.parametrize(
    ("timeout_ms", "status"),
    [(1, PutMessageStatus.OS_PAGE_CACHE_BUSY), (0, PutMessageStatus.PUT_OK)],
)
def test_os_page_cache_busy_timeout_is_how_long_one_put_may_have_the_lock(
    broker: MakeBroker, timeout_ms: int, status: PutMessageStatus
) -> None:
    store = broker(osPageCacheBusyTimeOutMills=timeout_ms).local
    watch = store._put_watch
    watch.stop()
    with store._appender._lock:
        for _ in range(2):
            looker = threading.Thread(target=watch.look)
            looker.start()
            looker.join()
            time.sleep(0.01)
        assert store.put_message(Message.create(TOPIC, b"x")).status is status


@pytest.mark.parametrize("enabled", [True, False])
def test_enabled_append_prop_crc_ends_the_properties_with_a_crc(
    broker: MakeBroker, enabled: bool
) -> None:
    made = broker(enabledAppendPropCRC=enabled)
    made.put(1)
    [message] = made.get().messages
    assert (b"__CRC32#" in bytes(message.raw)) == enabled


@pytest.mark.parametrize("forced", [False, True])
def test_force_verify_prop_crc_ends_a_recovered_log_at_a_record_without_one(
    tmp_path: Path, forced: bool
) -> None:
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain()])
    leave_unclean(root, checkpoint=Checkpoint())
    config = small_config(root, force_verify_prop_crc=forced)
    if forced:  # the message may have been acknowledged: only an explicit order loses it
        with pytest.raises(Corrupt, match=r"forceVerifyPropCRC.*Nothing was done"):
            DefaultMessageStore(config).load()
        recover(root, config, accept_loss=True)
    with running(config) as store:
        assert store.get_max_offset_in_queue("T", 0) == (0 if forced else 1)


def light_queue(made: Broker) -> tuple[bool, int]:
    """Return whether a message got an offset in its light queue, and the number of messages in that
    queue."""
    made.put(2, properties={"INNER_MULTI_DISPATCH": LIGHT})
    message = made.get().messages[1]
    has_offset = message.properties.get("INNER_MULTI_QUEUE_OFFSET") == "1"
    return has_offset, made.local.get_max_offset_in_queue(LIGHT, 0)


def test_enable_lmq_serves_light_queues(broker: MakeBroker) -> None:
    assert light_queue(broker(enableLmq=True, enableMultiDispatch=True)) == (True, 2)
    assert light_queue(broker(enableLmq=False, enableMultiDispatch=True)) == (False, 0)


def test_enable_multi_dispatch_puts_messages_in_the_light_queues_that_they_name(
    broker: MakeBroker,
) -> None:
    assert light_queue(broker(enableLmq=True, enableMultiDispatch=True)) == (True, 2)
    assert light_queue(broker(enableLmq=True, enableMultiDispatch=False)) == (False, 0)


def is_quota_reached(made: Broker) -> bool:
    """Return whether a second light queue is refused under a quota of one. Asserts that the first
    one still accepts messages."""
    config = made.loaded.config
    made.put(1, properties={"INNER_MULTI_DISPATCH": LIGHT})
    quota = LightQuota(made.local, config, made.clock)
    quota.check(encode_properties({"INNER_MULTI_DISPATCH": LIGHT}))
    try:
        quota.check(encode_properties({"INNER_MULTI_DISPATCH": f"{LIGHT}-2"}))
    except Refused as refused:
        return refused.reason is Reason.LMQ_QUOTA_EXCEEDED
    return False


def test_enable_lmq_quota_limits_the_number_of_light_queues(broker: MakeBroker) -> None:
    keys = {"enableLmq": True, "enableMultiDispatch": True, "maxLmqConsumeQueueNum": 1}
    assert is_quota_reached(broker(enableLmqQuota=True, **keys))
    assert not is_quota_reached(broker(enableLmqQuota=False, **keys))


def test_max_lmq_consume_queue_num_is_the_number_of_light_queues(broker: MakeBroker) -> None:
    keys = {"enableLmq": True, "enableMultiDispatch": True, "enableLmqQuota": True}
    assert is_quota_reached(broker(maxLmqConsumeQueueNum=1, **keys))
    assert not is_quota_reached(broker(maxLmqConsumeQueueNum=2, **keys))


def test_a_light_queue_of_pipelined_messages_counts_once(broker: MakeBroker) -> None:
    """A new light queue counts only once, even if several messages arrive before the first is
    dispatched."""
    keys = {"enableLmq": True, "enableMultiDispatch": True, "enableLmqQuota": True}
    made = broker(maxLmqConsumeQueueNum=2, **keys)
    quota = LightQuota(made.local, made.loaded.config, made.clock)
    for name in (LIGHT, LIGHT, f"{LIGHT},{LIGHT}-2", f"{LIGHT}-2", LIGHT):
        quota.check(encode_properties({"INNER_MULTI_DISPATCH": name}))
    with pytest.raises(Refused):
        quota.check(encode_properties({"INNER_MULTI_DISPATCH": f"{LIGHT}-3"}))
    made.clock.advance(RECOUNT_MS)  # the messages were not stored
    quota.check(encode_properties({"INNER_MULTI_DISPATCH": f"{LIGHT}-3"}))


@pytest.mark.parametrize(
    ("levels", "delay_ms"), [("1s 5s 10s", 5_000), ("1s 2m", 120_000), ("7h", 25_200_000)]
)
def test_message_delay_level_is_when_a_delayed_message_is_due(
    broker: MakeBroker, levels: str, delay_ms: int
) -> None:
    made = broker(messageDelayLevel=levels)
    topic = "SCHEDULE_TOPIC_XXXX"
    made.put(1, topic=topic, queue_id=1, properties={"DELAY": "2"})
    [unit] = made.local.find_queue(topic, 1).read_units(0, 1)
    assert int(unit["tags_code"]) == T0 + delay_ms  # a level beyond the last is the last


IN_MEMORY = {"accessMessageInMemoryMaxRatio": 100}
ON_DISK = {"accessMessageInMemoryMaxRatio": 0}


def local_count(made: Broker, count: int = 40) -> int:
    """Return the number of messages that one local get of a full queue returns."""
    made.put(60)
    return len(made.local.get_message("g", TOPIC, 0, 0, count).messages)


def record_size(made: Broker) -> int:
    made.put(1)
    return made.get(0, 1).messages[0].size


def test_max_transfer_bytes_in_memory_limits_a_get_of_the_log_s_tail(broker: MakeBroker) -> None:
    size = record_size(broker())
    key = "maxTransferBytesOnMessageInMemory"
    assert local_count(broker(**IN_MEMORY, **{key: 5 * size})) == 5
    assert local_count(broker(**IN_MEMORY, **{key: 9 * size})) == 9


def test_max_transfer_count_in_memory_limits_a_get_of_the_log_s_tail(broker: MakeBroker) -> None:
    key = "maxTransferCountOnMessageInMemory"
    assert local_count(broker(**IN_MEMORY)) == 32
    assert local_count(broker(**IN_MEMORY, **{key: 7})) == 7


def test_max_transfer_bytes_in_disk_limits_a_get_of_what_is_not_in_memory(
    broker: MakeBroker,
) -> None:
    size = record_size(broker())
    key = "maxTransferBytesOnMessageInDisk"
    assert local_count(broker(**ON_DISK, **{key: 3 * size})) == 3
    assert local_count(broker(**ON_DISK, **{key: 6 * size})) == 6
    assert local_count(broker(**IN_MEMORY, **{key: 3 * size})) == 32


def test_max_transfer_count_in_disk_limits_a_get_of_what_is_not_in_memory(
    broker: MakeBroker,
) -> None:
    key = "maxTransferCountOnMessageInDisk"
    assert local_count(broker(**ON_DISK)) == 8
    assert local_count(broker(**ON_DISK, **{key: 20})) == 20
    assert local_count(broker(**IN_MEMORY, **{key: 20})) == 32


def test_access_message_in_memory_max_ratio_says_what_counts_as_in_memory(
    broker: MakeBroker,
) -> None:
    key = "accessMessageInMemoryMaxRatio"
    assert local_count(broker(**{key: 40})) == 32
    assert local_count(broker(**{key: 0})) == 8


class Nothing:
    """A filter that rejects every message."""

    def is_matched_by_consume_queue(self, tags_code: int | None) -> bool:
        return False

    def is_matched_by_commit_log(self, message: StoredMessage) -> bool:
        return False


@pytest.mark.parametrize(("limit_bytes", "walked"), [(20 * 10, 10), (20 * 25, 25)])
def test_max_filter_message_size_limits_how_far_a_filtered_get_walks(
    broker: MakeBroker, limit_bytes: int, walked: int
) -> None:
    made = broker(maxFilterMessageSize=limit_bytes)
    made.put(40)
    result = made.local.get_message("g", TOPIC, 0, 0, 1, Nothing())
    assert result.messages == []
    assert result.next_begin_offset == walked


@pytest.mark.parametrize("limit", [3, 5])
def test_max_msgs_num_batch_limits_a_key_query(broker: MakeBroker, limit: int) -> None:
    made = broker(maxMsgsNumBatch=limit)
    made.put(10)
    found = made.local.query_message(TOPIC, "all", 1000, *FOREVER)
    assert [message.queue_offset for message in found] == list(range(10 - limit, 10))


@pytest.mark.parametrize(("files", "walked"), [(1, 10), (3, 30)])
def test_travel_cq_file_num_is_how_many_queue_files_a_get_walks(
    broker: MakeBroker, files: int, walked: int
) -> None:
    made = broker(mappedFileSizeConsumeQueue=200, travelCqFileNumWhenGetMessage=files)
    made.put(50)
    result = made.local.get_message("g", TOPIC, 0, 0, 9, TagFilter.parse("Other"))
    assert result.next_begin_offset == walked
