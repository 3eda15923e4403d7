"""The compiled core and the Python code that it replaces produce the same bytes. The core accesses
no memory outside its buffers."""

from __future__ import annotations

import gc
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import MappingProxyType, ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tieredstore.clock import SystemClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import DURABLE, PutMessageResult
from tieredstore.errors import Invalid
from tieredstore.local.index import keys
from tieredstore.local.log import gathering
from tieredstore.local.log.commit_log import CommitLog
from tieredstore.local.put.appender import MessageAppender
from tieredstore.local.put.queues import QueueState
from tieredstore.message import properties
from tieredstore.message.columns import keys as columns_keys
from tieredstore.message.columns import walk
from tieredstore.message.core import CORE_VERSION, IS_COMPILED
from tieredstore.message.crc import large_crc32, raw_crc32
from tieredstore.message.encoding import (
    Message,
    RecordEncoder,
    create_in_python,
    encode_record,
)
from tieredstore.message.hashes import tiered_key_hashes, topic_prefix_hash
from tieredstore.message.hosts import LOCALHOST
from tieredstore.message.index import local, tiered
from tieredstore.message.layout import MAGIC_BLANK, MAGICS

core: Any = pytest.importorskip("tieredstore.message._core")
if core.VERSION != CORE_VERSION:  # as for all who use it
    pytest.skip("the compiled core was built before the last change", allow_module_level=True)
CONFIGURED = (Message, raw_crc32, large_crc32, create_in_python, LOCALHOST)
core.configure(*CONFIGURED)

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
GUARD = 64
FUZZ = settings(max_examples=int(os.environ.get("TIEREDSTORE_FUZZ_EXAMPLES", "100")), deadline=None)


@contextmanager
def in_python(*modules: ModuleType) -> Iterator[None]:
    """Replace the functions of the compiled core by Python code in the given modules."""
    before = [module.IS_COMPILED for module in modules]
    for module in modules:
        module.IS_COMPILED = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.IS_COMPILED = value  # type: ignore[attr-defined]


NAMES = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "INNER_", "DELAY", "XTAGS", "TAGSX"])
TEXTS = st.one_of(
    NAMES, st.text("ab \x01\x02é", max_size=9), st.text(max_size=4), st.just("x" * 20_000)
)


@FUZZ
@given(st.dictionaries(TEXTS, TEXTS, max_size=5))
def test_properties(table: dict[str, str]) -> None:
    compiled = core.encode_properties(table)
    try:
        with in_python(properties):
            encoded = properties.encode_properties(table)
    except Invalid:
        assert compiled is None
    else:
        assert compiled in (None, encoded)
        if "".join([*table, *table.values()]).isascii():
            assert compiled == encoded


VALUES = st.fixed_dictionaries(
    {},
    optional={
        "topic": st.just("T"),
        "body": st.sampled_from([b"", b"x" * 9, bytearray(b"y"), "text", None]),
        "tags": st.none() | TEXTS | st.just(5),
        "keys": st.one_of(
            TEXTS, st.lists(TEXTS, max_size=2), st.tuples(TEXTS), st.tuples(st.none()), st.none()
        ),
        "uniq_key": st.none() | TEXTS,
        "properties": st.none()
        | st.dictionaries(NAMES | TEXTS, TEXTS, max_size=3)
        | st.just({"KEYS": 5})
        | st.just(MappingProxyType({"a": "b"})),
        "queue_id": st.integers(-3, 2**40),
        "flag": st.integers(-3, 3),
        "sys_flag": st.just(8),
        "born_timestamp_ms": INT64,
        "born_host": st.just(("10.0.0.1", 99)),
        "reconsume_times": INT32,
        "prepared_transaction_offset": INT64,
        "other": st.just(1),
    },
)


def outcome_of(create: Callable[..., Message], *places: Any, **values: Any) -> object:
    try:
        return create(*places, **values)
    except Exception as error:
        return type(error), str(error)


@FUZZ
@given(VALUES, st.lists(st.sampled_from(["T", b"body", "text"]), max_size=3))
def test_messages(values: dict[str, Any], places: list[Any]) -> None:
    made = outcome_of(core.create_message, *places, **values)
    assert made == outcome_of(create_in_python, *places, **values)
    plain = outcome_of(core.create_message, "T", b"body", **values)
    assert plain == outcome_of(create_in_python, "T", b"body", **values)


@pytest.fixture
def no_garbage() -> Iterator[None]:
    """Collect the garbage of other tests, which would change the reference counts of constants
    later. Then disable the garbage collector."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_a_message_has_what_it_was_made_of(no_garbage: None) -> None:
    assert Message.create is core.create_message or not IS_COMPILED
    body, table = b"x" * 50, {"WAIT": "true"}
    before = sys.getrefcount(body), sys.getrefcount(table), sys.getrefcount(LOCALHOST)
    many = [
        core.create_message("T", body, queue_id=3, tags="A", keys=["k"], properties=table)
        for _ in range(10)
    ]
    assert {message.properties for message in many} == {
        b"WAIT\x01true\x02KEYS\x01k\x02TAGS\x01A\x02"
    }
    assert {(message.queue_id, message.born_host) for message in many} == {(3, LOCALHOST)}
    assert sys.getrefcount(body) == before[0] + 10
    assert sys.getrefcount(LOCALHOST) == before[2] + 10
    del many
    assert (sys.getrefcount(body), sys.getrefcount(table), sys.getrefcount(LOCALHOST)) == before


RAW = st.one_of(
    st.binary(max_size=40),
    st.lists(
        st.builds(
            lambda name, value: f"{name}\x01{value}".encode(), NAMES, st.text("k 1é", max_size=9)
        ),
        max_size=6,
    ).map(b"\x02".join),
)


@FUZZ
@given(st.lists(st.tuples(st.integers(0, 2), RAW), max_size=70))
def test_index_entries(rows: list[tuple[int, bytes]]) -> None:
    prefixes = keys.TopicPrefixes()
    for number, topic in enumerate(["T", "Ünïcode", "x" * 127]):
        prefixes.put(number, topic)
    numbers = np.array([number for number, _ in rows], dtype=np.int64)
    data = [found for _, found in rows]
    compiled = core.index_entries(data, numbers, prefixes.hashes)
    if compiled is None:
        assert not b"".join(data).isascii()
        return
    with in_python(keys):
        expected = keys.index_entries(prefixes, numbers, data)
    columns: list[Any] = list(expected)
    assert list(compiled) == [column.tobytes() for column in columns]


@FUZZ
@given(st.lists(RAW, min_size=1, max_size=3), st.sampled_from([-1, 3, 64, 2**62]))
def test_index_entries_of_a_number_that_no_topic_has(data: list[bytes], number: int) -> None:
    prefixes = np.zeros((3, 2), dtype=np.uint32)
    numbers = np.full(len(data), number, dtype=np.int64)
    assert core.index_entries(data, numbers, prefixes) is None
    assert core.index_entries(data, numbers[1:], prefixes) is None


ITEMS = st.tuples(st.one_of(st.integers(-6, 6), INT32), INT64, INT64)


@FUZZ
@given(
    st.integers(1, 5),
    st.integers(0, 8),
    st.binary(min_size=40, max_size=40) | st.just(bytes(40)),
    st.lists(st.integers(-3, 9), min_size=5, max_size=5),
    st.lists(st.lists(ITEMS, max_size=8), max_size=3),
)
def test_index_items(
    slots: int,
    max_items: int,
    header: bytes,
    heads: list[int],
    batches: list[list[tuple[int, int, int]]],
) -> None:
    size = local.file_size(slots, max_items)
    ours, twin = (bytearray(size + GUARD) for _ in range(2))
    for buffer in (ours, twin):
        buffer[:40] = header
        buffer[40 : 40 + 4 * slots] = np.array(heads[:slots], ">i4").tobytes()
        buffer[size:] = b"\xa5" * GUARD
    for rows in batches:
        columns = (
            np.array([row[0] for row in rows], np.int32),
            np.array([row[1] for row in rows], np.int64),
            np.array([row[2] for row in rows], np.int64),
        )
        before = bytes(ours)
        count = core.put_items(memoryview(ours)[:size], slots, *columns)
        if count is None:
            assert bytes(ours) == before
            return
        fitted = [local.put_item(memoryview(twin)[:size], slots, *row) for row in rows]
        assert count == sum(fitted)
        assert ours == twin


@FUZZ
@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=120))
def test_index_items_of_a_file_that_is_none(slots: int, data: bytes) -> None:
    buffer = bytearray(data)
    ones = np.ones(2, np.int64)
    count = core.put_items(buffer, slots, ones.astype(np.int32), ones, ones)
    assert count is None or 0 <= count <= 2
    assert len(buffer) == len(data)


TIERED_ITEMS = st.tuples(
    st.one_of(st.integers(-6, 6), INT32), INT64, INT32, st.integers(-(2**43), 2**43) | INT64
)


@FUZZ
@given(
    st.integers(1, 5),
    st.integers(0, 8),
    st.tuples(st.integers(-(2**43), 2**43) | INT64, st.integers(0, 2**62), st.integers(0, 3)),
    st.lists(st.integers(-3, 9), min_size=5, max_size=5),
    st.lists(st.lists(TIERED_ITEMS, min_size=1, max_size=6), max_size=3),
)
def test_tiered_index_items(
    slots: int,
    max_items: int,
    header: tuple[int, int, int],
    heads: list[int],
    batches: list[list[tuple[int, int, int, int]]],
) -> None:
    size = tiered.unsealed_size(slots, max_items)
    ours = bytearray(size + GUARD)
    ours[: tiered.HEADER_SIZE] = tiered.pack_header(tiered.IndexHeader(*header[:2], 0, header[2]))
    tiered.slots_view(ours, slots)[:] = heads[:slots]
    ours[size:] = b"\xa5" * GUARD
    twin = bytearray(ours)
    for rows in batches:
        columns = [
            np.array([row[place] for row in rows], kind)
            for place, kind in enumerate((np.int32, np.int64, np.int32, np.int64))
        ]
        count = core.put_tiered_items(memoryview(ours)[:size], slots, -7, 3, *columns)
        try:
            tiered.put_few_items(memoryview(twin)[:size], slots, -7, 3, rows)
        except Invalid:
            assert count is None
        else:
            assert count == len(rows)
        assert ours == twin


@FUZZ
@given(st.integers(-(2**63), 2**63 - 1), st.binary(max_size=120))
def test_tiered_index_items_of_a_file_that_is_none(slots: int, data: bytes) -> None:
    for made in (bytearray(data), bytearray(tiered.pack_header(tiered.IndexHeader(0)) + data)):
        before = bytes(made)
        ones = np.ones(2, np.int64)
        items, sizes = ones.astype(np.int32), ones.astype(np.int32)
        if core.put_tiered_items(made, slots, 0, 0, items, ones, sizes, ones) is None:
            assert made == before


@FUZZ
@given(
    st.integers(-1, 1000),
    st.lists(st.tuples(st.integers(-3, 130), st.integers(-9, 130)), min_size=1, max_size=6),
)
def test_copies_of_runs(base: int, spans: list[tuple[int, int]]) -> None:
    data = bytes(range(120))
    starts, lengths = np.array(spans, np.int64).T
    starts, ends = starts + base, starts + base + lengths
    copied = core.copy_runs(memoryview(data), base, starts.copy(), ends.copy())
    if base < 0 or any(not 0 <= start <= start + size <= 120 for start, size in spans):
        assert copied is None
    else:
        assert copied == b"".join(data[start : start + size] for start, size in spans)
        with in_python(gathering):
            assert copied == gathering.copy_runs(
                memoryview(data), base, gathering.Runs.of(starts, ends)
            )


@FUZZ
@given(
    st.lists(st.tuples(RAW, st.sampled_from([0, 16, 32, 48]), st.sampled_from(["T", "x" * 200]))),
    st.lists(st.tuples(st.integers(0, 900), st.integers(0, 255)), max_size=2),
    st.lists(st.integers(-9, 2000), max_size=2),
)
def test_key_hashes(
    made: list[tuple[bytes, int, str]], flips: list[tuple[int, int]], strays: list[int]
) -> None:
    records = [
        encode_record(
            Message(
                topic, b"body", 7, found, sys_flag=flag, born_host=bytes(8 + 3 * (flag & 16) // 4)
            ),
            0,
            0,
            1,
            store_host=bytes(8 + 3 * (flag & 32) // 8),
        )
        for found, flag, topic in made
    ]
    data = bytearray(b"".join(records))
    for place, value in flips:
        if place < len(data):
            data[place] = value
    ends = np.cumsum([0, *map(len, records)])
    positions = np.array([*ends[:-1], *strays], np.int64)
    compiled = core.key_hashes(data, positions, topic_prefix_hash("T"))
    if compiled is None:
        return
    with in_python(columns_keys):
        rows, hashes = columns_keys.key_hashes(data, positions, "T")
    assert compiled == (rows.tobytes(), hashes.tobytes())


def test_key_hashes_of_plain_records_need_no_python() -> None:
    keys_value = " ".join(f"k{number % 40}" for number in range(90))
    records = [
        encode_record(
            Message("T", b"b", 7, f"KEYS\x01{keys_value}\x02UNIQ_KEY\x01u".encode()), 0, 0, 1
        ),
        encode_record(Message("T", b"b", 7, b"UNIQ_KEY\x01a\x02KEYS\x01a  b a"), 1, 0, 1),
    ]
    compiled = core.key_hashes(
        b"".join(records), np.array([0, len(records[0])]), topic_prefix_hash("T")
    )
    wanted = ["u", *(f"k{number}" for number in range(40)), "a", "b"]
    assert np.frombuffer(compiled[0], np.int64).tolist() == [0] * 41 + [1] * 2
    assert compiled[1] == tiered_key_hashes("T", wanted).tobytes()


MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["T", "Ünïcode"]),
    body=st.one_of(st.binary(max_size=200), st.just(bytearray(b"x")), st.none()),
    queue_id=st.sampled_from([0, 7, 2**31]),
    properties=RAW | st.just(b"INNER_NUM\x011") | st.just(b"DELAY\x011\x02"),
    flag=st.one_of(INT32, st.just(2**31), st.just(None)),
    sys_flag=st.sampled_from([0, 1, 2, 4, 8, 16, 32, 128, 256]),
    born_timestamp_ms=st.one_of(INT64, st.just(2**63)),
    born_host=st.sampled_from([b"\x7f\0\0\1\0\0\0\0", bytes(20), b""]),
    reconsume_times=INT32,
    prepared_transaction_offset=INT64,
)


@FUZZ
@given(
    st.lists(
        st.one_of(
            st.sampled_from([91, 91, 91, 100, 8, 0, 90, -1, 2**31 - 1]).map(
                lambda size: (size, MAGICS[size % 2])
            ),
            st.tuples(INT32, st.sampled_from([0, MAGIC_BLANK, *MAGICS])),
        ),
        max_size=40,
    ),
    st.integers(0, 200),
    st.integers(-5, 200),
)
def test_a_walk(heads: list[tuple[int, int]], start: int, less: int) -> None:
    data = b"".join(
        size.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big") + bytes(max(size, 8) - 8)
        for size, magic in heads
        if size < 1000
    )
    data += b"".join(
        size.to_bytes(4, "big", signed=True) + magic.to_bytes(4, "big") for size, magic in heads
    )
    end = len(data) - less
    if not 0 <= start <= end <= len(data):
        with pytest.raises(ValueError):
            core.walk_records(data, start, end)
        return
    found, position = core.walk_records(data, start, end)
    with in_python(walk):
        expected = walk.walk_records(data, start, end)
    assert (found, position) == (expected.positions.tobytes(), expected.next_position)


def make_place(size: int) -> tuple[bytearray, memoryview]:
    place = bytearray(b"\xa5" * size)
    return place, memoryview(place)[GUARD : size - GUARD]


def is_plain(message: Message, *, in_batch: bool) -> bool:
    return (
        isinstance(message.body, bytes)
        and message.queue_id == 7
        and message.topic == "T"
        and b"INNER_" not in message.properties
        and not (in_batch and b"DELAY\x01" in message.properties)
        and isinstance(message.flag, int)
        and message.flag < 2**31
        and message.sys_flag not in (4, 8, 16, 32, 128)
        and message.born_timestamp_ms < 2**63
        and len(message.born_host) == 8
    )


TEMPLATE: Any = RecordEncoder().plain_template("T")
RECORD = TEMPLATE.make_record(7)


class Log:
    """Stand-in for a commit log, with the attributes that the core uses."""

    __slots__ = ("limit", "max_offset", "view", "view_from")


class Appender:
    """Stand-in for an appender, with the attributes that the core uses."""

    __slots__ = (
        "_help_values",
        "_is_idle",
        "_lock",
        "_log",
        "_max_plain_body_bytes",
        "_now_ms",
        "_plain",
        "_rows",
        "_wakes",
        "durability",
        "help",
        "last_timestamp_ms",
    )
    put = core.put_message

    def put_in_python(self, message: Message) -> None:
        """Do nothing. The core calls this method for messages that it leaves to Python."""

    def _help_after(self, size: int) -> None:
        self.help(size)  # type: ignore[attr-defined]


KINDS = (PutMessageResult, PutMessageStatus.PUT_OK, DURABLE, SystemClock.now_ms)


@pytest.fixture(scope="module")
def put_places() -> Iterator[None]:
    """Make the core put messages through this module's Appender and Log."""
    core.configure_puts(Appender, Log, QueueState, *KINDS)
    yield
    core.configure_puts(MessageAppender, CommitLog, QueueState, *KINDS)


def make_appender(view: memoryview, inside: int, limit: int, position: int) -> Any:
    """Return an appender for queue 7 of topic T. The next queue offset is 5, and the log ends at
    byte `inside` of the buffer."""
    log: Any = Log()
    log.view, log.view_from = view, position - inside
    log.limit, log.max_offset = position - inside + limit, position
    appender: Any = Appender()
    appender._log, appender._lock, appender._rows = log, threading.RLock(), ["before"]
    appender._plain = {("T", 7): (QueueState("T", 7, 3, 5), *TEMPLATE, RECORD)}
    appender._max_plain_body_bytes, appender._help_values = 150, 99
    appender._now_ms, appender.last_timestamp_ms = (lambda: 77), 70
    appender.durability, appender._is_idle, appender._wakes = DURABLE, False, iter(())
    return appender


def read_state(appender: Any) -> tuple[object, ...]:
    """Return everything that a put changes, so that states can be compared."""
    log, state = appender._log, appender._plain["T", 7][0]
    return log.max_offset, state.next_offset, appender.last_timestamp_ms, appender._rows[1:]


@FUZZ
@given(MESSAGES, st.integers(-9, 700), st.integers(-9, 700), st.integers(0, 2**62))
def test_records(
    put_places: None, message: Message, inside: int, limit: int, position: int
) -> None:
    place, view = make_place(2 * GUARD + 400)
    appender = make_appender(view, inside, limit, position)
    before = read_state(appender)
    result = appender.put(message)
    assert appender._lock.acquire(blocking=False)
    if result is None:
        assert set(place) == {0xA5}
        assert read_state(appender) == before
        if is_plain(message, in_batch=False) and 0 <= inside <= limit and limit <= 400:
            fits = (
                len(message.body) <= 150
                and inside + 91 + 1 + len(message.body) + len(message.properties) <= limit
            )
            assert not fits
        return
    assert is_plain(message, in_batch=False)
    record = encode_record(message, 5, position, 77)
    assert result == PutMessageResult(
        PutMessageStatus.PUT_OK, position, 5, len(record), 1, 77, DURABLE, "", True
    )
    row = [3, record[:88], message.properties]
    assert read_state(appender) == (position + len(record), 6, 77, row)
    start = GUARD + inside
    assert inside >= 0
    assert inside + len(record) <= min(limit, 400)
    assert place[start : start + len(record)] == record
    assert set(place[:start] + place[start + len(record) :]) <= {0xA5}


def make_ready() -> Any:
    return make_appender(memoryview(bytearray(400)), 0, 400, 1000)


PLAIN = Message("T", b"body", 7)


@pytest.mark.parametrize("size", [5120, 5121, 10_240, 10_241, 64 << 10, (64 << 10) + 1])
def test_a_large_body(put_places: None, size: int) -> None:
    body = bytes(range(251)) * (size // 251) + bytes(size % 251)
    message = Message("T", body, 7)
    place = bytearray(size + 400)
    appender = make_appender(memoryview(place), 0, len(place), 1000)
    appender._max_plain_body_bytes = size
    references = sys.getrefcount(body)
    assert appender.put(message).ok
    record = encode_record(message, 5, 1000, 77)
    assert place[: len(record)] == record
    assert sys.getrefcount(body) == references


def test_a_put_wakes_those_who_wait_and_helps_a_late_dispatch(put_places: None) -> None:
    calls: list[object] = []
    appender = make_ready()
    appender._is_idle, appender._wakes = True, map(calls.append, ["one", "two"])
    appender._help_values, appender.help = 3, calls.append
    result = appender.put(PLAIN)
    assert calls == ["one", "two", result.wrote_bytes]
    assert not appender._is_idle


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_what_fails_behind_a_put_leaves_it_stored_once(
    put_places: None, error: type[BaseException]
) -> None:
    def fail(_: object) -> None:
        raise error

    appender = make_ready()
    appender._is_idle, appender._wakes = True, map(fail, [0])
    with pytest.raises(error):
        appender.put(PLAIN)
    assert appender._plain["T", 7][0].next_offset == 6
    assert appender._lock.acquire(blocking=False)
    appender._help_values, appender.help = 0, fail
    with pytest.raises(error):
        appender.put(PLAIN)
    assert appender._plain["T", 7][0].next_offset == 7


def test_a_clock_that_is_interrupted_ends_a_put(put_places: None) -> None:
    def fail() -> int:
        raise KeyboardInterrupt

    appender = make_ready()
    before = read_state(appender)
    appender._now_ms = fail
    with pytest.raises(KeyboardInterrupt):
        appender.put(PLAIN)
    assert read_state(appender) == before
    assert appender._lock.acquire(blocking=False)


def test_the_clock_of_the_machine_is_read(put_places: None) -> None:
    appender = make_ready()
    appender._now_ms = SystemClock().now_ms
    begun_ms = SystemClock().now_ms()
    assert begun_ms <= appender.put(PLAIN).store_timestamp_ms <= SystemClock().now_ms()
    appender.last_timestamp_ms = 1 << 60
    assert appender.put(PLAIN).store_timestamp_ms == 1 << 60


def test_a_put_leaves_no_reference_behind(put_places: None, no_garbage: None) -> None:
    appender, message = make_ready(), Message("T", b"x" * 20, 7, b"KEYS\x01k\x02")
    counted = (
        message,
        message.body,
        message.properties,
        appender._plain["T", 7],
        DURABLE,
        appender,
    )
    before = [sys.getrefcount(value) for value in counted]
    appender.put(message)
    appender._rows.clear()
    for _ in range(9):  # declined
        appender._log.limit = 0
        appender.put(message)
    assert [sys.getrefcount(value) for value in counted] == before


HARMLESS = {"durability", "_is_idle", "_wakes", "_help_values", "help"}


@pytest.mark.parametrize("slot", Appender.__slots__)
@pytest.mark.parametrize("value", [None, "text", 1 << 70, b"", ()])
def test_state_of_other_kinds_is_declined(put_places: None, slot: str, value: object) -> None:
    appender = make_ready()
    setattr(appender, slot, value)
    with suppress(TypeError, AttributeError):
        assert appender.put(PLAIN) is None or slot in HARMLESS
    appender = make_ready()
    if slot != "help":
        delattr(appender, slot)
    with suppress(TypeError, AttributeError):
        assert appender.put(PLAIN) is None or slot in HARMLESS


@FUZZ
@given(st.lists(MESSAGES, max_size=4), st.booleans(), st.integers(-9, 2000), st.integers(0, 2**62))
def test_records_of_a_batch(
    messages: list[Message], mend: bool, inside: int, position: int
) -> None:
    if mend:
        for message in messages:
            message.queue_id, message.topic = 7, "T"
    place, view = make_place(2 * GUARD + 1000)
    arguments = (view, inside, 1 << 40, RECORD, 150)
    found = core.append_records(*arguments, messages, 5, position, 77, 3, "T")
    if found is None:
        assert set(place) == {0xA5}
        return
    assert all(is_plain(message, in_batch=True) for message in messages)
    records: list[bytes] = []
    for number, message in enumerate(messages, 5):
        records.append(encode_record(message, number, position + len(b"".join(records)), 77))
    joined = b"".join(records)
    end, rows = found
    assert end == position + len(joined)
    assert rows[0::3] == (3,) * len(messages)
    assert rows[1::3] == tuple(record[:88] for record in records)
    assert rows[2::3] == tuple(message.properties for message in messages)
    start = GUARD + inside
    assert place[start : start + len(joined)] == joined
    assert set(place[:start] + place[start + len(joined) :]) <= {0xA5}


@pytest.mark.parametrize(
    "call",
    [
        lambda: core.put_message(),
        lambda: core.put_message(None, None),
        lambda: core.append_records(),
        lambda: core.append_records(*[None] * 11),
        lambda: core.append_records(
            memoryview(b"x" * 99), 0, 99, RECORD, 9, [None], 0, 0, 0, 0, "T"
        ),
        lambda: core.append_records(None, 0, 99, RECORD, 9, [None], 0, 0, 0, 0, "T"),
        lambda: core.append_records(bytearray(9), 0, 9, RECORD, 9, 5, 0, 0, 0, 0, "T"),
        lambda: core.append_records(bytearray(9), 0, 9, RECORD, 9, [], 0, 0, 0, 0, None),
        lambda: core.append_records(
            bytearray(999), 0, 999, RECORD, 9, [Message("T", b"", 7)], 1 << 63, 0, 0, 0, "T"
        ),
        lambda: core.append_records(
            bytearray(999), 0, 999, b"", 9, [Message("T", b"", 7)], 0, 0, 0, 0, "T"
        ),
        lambda: core.encode_properties([]),
        lambda: core.encode_properties({1: 2}),
        lambda: core.index_entries(None, b"", b""),
        lambda: core.index_entries([None], bytes(8), bytes(8)),
        lambda: core.put_items(b"", 1, b"", b"", b""),
        lambda: core.put_items(bytearray(60), 1, bytes(4), bytes(7), bytes(8)),
        lambda: core.put_tiered_items(b"", 1, 0, 0, b"", b"", b"", b""),
        lambda: core.put_tiered_items(bytearray(92), 1, 0, 0, bytes(4), bytes(7), bytes(4), b""),
        lambda: core.key_hashes(None, b"", 0),
        lambda: core.key_hashes(bytes(91), bytes(8), 0),
        lambda: core.copy_runs(None, 0, b"", b""),
        lambda: core.copy_runs(b"", 0, bytes(8), b""),
        lambda: core.configure(int, *CONFIGURED[1:]),
        lambda: core.configure(5, 5, 5, 5, 5),
        lambda: core.configure(*CONFIGURED[:4], "no bytes"),
        lambda: core.configure_puts(),
        lambda: core.configure_puts(int, int, int, int, *KINDS[1:]),
    ],
)
def test_arguments_of_other_kinds_are_declined_or_refused(call: Callable[[], object]) -> None:
    with suppress(TypeError, ValueError, AttributeError, BufferError):
        assert call() is None


@pytest.mark.parametrize("size", [0, 6_000, 70_000])
def test_a_crc_that_fails_is_an_error(size: int) -> None:
    def fail(body: bytes, value: int = 0) -> int:
        raise MemoryError

    message, place = Message("T", bytes(size), 7), bytearray(size + 999)
    core.configure(Message, fail, fail, *CONFIGURED[3:])
    try:
        with pytest.raises(MemoryError):
            core.append_records(place, 0, len(place), RECORD, size, [message], 0, 0, 0, 0, "T")
    finally:
        core.configure(*CONFIGURED)
