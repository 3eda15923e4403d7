"""Runs are merged by size, expire with their messages, and can be repaired from the parent
topics."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.kit.lite_tier import LiteTier, queue_of
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import Fenced, Unavailable
from tieredstore.tier.lite import merging as lite_merging
from tieredstore.tier.lite.merging import FAN_IN
from tieredstore.tier.lite.service import RETIRED_MS

BODY = b"x" * 300


@pytest.fixture
def it(tmp_path: Path) -> Iterator[LiteTier]:
    store = LiteTier(tmp_path)
    yield store
    store.close()


def put_rounds(it: LiteTier, rounds: int, sessions: int = 3) -> dict[str, list[bytes]]:
    """Put messages into some lite topics and write a run of them to the tier, `rounds` times."""
    chance = random.Random(rounds)
    sent: dict[str, list[bytes]] = {}
    for number in range(rounds):
        for place in range(4):
            lite = f"s{chance.randrange(sessions)}"
            body = b"%d.%d" % (number, place) + BODY
            it.put_lite(lite, body, queue_id=place)
            sent.setdefault(lite, []).append(body)
        it.upload_runs()
    return sent


def read_all(it: LiteTier, sent: dict[str, list[bytes]]) -> None:
    assert {lite: it.read_lite(lite) for lite in sent} == sent


def empty_local(it: LiteTier) -> None:
    it.fill()
    it.upload_runs()
    assert it.clean()


def test_runs_are_merged_and_the_former_ones_deleted_later(it: LiteTier) -> None:
    sent = put_rounds(it, FAN_IN)
    assert len(it.lite.directory.runs) == 1
    assert len(it.list_runs()) == FAN_IN + 1
    it.clock.advance(RETIRED_MS)
    it.lite.run_once()
    assert len(it.list_runs()) == 1
    empty_local(it)
    read_all(it, sent)
    it.reopen()
    read_all(it, sent)


def test_a_large_run_has_parts(it: LiteTier, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lite_merging, "PART_UNITS", 10)
    sent = put_rounds(it, FAN_IN, sessions=8)
    assert len(it.lite.directory.runs) == 4
    assert [run.notes.part for run in it.lite.directory.runs] == [0, 1, 2, 3]
    empty_local(it)
    read_all(it, sent)
    it.reopen()
    assert len(it.lite.directory.runs) == 4
    read_all(it, sent)


@pytest.mark.parametrize("cut", range(6))
def test_a_crash_at_any_write_of_a_merge_loses_nothing(
    it: LiteTier, monkeypatch: pytest.MonkeyPatch, cut: int
) -> None:
    monkeypatch.setattr(lite_merging, "PART_UNITS", 10)
    sent = put_rounds(it, FAN_IN - 1, sessions=8)
    place = it.lite._place
    assert place is not None
    writes = 0

    def count(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object) -> None:
            nonlocal writes
            writes += 1
            if writes > cut:
                raise Unavailable("the process ends here")
            real(*arguments)

        return call

    with monkeypatch.context() as patch:
        for name in ("write_backup", "delete_backups"):
            patch.setattr(place, name, count(getattr(place, name)))
        try:
            more = put_rounds(it, 1, sessions=8)
            it.clock.advance(RETIRED_MS)
            it.lite.run_once()
        except Unavailable:
            more = {}
        it.close()
    it.open()
    it.lite.run_once()
    if not more:  # the messages were committed before
        more = {}
        whole = {lite: it.read_lite(lite)[: len(bodies)] for lite, bodies in sent.items()}
        assert whole == sent
    it.clock.advance(RETIRED_MS)
    it.lite.run_once()
    assert {run.name for run in it.lite.directory.runs} == {*it.list_runs()}
    empty_local(it)
    assert sum(len(it.read_lite(f"s{one}")) for one in range(8)) == 4 * FAN_IN


def test_a_damaged_run_is_made_again_from_the_parents(it: LiteTier) -> None:
    sent = put_rounds(it, 3)
    empty_local(it)
    it.close()
    files = sorted((it.root / "tier").rglob(".backups/*.lite"))
    data = bytearray(files[1].read_bytes())
    data[40] ^= 1
    files[1].write_bytes(data)
    files[2].unlink()
    it.open()
    found = [it.get(lite, 0).status for lite in sent]
    assert GetMessageStatus.OFFSET_FOUND_NULL in found or len(found) == 1
    it.lite.run_once()
    read_all(it, sent)
    it.clock.advance(RETIRED_MS)
    it.lite.run_once()
    it.reopen()
    read_all(it, sent)


def test_damaged_units_are_not_read(it: LiteTier) -> None:
    put_rounds(it, 1, sessions=1)
    empty_local(it)
    it.close()
    [file] = [*(it.root / "tier").rglob(".backups/*.lite")][:1]
    data = bytearray(file.read_bytes())
    data[-3] ^= 1
    file.write_bytes(data)
    it.open()
    assert it.get("s0", 0).status is GetMessageStatus.OFFSET_FOUND_NULL


def test_runs_expire_with_the_messages_of_their_parents(tmp_path: Path) -> None:
    it = LiteTier(tmp_path, tieredStoreFileReservedTime=24, tieredStoreDeleteFileEnable=True)
    put_rounds(it, 2)
    empty_local(it)
    assert it.read_lite("s0")
    it.clock.advance(3 * 24 * 3_600_000)
    it.store.expiry.run_once()
    it.lite.run_once()
    assert it.read_lite("s0") == []
    it.clock.advance(RETIRED_MS)
    it.lite.run_once()
    assert it.list_runs() == []
    it.put_lite("s0", b"new")
    assert it.read_lite("s0") == [b"new"]
    it.close()


def test_merges_forget_messages_that_were_deleted(it: LiteTier) -> None:
    put_rounds(it, 2, sessions=2)
    deleted = it.lite.find_end(queue_of("s0"))
    it.store.delete_topics({queue_of("s0")})
    put_rounds(it, FAN_IN - 2, sessions=1)
    [run] = it.lite.directory.runs
    assert run.names["deleted"].max() == deleted
    [found] = it.lite.find(queue_of("s0"))
    units = found.run.read_rows(found.row, found.row + found.size)
    left = units[units["offset"] < deleted]
    assert len(units) - len(left) == 4 * (FAN_IN - 2)
    assert len(left) == len({*left["queue_id"].tolist()})  # the last one of each queue


def test_a_fenced_writer_writes_no_more_runs(it: LiteTier) -> None:
    put_rounds(it, 1)
    runs = it.list_runs()
    writer = it.lite._writer
    assert writer is not None

    def refuse() -> None:
        raise Fenced("another one has it")

    it.put_lite("s0", BODY)
    it.upload()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "check", refuse)
        with pytest.raises(Fenced):
            it.lite.run_once()
    it.lite.run_once()
    assert it.list_runs() == runs
