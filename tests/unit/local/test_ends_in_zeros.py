"""Tests of records whose properties end in a zero byte, which clients of a Java broker can send."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tests.kit.local_stores import START_MS, running, small_config
from tieredstore.errors import Corrupt
from tieredstore.message.encoding import OwnMessage, encode_record
from tieredstore.message.hosts import encode_host

LOG_BYTES = 1 << 20
HOST = encode_host("10.0.0.9", 40_000)
ENDS_IN_ZERO = b"UNIQ_KEY\x01u\x02a\x01b\0"


def make_record(body: bytes, properties: bytes, number: int, position: int) -> bytes:
    message = OwnMessage("T", body, 0, properties, 0, 0, START_MS, HOST)
    return bytes(encode_record(message, number, position, START_MS, store_host=HOST))


def write_log(root: Path, records: list[tuple[bytes, bytes]], *, pad_to: int = 0) -> None:
    """Write records of `T/0`, given as (body, properties). With `pad_to`, pad the second body so
    that the record ends at a multiple of that size."""
    log = b""
    for number, (body, properties) in enumerate(records):
        record = make_record(body, properties, number, len(log))
        if pad_to and number == 1:
            missing = -(len(log) + len(record)) % pad_to
            record = make_record(body + b"." * missing, properties, number, len(log))
        log += record
    (root / "commitlog").mkdir(parents=True)
    (root / "commitlog" / f"{0:020d}").write_bytes(log.ljust(LOG_BYTES, b"\0"))
    (root / "abort").touch()


GOOD = b"UNIQ_KEY\x01u\x02"


def test_j97_a_record_that_ends_in_a_zero_is_read_and_copied(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_log(root, [(b"0", GOOD), (b"1", ENDS_IN_ZERO), (b"2", GOOD)])
    with running(small_config(root, mapped_file_size_commit_log_bytes=LOG_BYTES)) as store:
        found = store.get_message("g", "T", 0, 0, 32).messages
        assert [bytes(one.body) for one in found] == [b"0", b"1", b"2"]
        position = found[1].physical_offset
        looked = store.look_message_by_offset(position)
        assert looked is not None
        assert bytes(looked.body) == b"1"
    tier, state = tmp_path / "tier", tmp_path / "state"
    where = ("--tier", tier, "--broker", "b", "--cluster", "c")
    done = tieredstore("offload", root, *where, "--state", state, "--quiet", "--output", "json")
    assert done.code == 0, done.err
    assert done.record["damaged"] == []
    shown = tieredstore("cat", *where, "--topic", "T", "--output", "ndjson")
    assert (shown.code, len(shown.out.splitlines())) == (0, 3), shown.err


def test_j97_zeros_that_a_torn_write_may_have_left_stay_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_log(root, [(b"0", GOOD), (b"1", ENDS_IN_ZERO), (b"2", GOOD)], pad_to=512)
    with running(small_config(root, mapped_file_size_commit_log_bytes=LOG_BYTES)) as store:
        assert len(store.get_message("g", "T", 0, 0, 32).messages) == 1
        with pytest.raises(Corrupt, match="zeros at the end"):
            store.get_message("g", "T", 0, 1, 32)


def test_j97_zeros_at_the_end_of_the_log_stay_damage(tmp_path: Path) -> None:
    root = tmp_path / "store"
    write_log(root, [(b"0", GOOD), (b"1", ENDS_IN_ZERO)])
    with running(small_config(root, mapped_file_size_commit_log_bytes=LOG_BYTES)) as store:
        assert store.get_max_offset_in_queue("T", 0) == 1
