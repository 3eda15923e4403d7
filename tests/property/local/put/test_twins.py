"""The fast path and the general path of a put create the same records, results and rows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.local_stores import START_MS, small_config
from tieredstore.clock import ManualClock
from tieredstore.contracts.message_store import PutMessageResult
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message

INT32 = st.integers(-(2**31), 2**31 - 1)
TOO_LARGE = 2**31


@dataclass
class Put:
    """One put: a message or a batch of messages. Before it, the clock advances by a number of
    ms."""

    messages: list[Message]
    is_batch: bool
    advance_ms: int


MESSAGES = st.builds(
    Message,
    topic=st.sampled_from(["T", "Ünïcode", "x" * 127]),
    body=st.one_of(st.binary(max_size=900), st.integers(5_000, 12_000).map(bytes)),
    queue_id=st.sampled_from([0, 7]),
    properties=st.sampled_from([b"", b"KEYS\x01k 1\x02", b"TAGS\x01t\x02UNIQ_KEY\x01U\x02"]),
    flag=st.one_of(INT32, st.just(TOO_LARGE)),
    sys_flag=st.sampled_from([0, 1]),
    born_timestamp_ms=st.integers(0, 2**62),
    reconsume_times=INT32,
    prepared_transaction_offset=st.integers(0, 2**62),
)
PUTS = st.builds(
    Put, st.lists(MESSAGES, min_size=1, max_size=4), st.booleans(), st.integers(-500, 500)
)


def put_all(
    root: Path, puts: list[Put], *, is_short: bool
) -> tuple[list[PutMessageResult], dict[str, bytes]]:
    """Put all messages into a new store. Return the results, and the files of the commit log and of
    the consume queues."""
    clock = ManualClock(START_MS)
    store = DefaultMessageStore(small_config(root), clock)
    if not is_short:
        store._appender._learn = lambda state: None  # type: ignore[method-assign]
    store.load()
    store.start()
    results = []
    try:
        for put in puts:
            clock.set(clock.now_ms() + put.advance_ms)
            if put.is_batch:
                results.append(store.put_messages(put.messages))
            else:
                results += [store.put_message(message) for message in put.messages]
        assert is_short or not store._appender._plain
    finally:
        store.shutdown()
    files = {
        str(path.relative_to(root)): path.read_bytes()
        for folder in ("commitlog", "consumequeue")
        for path in (root / folder).rglob("*")
        if path.is_file()
    }
    # A refused message may have begun a file, where the short way makes room before it packs.
    files = {name: data for name, data in files.items() if data.strip(b"\0")}
    # Of several faults of a batch each way may name another.
    return [
        msgspec.structs.replace(result, reason=str(bool(result.reason))) for result in results
    ], files


@settings(max_examples=20, deadline=None)
@given(st.lists(PUTS, max_size=8))
def test_the_short_way_is_the_general_put(puts: list[Put]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        short = put_all(Path(folder) / "short", puts, is_short=True)
        general = put_all(Path(folder) / "general", puts, is_short=False)
    assert short == general
