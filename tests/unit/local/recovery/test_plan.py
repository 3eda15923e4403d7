"""Tests of recovery plans and their messages. Planning writes nothing, and the repair follows the
plan exactly."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.kit.local_stores import copy_store, plain, put_all, running, small_config
from tests.kit.recovered import leave_unclean, read_everything, reopen
from tieredstore.clock import ManualClock
from tieredstore.errors import Corrupt, Invalid
from tieredstore.local.loading import recover
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.recovery.checkpoint import Checkpoint, read_checkpoint
from tieredstore.local.recovery.inferring import infer_config
from tieredstore.local.recovery.log_scan import EndCause
from tieredstore.local.recovery.normal import repair
from tieredstore.local.recovery.plan import RecoveryPlan
from tieredstore.local.recovery.planning import plan_recovery
from tieredstore.message.encoding import Message, encode_record
from tieredstore.message.layout import FIXED_SIZE

COUNT = 120


def fill(root: Path, count: int = COUNT) -> list[Any]:
    """Write several files of each kind, with two queues of one topic and one of another. Stop the
    store."""
    with running(small_config(root)) as store:
        return put_all(
            store, [plain("TU"[i % 3 == 2], i % 2, i, body=b"b" * (i % 50)) for i in range(count)]
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    fill(tmp_path / "s")
    return tmp_path / "s"


def contents(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def plan(root: Path, **how: Any) -> RecoveryPlan:
    before = contents(root)
    found = plan_recovery(root, small_config(root), **how)
    assert contents(root) == before
    json.dumps(found.fields())
    return found


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def log_place(root: Path, offset: int) -> tuple[Path, int]:
    return root / "commitlog" / f"{offset - offset % 4096:020d}", offset % 4096


def tear(root: Path, result: Any, kept: int = 0) -> None:
    path, inside = log_place(root, result.physical_offset)
    patch(path, inside + kept, bytes(result.wrote_bytes - kept))


def flip(root: Path, result: Any, position: int = 90) -> None:
    path, inside = log_place(root, result.physical_offset)
    byte = path.read_bytes()[inside + position]
    patch(path, inside + position, bytes([byte ^ 1]))


def test_a_clean_store_needs_nothing(root: Path) -> None:
    found = plan(root)
    assert found.was_clean
    assert not found.is_needed
    assert (found.needs_consent, found.warnings, found.queue_cuts) == ("", (), ())


def test_an_unclean_store_without_damage_keeps_everything(root: Path) -> None:
    wanted = reopen(root)
    leave_unclean(root, checkpoint=Checkpoint())
    found = plan(root)
    assert not found.was_clean
    assert found.is_needed
    assert (found.check_from, found.records, found.cut_bytes) == (0, COUNT, 0)
    assert found.end_cause is EndCause.UNWRITTEN
    assert {(q.topic, q.queue_id): q.until_offset for q in found.queues_to_build} == {
        key: len(records) for key, records in wanted.items()
    }
    assert reopen(root) == wanted
    assert plan(root).was_clean


def test_the_kept_dispatch_position_is_where_it_begins(tmp_path: Path) -> None:
    root = tmp_path / "s"
    results = fill(root)
    wanted = reopen(root)
    kept = results[70].physical_offset
    leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=kept))
    found = plan(root)
    assert (found.check_from, found.records) == (kept, COUNT - 70)
    index_begins = min(found.dispatch_from, kept)
    assert found.dispatch_from == index_begins > 0
    assert {(cut.topic, cut.queue_id, cut.to_offset) for cut in found.queue_cuts} == {
        (key[0], key[1], sum(int.from_bytes(r[28:36], "big") < kept for r in records))
        for key, records in wanted.items()
    }
    assert reopen(root) == wanted


def test_a_dispatch_position_that_is_no_border_is_not_believed(tmp_path: Path) -> None:
    root = tmp_path / "s"
    results = fill(root)
    wanted = reopen(root)
    kept = results[70].physical_offset + 3
    leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=kept))
    found = plan(root)
    assert found.check_from == 0
    assert "no message begins or ends there" in found.warnings[0]
    assert reopen(root) == wanted


def test_java_s_times_say_with_which_file_it_begins(tmp_path: Path) -> None:
    root = tmp_path / "s"
    clock = ManualClock(1_000_000)
    with running(small_config(root), clock) as store:
        for number in range(COUNT):
            clock.advance(1000)
            put_all(store, [plain(number=number)])
        wanted = read_everything(store)
    time = 1_000_000 + 60 * 1000
    leave_unclean(root, checkpoint=Checkpoint(time, time + 9))
    found = plan(root)
    # The last file that begins at least 3 seconds before.
    first = next(r for r in wanted["T", 0] if int.from_bytes(r[28:36], "big") == found.check_from)
    assert found.check_from % 4096 == 0
    assert found.check_from > 0
    assert int.from_bytes(first[56:64], "big") <= time - 3000
    assert found.dispatch_from <= found.check_from
    assert reopen(root) == wanted


@pytest.mark.parametrize("position", ["known", "unknown"])
def test_l02_a_torn_last_record_is_cut_in_an_unclean_store(tmp_path: Path, position: str) -> None:
    """As in Java's own test, a torn last record is cut off in an unclean store."""
    whole = tmp_path / "s"
    last = fill(whole, 30)[-1]
    wanted = reopen(whole)
    key = ("U", 1)
    for kept in range(0, last.wrote_bytes - 1, 7):
        root = copy_store(whole, tmp_path / f"torn{kept}")
        if position == "unknown":
            leave_unclean(root, checkpoint=Checkpoint())
        leave_unclean(root)
        tear(root, last, kept)
        found = plan(root)
        assert found.log_end == last.physical_offset
        assert found.needs_consent == ""
        assert found.cut_bytes <= kept
        again = reopen(root)
        assert again == {**wanted, key: wanted[key][:-1]}
        assert not any(log_place(root, found.log_end)[0].read_bytes()[found.log_end % 4096 :])


@pytest.mark.parametrize(
    "data",
    [b"\xff" * 40, b"\0\0\0\0" + b"\xff" * 40, (200).to_bytes(4, "big") + b"\xda\xa3\x20\xa7"],
)
def test_l02_bytes_behind_the_last_record_are_wiped(root: Path, data: bytes) -> None:
    wanted = reopen(root)
    end = plan(root).log_end
    path, inside = log_place(root, end)
    patch(path, inside, data)
    leave_unclean(root)
    found = plan(root)
    assert (found.log_end, found.cut_bytes) == (end, len(data.rstrip(b"\0")))
    assert found.end_cause in (EndCause.NO_RECORD, EndCause.TORN, EndCause.DAMAGED)
    assert reopen(root) == wanted
    assert not any(path.read_bytes()[inside:])


def test_l06_valid_messages_behind_a_damaged_one_are_not_thrown_away(tmp_path: Path) -> None:
    root = tmp_path / "s"
    results = fill(root)
    leave_unclean(root, checkpoint=Checkpoint())
    flip(root, results[80])
    found = plan(root)
    assert (found.log_end, found.end_cause) == (results[80].physical_offset, EndCause.DAMAGED)
    assert found.behind.records == COUNT - 81
    assert found.behind.first_offset == results[81].physical_offset
    assert f"{COUNT - 81} valid messages" in found.needs_consent
    before = contents(root)
    store = DefaultMessageStore(small_config(root), ManualClock())
    with pytest.raises(Corrupt, match=rf"`tieredstore store recover {root} --yes` does it"):
        store.load()
    assert contents(root) == before
    store = DefaultMessageStore(small_config(root), ManualClock())
    store.load(accept_loss=True)
    store.start()
    assert sum(len(records) for records in read_everything(store).values()) == 80
    assert store.commit_log.max_offset == results[80].physical_offset
    store.shutdown()
    assert sum(len(records) for records in reopen(root).values()) == 80


@pytest.mark.parametrize("length", [16, 64])
def test_l11_a_batch_that_was_copied_from_its_end_was_not_promised(
    tmp_path: Path, length: int
) -> None:
    """A batch whose copy into the log was interrupted is cut off, because it was not acknowledged.
    It is copied from its end, so its first bytes are missing."""
    root = tmp_path / "s"
    results = fill(root)
    first = results[-4]
    leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=results[40].physical_offset))
    path, inside = log_place(root, first.physical_offset)
    patch(path, inside, bytes(length))
    found = plan(root)
    assert (found.log_end, found.end_cause) == (first.physical_offset, EndCause.UNWRITTEN)
    assert found.behind.records == 3
    assert found.needs_consent == ""
    assert "in the middle of a batch" in found.warnings[0]
    assert sum(len(records) for records in reopen(root).values()) == COUNT - 4


def test_messages_behind_a_lost_write_were_not_promised(tmp_path: Path) -> None:
    """Messages after a lost write are cut off, because they were not acknowledged."""
    root = tmp_path / "s"
    results = fill(root)
    leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=results[40].physical_offset))
    end = results[80].physical_offset
    sector = end - end % 512
    path, inside = log_place(root, sector)
    patch(path, inside, bytes(512))
    found = plan(root)
    assert found.needs_consent == ""
    assert found.behind.records > 0
    assert "was lost with the power" in found.warnings[0]
    kept = sum(result.physical_offset < found.log_end for result in results)
    assert sum(len(records) for records in reopen(root).values()) == kept > 70
    # No later message comes back, though new messages are as long as the lost ones.
    with running(small_config(root)) as store:
        put_all(store, [plain("V", 0, i, body=b"b" * (i % 50)) for i in range(kept, COUNT)])
    leave_unclean(root, checkpoint=Checkpoint())
    found_keys = reopen(root)
    assert len(found_keys["V", 0]) == COUNT - kept


def test_a_sector_that_was_flushed_and_is_gone_needs_consent(tmp_path: Path) -> None:
    root = tmp_path / "s"
    results = fill(root)
    time = results[-1].store_timestamp_ms + 9_000
    leave_unclean(root, checkpoint=Checkpoint(time, 0))
    sector = results[80].physical_offset - results[80].physical_offset % 512
    path, inside = log_place(root, sector)
    patch(path, inside, bytes(512))
    assert "valid messages" in plan(root).needs_consent


@pytest.mark.parametrize("dispatched", [40, COUNT])
@pytest.mark.parametrize("torn", ["head", "sector", "end"])
def test_i82_a_torn_message_with_a_record_in_its_body_is_cut_off(
    tmp_path: Path, torn: str, dispatched: int
) -> None:
    """A torn message is cut off even if its body contains a record. Otherwise a client could
    prevent a start."""
    root = tmp_path / "s"
    results = fill(root)
    with running(small_config(root)) as store:
        begin = store.commit_log.max_offset
        if begin % 4096 > 1_000:  # so that the message begins at the start of a file
            begin += 4096 - begin % 4096
        assert begin % 4096 == 0 or begin % 4096 <= 1_000
        before = 700 if torn == "sector" else 0
        at = begin + FIXED_SIZE + before
        forged = encode_record(Message("T", b"forged", 0, b"UNIQ_KEY\x01f\x02"), 0, at, 1)
        body = bytes(before) + bytes(forged) + b"." * (2_900 - before)
        result = store.put_message(plain("T", 0, 0, body=body))
        assert result.physical_offset == begin
    last = results[-1]
    position = last.physical_offset + last.wrote_bytes
    if dispatched < COUNT:
        position = results[dispatched].physical_offset
    last_ms = last.store_timestamp_ms
    leave_unclean(root, checkpoint=Checkpoint(last_ms, last_ms, logics_physical_offset=position))
    path, inside = log_place(root, begin)
    if torn == "head":
        patch(path, inside, bytes(64))
    elif torn == "sector":
        patch(path, inside + 90, b"x")
    else:
        patch(path, inside + 2_000, bytes(result.wrote_bytes - 2_000))
    found = plan(root)
    assert found.needs_consent == ""
    assert found.log_end in (begin, position)
    assert sum(len(records) for records in reopen(root).values()) == COUNT


def test_i82_a_head_in_a_body_hides_no_messages_behind_it(tmp_path: Path) -> None:
    """A record head in the body of a torn message does not hide the messages after it."""
    root = tmp_path / "s"
    fill(root)
    with running(small_config(root)) as store:
        begin = store.commit_log.max_offset
        at = begin + FIXED_SIZE
        forged = encode_record(Message("T", bytes(2_000), 0, b""), 0, at, 1)
        torn = store.put_message(plain("T", 0, 0, body=bytes(forged)[:100]))
        assert torn.physical_offset == begin
        behind = put_all(store, [plain("T", 0, number) for number in range(5)])
    end_ms = behind[-1].store_timestamp_ms
    leave_unclean(root, checkpoint=Checkpoint(end_ms + 1, end_ms + 1))
    path, inside = log_place(root, begin)
    patch(path, inside, bytes(64))
    found = plan(root)
    assert found.log_end == begin
    assert "5 valid messages" in found.needs_consent


def test_i82_real_messages_behind_a_damaged_head_still_need_consent(tmp_path: Path) -> None:
    """Recovery asks for consent before it cuts off valid messages after a damaged record head."""
    for position in (0, 84):
        root = tmp_path / str(position)
        results = fill(root)
        leave_unclean(root, checkpoint=Checkpoint())
        path, inside = log_place(root, results[80].physical_offset)
        length = int.from_bytes(path.read_bytes()[inside + position : inside + position + 4], "big")
        patch(path, inside + position, (length + 1_000).to_bytes(4, "big"))
        assert f"{COUNT - 81} valid messages" in plan(root).needs_consent


@pytest.mark.parametrize("interrupt_at", range(0, 40, 3))
def test_a_recovery_that_is_interrupted_is_done_again(
    tmp_path: Path, interrupt_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "s"
    results = fill(root)
    wanted = reopen(root)
    leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=results[50].physical_offset))
    tear(root, results[-1], 20)
    calls = 0

    def count(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > interrupt_at:
                raise KeyboardInterrupt
            return real(*args, **more)

        return call

    with monkeypatch.context() as patched:
        for name in ("pwrite", "unlink", "replace", "ftruncate", "fdatasync"):
            patched.setattr(os, name, count(getattr(os, name)))
        store = DefaultMessageStore(small_config(root), ManualClock())
        try:
            store.load()
            store.start()
            store.shutdown()
        except KeyboardInterrupt:
            store._close_files()
    again = reopen(root)
    key = ("U", 1)
    assert again == {**wanted, key: wanted[key][:-1]}


def test_recovery_twice_is_recovery_once(tmp_path: Path) -> None:
    root = tmp_path / "s"
    results = fill(root)
    leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=results[50].physical_offset))
    tear(root, results[-1], 20)
    for _ in range(2):
        found = plan(root)
        repair(found)
        assert found.log_end == results[-1].physical_offset
    assert plan(root).cut_bytes == 0
    first, stores = reopen(root), []
    for _ in range(2):
        leave_unclean(root)
        assert reopen(root) == first
        stores.append(
            {name: data for name, data in contents(root).items() if not name.startswith("check")}
        )
    assert stores[0] == stores[1]


@pytest.mark.parametrize("is_clean", [True, False])
def test_units_behind_the_end_of_the_log_are_cut(tmp_path: Path, is_clean: bool) -> None:
    root = tmp_path / "s"
    fill(root, 100)
    wanted = reopen(root)
    end = plan(root).log_end
    queue = max((root / "consumequeue" / "T" / "0").iterdir())
    unit = (end + 50).to_bytes(8, "big") + (100).to_bytes(4, "big") + bytes(8)
    used = -(-len(queue.read_bytes().rstrip(b"\0")) // 20)
    assert used < 10
    patch(queue, used * 20, unit)
    if is_clean:
        cuts = plan(root).queue_cuts
        assert [(cut.queue_id, cut.from_offset - cut.to_offset) for cut in cuts] == [(0, 1)]
    else:
        leave_unclean(root)
    assert reopen(root) == wanted


def test_queues_that_are_gone_are_built_from_the_log(root: Path) -> None:
    wanted = reopen(root)
    for path in sorted((root / "consumequeue" / "T" / "1").iterdir()):
        path.unlink()
    with running(small_config(root)) as store:
        put_all(store, [plain("T", 0, 900)])
    leave_unclean(root, checkpoint=Checkpoint())
    again = reopen(root)
    assert again["T", 1] == wanted["T", 1]
    assert again["T", 0][:-1] == wanted["T", 0]


def test_a_hole_in_front_of_a_queue_s_next_message_is_found(tmp_path: Path) -> None:
    """Recovery finds missing units before the checkpoint. The dispatch then starts before the first
    missing unit."""
    root = tmp_path / "s"
    results = fill(root)
    wanted = reopen(root)
    kept = results[100].physical_offset
    leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=kept))
    first = root / "consumequeue" / "T" / "0" / f"{0:020d}"
    for path in sorted(first.parent.iterdir())[1:]:
        path.unlink()
    patch(first, 100, bytes(100))
    assert plan(root).dispatch_from <= results[5 * 3].physical_offset
    assert reopen(root) == wanted


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_queue_file_that_is_missing_between_others_is_built_again(
    root: Path, is_clean: bool
) -> None:
    wanted = reopen(root)
    if not is_clean:
        leave_unclean(root)
    files = sorted((root / "consumequeue" / "T" / "0").iterdir())
    assert len(files) > 3
    files[1].unlink()
    cuts = {(cut.topic, cut.queue_id): cut.to_offset for cut in plan(root).queue_cuts}
    assert cuts["T", 0] == 10
    assert reopen(root) == wanted


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("asks", [False, True])
def test_j51_a_queue_file_that_was_cut_off_is_made_anew(
    root: Path, number: int, asks: bool
) -> None:
    wanted = reopen(root)
    os.truncate(root / "consumequeue" / "T" / "0" / f"{number * 200:020d}", 40)
    config = infer_config(root)  # as the command does without a broker.conf
    assert config.mapped_file_size_consume_queue_bytes == 200
    if asks:
        recover(root, config, rebuild=True)
    assert reopen(root) == wanted


@pytest.mark.parametrize("is_clean", [True, False])
def test_a_log_file_that_is_missing_between_others_is_refused(root: Path, is_clean: bool) -> None:
    if not is_clean:
        leave_unclean(root)
    (root / "commitlog" / f"{4096:020d}").unlink()
    before = contents(root)
    with pytest.raises(Corrupt, match="expected the file of offset 4096 next, found 8192"):
        plan_recovery(root, small_config(root))
    with pytest.raises(Corrupt, match="expected the file of offset 4096 next, found 8192"):
        DefaultMessageStore(small_config(root)).load()
    assert contents(root) == before


def test_a_configuration_for_other_files_throws_nothing_away(root: Path) -> None:
    leave_unclean(root)
    before = contents(root)
    for change in (
        {"mapped_file_size_commit_log_bytes": 8192},
        {"mapped_file_size_consume_queue_bytes": 400},
        {"max_index_num": 30},
    ):
        with pytest.raises(Corrupt, match="expected"):
            DefaultMessageStore(small_config(root, **change)).load()
    assert contents(root) == before


def test_files_that_were_made_ahead_or_only_begun_are_dropped(root: Path) -> None:
    wanted = reopen(root)
    leave_unclean(root)
    names = sorted(path.name for path in (root / "commitlog").iterdir())
    ahead = int(names[-1]) + 4096
    (root / "commitlog" / f"{ahead:020d}").write_bytes(bytes(4096))
    (root / "commitlog" / f"{ahead + 4096:020d}").write_bytes(b"")
    newest = max((root / "index").iterdir())
    (root / "index" / str(int(newest.name) + 1)).write_bytes(b"")
    queue = root / "consumequeue" / "T" / "0"
    last = max(queue.iterdir())
    (queue / f"{int(last.name) + 200:020d}").write_bytes(b"")
    found = plan(root)
    assert [Path(path).name for path in found.delete_log_files] == [
        f"{ahead:020d}",
        f"{ahead + 4096:020d}",
    ]
    assert reopen(root) == wanted


def test_an_index_that_is_newer_than_the_log_is_cut(tmp_path: Path) -> None:
    root = tmp_path / "s"
    results = fill(root)
    wanted = reopen(root)
    keep = results[60].physical_offset
    for result in results[60:]:
        tear(root, result)
    leave_unclean(root, checkpoint=Checkpoint())
    assert plan(root).log_end == keep
    again = reopen(root)
    for key, records in wanted.items():
        assert again[key] == [r for r in records if int.from_bytes(r[28:36], "big") < keep]
    with running(small_config(root)) as store:
        for number in range(60, COUNT):
            assert store.query_message("T", f"k{number}", 9, 0, 2**63 - 1) == []


@pytest.mark.parametrize("state", ["missing", "zero", "short", "garbage", "future"])
@pytest.mark.parametrize("is_clean", [True, False])
def test_l06_a_checkpoint_that_says_nothing_loses_nothing(
    root: Path, state: str, is_clean: bool
) -> None:
    wanted = reopen(root)
    path = root / "checkpoint"
    match state:
        case "missing":
            path.unlink()
        case "zero":
            path.write_bytes(bytes(4096))
        case "short":
            path.write_bytes(b"\x01" * 10)
        case "garbage":
            path.write_bytes(b"\xff" * 4096)
        case _:
            path.write_bytes(Checkpoint(logics_physical_offset=10**9).to_bytes())
    if not is_clean:
        leave_unclean(root)
    assert reopen(root) == wanted
    assert read_checkpoint(root).physic_msg_timestamp_ms > 0


def test_l06_rebuild_mends_units_and_entries_that_are_wrong(root: Path) -> None:
    wanted = reopen(root)
    for path in (root / "consumequeue" / "T").rglob("0*"):
        if path.is_file():
            patch(path, 20, b"\xaa" * 20)
    for path in (root / "index").iterdir():
        patch(path, 90, b"\xaa" * 40)
    found = plan(root, full=True)
    assert (found.check_from, found.records, found.dispatch_from) == (0, COUNT, 0)
    store = DefaultMessageStore(small_config(root), ManualClock())
    store.load(rebuild=True)
    store.start()
    store.shutdown()
    assert reopen(root) == wanted


def test_forced_crcs_of_whole_records_end_the_log_at_one_without(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root, enabled_append_prop_crc=True)) as store:
        put_all(store, [plain(number=i) for i in range(9)])
        end = store.commit_log.max_offset
    with running(small_config(root)) as store:
        put_all(store, [plain(number=9)])
    leave_unclean(root, checkpoint=Checkpoint())
    found = plan_recovery(root, small_config(root, force_verify_prop_crc=True))
    assert (found.log_end, found.records) == (end, 9)
    assert "forceVerifyPropCRC" in found.end_detail
    # It was put all the same: a key that was changed cuts nothing off by itself.
    assert (found.behind.first_offset, found.behind.records) == (end, 1)
    assert "forceVerifyPropCRC" in found.needs_consent
    assert plan(root).records == 10
    # An existing one is checked in any case.
    path, _ = log_place(root, 0)
    at = path.read_bytes().index(b"k3")
    patch(path, at, b"k4")
    assert plan(root).records == 3


def test_queues_without_a_log_are_refused(root: Path) -> None:
    leave_unclean(root)
    for path in (root / "commitlog").iterdir():
        path.unlink()
    with pytest.raises(Invalid, match="consume queues but no commit log"):
        DefaultMessageStore(small_config(root)).load()


def test_an_empty_store_that_was_killed_opens(tmp_path: Path) -> None:
    root = tmp_path / "s"
    with running(small_config(root)):
        pass
    leave_unclean(root)
    assert reopen(root) == {}


def test_a_queue_whose_offsets_begin_anew_is_the_later_one(tmp_path: Path) -> None:
    """If the offsets of a queue restart at 0 in the log, the later messages belong to a recreated
    topic. A Java broker leaves the old messages in the log."""
    root = tmp_path / "s"
    with running(small_config(root)) as store:
        put_all(store, [plain(number=i) for i in range(30)] + [plain("U")])
    for path in sorted((root / "consumequeue" / "T" / "0").iterdir()):
        path.unlink()
    with running(small_config(root)) as store:
        put_all(store, [plain(number=100 + i) for i in range(5)])
        wanted = read_everything(store)
    assert len(wanted["T", 0]) == 5
    leave_unclean(root, checkpoint=Checkpoint())
    assert reopen(root) == wanted


@pytest.mark.parametrize("rebuild", [False, True])
def test_queues_in_a_database_are_recovered(tmp_path: Path, rebuild: bool) -> None:
    pytest.importorskip("rocksdict")
    root, kind = tmp_path / "s", {"store_type": "defaultRocksDB"}
    with running(small_config(root, **kind)) as store:
        results = put_all(store, [plain(number=i, body=b"b" * (i % 50)) for i in range(COUNT)])
        wanted = read_everything(store)
    leave_unclean(root, checkpoint=Checkpoint())
    tear(root, results[-1], 20)
    found = plan_recovery(root, small_config(root, **kind), full=rebuild)
    assert (found.records, found.log_end) == (COUNT - 1, results[-1].physical_offset)
    store = DefaultMessageStore(small_config(root, **kind), ManualClock())
    store.load(rebuild=rebuild)
    store.start()
    assert read_everything(store) == {("T", 0): wanted["T", 0][:-1]}
    assert put_all(store, [plain(number=900)])[0].queue_offset == COUNT - 1
    store.shutdown()
    with running(small_config(root, **kind)) as store:
        assert store.get_max_offset_in_queue("T", 0) == COUNT


@pytest.mark.parametrize("number", [0, 2])
def test_l01_a_queue_file_whose_length_was_lost_is_built_again(root: Path, number: int) -> None:
    wanted = reopen(root)
    leave_unclean(root, checkpoint=Checkpoint())
    files = sorted((root / "consumequeue" / "T" / "0").iterdir())
    for path in files[number + 1 :]:
        path.unlink()
    os.truncate(files[number], 80)
    assert reopen(root) == wanted
    # A file of another size is no such file: it ends in zeros.
    leave_unclean(root, checkpoint=Checkpoint())
    for path in files[number + 1 :]:
        path.unlink()
    files[number].write_bytes(bytes(100))
    with pytest.raises(Corrupt, match="expected a file of 200 bytes, found 100"):
        plan(root)


def test_a_deletion_in_front_of_or_behind_the_kept_position_counts_once(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    with running(small_config(whole)) as store:
        results = put_all(store, [plain("TU"[i % 2], 0, i) for i in range(30)])
        store.delete_topics({"T"})
        results += put_all(store, [plain("TU"[i % 2], 0, 100 + i) for i in range(12)])
        store.delete_topics({"U"})
        results += put_all(store, [plain("TU"[i % 2], 0, 200 + i) for i in range(8)])
        wanted = read_everything(store)
    assert [len(records) for key, records in wanted.items() if key[0] in "TU"] == [10, 4]
    for number in range(0, len(results), 3):
        root = copy_store(whole, tmp_path / str(number))
        position = results[number].physical_offset
        leave_unclean(root, checkpoint=Checkpoint(logics_physical_offset=position))
        assert reopen(root) == wanted, number


def test_l11_a_program_that_ends_without_a_shutdown_loses_nothing(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.kit.local_stores import *;"
        "store = DefaultMessageStore(small_config(Path(sys.argv[1])));"
        "store.load(); store.start();"
        "assert all(store.put_message(plain(number=i)).ok for i in range(500));"
        "raise ZeroDivisionError"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "s")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.stderr.rstrip().endswith("ZeroDivisionError")
    assert (tmp_path / "s" / "abort").exists()
    assert len(reopen(tmp_path / "s")["T", 0]) == 500


RECORD_FIELDS = {"size": 3, "magic": 5, "body CRC": 9, "physical offset": 35, "body length": 87}


@pytest.mark.parametrize("field", RECORD_FIELDS)
def test_l06_a_flip_in_a_field_of_a_record_ends_the_log_there(tmp_path: Path, field: str) -> None:
    root = tmp_path / "s"
    results = fill(root, 60)
    leave_unclean(root, checkpoint=Checkpoint())
    flip(root, results[30], RECORD_FIELDS[field])
    found = plan(root)
    assert found.log_end == results[30].physical_offset
    assert found.behind.records == 29
    assert "29 valid messages" in found.needs_consent
