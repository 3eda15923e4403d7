"""Zeros that a power cut leaves at the end of a file are never read as data. A store can always be
started again."""

from __future__ import annotations

import asyncio
import shutil
import struct
import zlib
from collections.abc import Callable
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tieredstore.broker.auth.users import AclManager, UserManager
from tieredstore.broker.delay.schedule import ScheduleOffsets
from tieredstore.broker.delay.timers import TimerProgress
from tieredstore.broker.namesrv.route import KeyValueManager
from tieredstore.broker.receive.events import (
    END,
    Advanced,
    Done,
    Event,
    Opened,
    Tail,
    encode_event,
    make_frame,
    split_frames,
)
from tieredstore.broker.receive.journal import ReceiveJournal
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.backup import FILE_NAME, check_format
from tieredstore.broker.state.config_manager import ConfigManager
from tieredstore.broker.state.groups import SubscriptionGroupManager
from tieredstore.broker.state.offsets import ConsumerOffsetManager
from tieredstore.broker.state.request_modes import RequestModeManager
from tieredstore.broker.state.topics import TopicConfigManager
from tieredstore.clock import ManualClock
from tieredstore.contracts.dispatch_source import DeletedEnd, QueueKey
from tieredstore.contracts.metadata_store import FileSegmentMetadata
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.contracts.tier_identity import WriterKind, WriterMark
from tieredstore.contracts.usage import WrittenBytes
from tieredstore.disk.file_archive import pack_files, unpack_files
from tieredstore.disk.file_operations import FILES
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.offloading.standby import ORDER_FILE, TakeOverOrder
from tieredstore.jobs.restoring.target import RESTORING_FILE, claim_directory
from tieredstore.local.queues.consume_queue import KEPT_FILE, KeptEnds, find_kept_ends, keep_ends
from tieredstore.local.queues.interface import LogSpan
from tieredstore.local.queues.topic_deletions import KEPT_FILE as KEPT_DELETIONS
from tieredstore.local.queues.topic_deletions import KeptDeletions
from tieredstore.local.recovery.checkpoint import (
    CHECKPOINT_FILE,
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from tieredstore.local.statistics import (
    STATISTICS_FILE,
    KeptStatistics,
    StatisticsKeeper,
    TimeDistribution,
    read_statistics,
)
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.posix.own_files import IDENTITY_FILE_NAME, read_identity, record_writer
from tieredstore.tier.deleted.records import QueueEnds
from tieredstore.tier.identity.comparison import STATE_MEMORY, TierMemory, read_memory, write_memory
from tieredstore.tier.index.watermarks import (
    FILE_NAME as WATERMARKS,
)
from tieredstore.tier.index.watermarks import (
    Watermarks,
    load_watermarks,
    save_watermarks,
)
from tieredstore.tier.state_files import (
    ENDS_FILE,
    RECORD_FILE,
    RECORDS_LEFT_FILE,
    WRITTEN_FILE,
    StateLock,
    StateRecord,
    find_clean_ends,
    find_clean_records,
    keep_clean_ends,
    keep_clean_records,
    read_written_bytes,
)
from tieredstore.tier.trace.blocks import (
    GET_DTYPE,
    PUT_DTYPE,
    TraceBlock,
    encode_block,
    find_blocks,
)

EVENTS: list[Event] = [Opened(0, "G", "T", 0, 5), Advanced(0, 7), Done(0, [9])]


@dataclass(frozen=True)
class Form:
    """One kind of file. `make` writes a file into a folder and returns its path. `read` returns the
    state that a start finds. `is_part` checks whether a state is acceptable after a cut. With
    `may_fail`, `read` may raise Corrupt. `smallest` is the smallest length in bytes after a cut."""

    name: str
    make: Callable[[Path], Path]
    read: Callable[[Path], Any]
    is_part: Callable[[Any, Any], bool] = lambda part, whole: False
    may_fail: bool = False
    smallest: int = 0


def manager(make: Callable[[Path], ConfigManager]) -> tuple[Any, Any]:
    def write(folder: Path) -> Path:
        one = make(folder)

        async def run() -> None:
            one.data_version.counter = 41
            one.mark_changed()
            await one.persist()

        asyncio.run(run())
        return one.path

    def read(folder: Path) -> bytes:
        one = make(folder)
        asyncio.run(one.load())
        return one.encode()

    return write, read


MANAGERS: dict[str, Callable[[Path], ConfigManager]] = {
    "consumerOffset": ConsumerOffsetManager,
    "topics": lambda folder: TopicConfigManager(folder, BrokerSettings()),
    "subscriptionGroup": lambda folder: SubscriptionGroupManager(folder, BrokerSettings()),
    "delayOffset": ScheduleOffsets,
    "tieredstoreTimers": TimerProgress,
    "authUsers": UserManager,
    "authAcls": AclManager,
    "kvConfig": KeyValueManager,
    "messageRequestMode": RequestModeManager,
}


def make_receive(folder: Path) -> Path:
    async def run() -> None:
        journal = ReceiveJournal(folder, is_synced=False)
        await journal.rotate(list)
        for event in EVENTS:
            journal.append(event)
        await journal.close()

    asyncio.run(run())
    return next(folder.glob("*.journal"))


def make_receive_snapshot(folder: Path) -> Path:
    async def run() -> None:
        journal = ReceiveJournal(folder, is_synced=False)
        await journal.rotate(lambda: EVENTS)
        await journal.close()

    asyncio.run(run())
    return next(folder.glob("*.snapshot"))


def read_receive(folder: Path) -> list[Event]:
    async def run() -> list[Event]:
        return await ReceiveJournal(folder, is_synced=False).load()

    return asyncio.run(run())


def frame_of_format_1(payload: bytes) -> bytes:
    return struct.pack(">II", len(payload), zlib.crc32(payload)) + payload


def make_format_1(folder: Path) -> tuple[Path, Path]:
    """Write a journal and a snapshot in format 1. Return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    magic, events = b"TSRECV\x00\x01", [encode_event(event) for event in EVENTS]
    journal, snapshot = folder / "0000000001.journal", folder / "0000000001.snapshot"
    journal.write_bytes(magic + b"".join(map(frame_of_format_1, [b"\x00", *events])))
    snapshot.write_bytes(magic + b"".join(map(frame_of_format_1, [*events[:1], b""])))
    return journal, snapshot


def is_prefix(part: Any, whole: Any) -> bool:
    return list(part) == list(whole)[: len(part)]


def make_record(folder: Path) -> Path:
    lock = StateLock(folder)
    lock.acquire()
    StateRecord(folder, lock).save(["a claim", "another"])
    lock.release()
    return folder / RECORD_FILE


def read_record(folder: Path) -> list[str]:
    lock = StateLock(folder)
    lock.acquire()
    try:
        return list(StateRecord(folder, lock).load())
    finally:
        lock.release()


def metadata_store(folder: Path) -> DefaultMetadataStore:
    return DefaultMetadataStore(folder / "tieredStoreMetadata.json", "b", ManualClock())


def segment(size: int) -> FileSegmentMetadata:
    return FileSegmentMetadata("b/T/0", FileSegmentType.COMMIT_LOG, 0, size=size)


def make_metadata(folder: Path) -> Path:
    store = metadata_store(folder)
    store.load()
    for _ in range(2):
        store.put_segment(segment(0))
        store.flush()
        store.add_topic("T")
        store.flush()
    store.close()
    (folder / "tieredStoreMetadata.json.journal").unlink(missing_ok=True)
    return folder / "tieredStoreMetadata.json"


def make_metadata_journal(folder: Path) -> Path:
    make_metadata(folder)
    store = metadata_store(folder)
    store.load()
    store.add_topic("U")  # begins a journal
    for size in (5, 6, 7):
        store.put_segment(segment(size))
    return folder / "tieredStoreMetadata.json.journal"


def read_metadata(folder: Path) -> int:
    store = metadata_store(folder)
    store.load()
    found = store.segment(segment(0).id)
    return -1 if found is None else found.size


def statistics() -> KeptStatistics:
    times = TimeDistribution()
    return KeptStatistics(
        written_ms=1,
        since_ms=1,
        time_bounds_ms=(1,),
        put_times=times,
        put_lock_times=times,
        puts_refused={},
        slow_puts=0,
        flush_behind_bytes=0,
        dispatch_behind_bytes=0,
        index_behind_bytes=0,
        dispatch_behind_ms=0,
    )


def make_job_journal(folder: Path) -> Path:
    with Journal(folder / "job.jsonl", {"job": "export"}) as journal:
        for step in ("a", "b", "c"):
            journal.record(step, [step])
    return folder / "job.jsonl"


def read_job_journal(folder: Path) -> list[str]:
    with Journal(folder / "job.jsonl", {"job": "export"}) as journal:
        return list(journal)


def make_trace(folder: Path) -> Path:
    puts, gets = np.zeros(2, PUT_DTYPE), np.zeros(1, GET_DTYPE)
    block = TraceBlock(1, 2, 0, [QueueKey("T", 0)], ["G"], puts, gets)
    path = folder / "00000000000000000001.trace"
    path.write_bytes(encode_block(block) * 3)
    return path


def make_deletions(folder: Path) -> Path:
    (folder / "config").mkdir()
    (folder / "config" / "tieredStoreMetadata.json").touch()  # there is a tier
    KeptDeletions(folder).keep({QueueKey("T", 0): DeletedEnd(5, 6, 7)})
    return folder / KEPT_DELETIONS


def make_archive(folder: Path) -> Path:
    path = folder / "backup.tar.gz"
    FILES.replace_file(path, pack_files({"topics.json": b"{}"}, 1, taken_ms=1)[1])
    return path


def make_restoring(folder: Path) -> Path:
    class Cut(Exception):
        pass

    with pytest.raises(Cut), claim_directory(folder, {"tier": "file:///tier"}):
        raise Cut
    return folder / RESTORING_FILE


def read_restoring(folder: Path) -> str:
    with claim_directory(folder, {"tier": "file:///tier"}):
        return "claimed"


def make_order(folder: Path) -> Path:
    TakeOverOrder(folder).note_done(123)
    return folder / ORDER_FILE


def made(path: str, write: Callable[[Path], object]) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        write(folder)
        return folder / path

    return make


def is_none_or(part: Any, whole: Any) -> bool:
    return not part


FORMS = [
    Form("receive journal", make_receive, read_receive, is_part=is_prefix),
    Form("receive snapshot", make_receive_snapshot, read_receive, is_part=is_none_or),
    Form(
        "receive journal 1",
        lambda folder: make_format_1(folder)[0],
        read_receive,
        is_part=is_prefix,
    ),
    Form(
        "receive snapshot 1",
        lambda folder: make_format_1(folder)[1],
        read_receive,
        is_part=is_none_or,
    ),
    *(Form(name, *manager(make)) for name, make in MANAGERS.items()),
    Form("format", made(FILE_NAME, check_format), check_format),
    Form(
        "metadata",
        make_metadata,
        read_metadata,
    ),
    Form(
        "metadata journal",
        make_metadata_journal,
        read_metadata,
        is_part=lambda part, whole: 0 <= part <= whole,
    ),
    Form("epochs", make_record, read_record, is_part=is_none_or),
    Form(
        "ends",
        made(ENDS_FILE, lambda folder: keep_clean_ends(folder, 4, {"b/T/0": QueueEnds(3, 2)})),
        lambda folder: dict(find_clean_ends(folder, 5)),
        is_part=is_none_or,
    ),
    Form(
        "written bytes",
        made(
            WRITTEN_FILE,
            lambda folder: FILES.replace_file(
                folder / WRITTEN_FILE, msgspec.json.encode(WrittenBytes(1, 2, 3))
            ),
        ),
        read_written_bytes,
        may_fail=True,  # `WrittenKeeper` starts its count again
    ),
    Form(
        "statistics",
        made(STATISTICS_FILE, lambda folder: StatisticsKeeper(folder, lambda: statistics()).keep()),
        read_statistics,
        may_fail=True,  # figures for people: the owner writes them again in seconds
    ),
    Form(
        "ends of queues",
        made(KEPT_FILE, lambda folder: keep_ends(folder, KeptEnds(LogSpan(0, 9), 20, {}, []))),
        find_kept_ends,
        is_part=is_none_or,
    ),
    Form(
        "watermarks",
        made(WATERMARKS, lambda folder: save_watermarks(folder, Watermarks({(1, 2): 30}, {}))),
        load_watermarks,
        may_fail=True,  # the index reads its files instead
    ),
    Form(
        "checkpoint",
        made(
            CHECKPOINT_FILE, lambda folder: write_checkpoint(folder, Checkpoint(1, 1, 1, 1, 1, 1))
        ),
        lambda folder: astuple(read_checkpoint(folder)),
        is_part=lambda part, whole: all(
            one <= other for one, other in zip(part, whole, strict=True)
        ),
        may_fail=True,
    ),
    Form(
        "memory of a tier",
        made(
            STATE_MEMORY,
            lambda folder: write_memory(folder / STATE_MEMORY, TierMemory(broker="b", number=3)),
        ),
        lambda folder: read_memory(folder / STATE_MEMORY),
        is_part=is_none_or,
    ),
    Form(
        "identity of a tier in files",
        made(
            IDENTITY_FILE_NAME,
            lambda folder: record_writer(
                str(folder), 4, WriterMark("identity", "token", WriterKind.JOB)
            ),
        ),
        lambda folder: read_identity(str(folder)),
        may_fail=True,  # its message names the remedy
    ),
    Form(
        "deletions that a tier has recorded",
        made(RECORDS_LEFT_FILE, lambda folder: keep_clean_records(folder, 4, {})),
        lambda folder: find_clean_records(folder, 5),
        is_part=is_none_or,
    ),
    Form(
        "deletions that a tier has not recorded",
        make_deletions,
        lambda folder: KeptDeletions(folder).find_all(),
    ),
    Form("journal of a job", make_job_journal, read_job_journal, is_part=is_prefix),
    Form(
        "trace",
        make_trace,
        lambda folder: len(find_blocks((folder / "00000000000000000001.trace").read_bytes())[0]),
        is_part=lambda part, whole: 0 <= part <= whole,
    ),
    Form(
        "backup",
        make_archive,
        lambda folder: unpack_files((folder / "backup.tar.gz").read_bytes(), 1, "backup"),
        may_fail=True,
    ),
    Form("restore that was cut off", make_restoring, read_restoring),
    Form(
        "order to take over",
        make_order,
        lambda folder: TakeOverOrder(folder).is_done,
        may_fail=True,
        smallest=1,  # an empty file is an order, and never was a note
    ),
]


def spread(whole: bytes) -> list[int]:
    """Return the positions at which to cut: all positions of a small file, or a sample of a large
    one."""
    step = max(1, len(whole) // 25)
    return sorted({*range(0, len(whole), step), *range(max(0, len(whole) - 12), len(whole))})


def check(form: Form, folder: Path, original: Path, path: Path, data: bytes, expected: Any) -> None:
    shutil.rmtree(folder)
    shutil.copytree(original, folder)
    path.write_bytes(data)
    try:
        found = form.read(folder)
    except Corrupt:
        if form.may_fail:
            return
        raise
    assert found == expected or form.is_part(found, expected), (len(data), found)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_l32_zeros_at_the_end_of_a_file_are_a_torn_tail(form: Form, tmp_path: Path) -> None:
    original, folder = tmp_path / "original", tmp_path / "folder"
    original.mkdir()
    name = form.make(original).relative_to(original)
    whole = (original / name).read_bytes()
    path = folder / name
    shutil.copytree(original, folder)
    expected = form.read(folder)
    for zeros in (1, 8, 9, 64, 4096):  # behind all that was written
        check(form, folder, original, path, whole + bytes(zeros), expected)
    for end in spread(whole)[form.smallest :]:  # in place of its end
        for size in (end, len(whole), len(whole) + 100):
            check(form, folder, original, path, whole[:end] + bytes(size - end), expected)


def test_l32_no_start_is_refused_by_zeros_in_the_first_version_of_a_file(tmp_path: Path) -> None:
    """A start succeeds if the first version of a file in `config/` consists of zeros. It reads the
    `.bak` file instead."""
    for name, make in MANAGERS.items():
        write, read = manager(make)
        path = write(tmp_path / name)
        expected = read(tmp_path / name)
        path.write_bytes(bytes(path.stat().st_size))
        assert read(tmp_path / name) == expected


def test_l32_a_file_of_config_without_a_good_copy_names_the_way_on(tmp_path: Path) -> None:
    write, read = manager(ConsumerOffsetManager)
    path = write(tmp_path)
    path.write_bytes(path.read_bytes()[:40] + bytes(60))
    path.with_name(path.name + ".bak").unlink()
    with pytest.raises(Corrupt, match=r"found zeros from 40 on\. .*tieredstore config restore"):
        read(tmp_path)


def test_l32_a_format_file_of_an_older_release_that_is_torn_is_of_version_1(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(b'{"ver' + bytes(8))
    check_format(tmp_path)
    assert (tmp_path / FILE_NAME).read_bytes() == b'{"version":1}'


def test_l32_a_format_file_whose_copy_is_newer_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_bytes(bytes(12))
    (tmp_path / f"{FILE_NAME}.bak").write_bytes(b'{"version":9}')
    with pytest.raises(Invalid, match="found 9"):
        check_format(tmp_path)


@pytest.mark.parametrize("zeros", [1, 8, 16, 4096])
def test_l32_a_good_frame_behind_zeros_is_damage(zeros: int, tmp_path: Path) -> None:
    path = make_receive(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole + bytes(zeros) + make_frame(encode_event(EVENTS[1])))
    assert split_frames(path.read_bytes(), is_snapshot=False).tail is Tail.DAMAGED
    assert read_receive(tmp_path) == EVENTS
    assert path.with_name(f"{path.name}.damaged").exists()


def test_l32_zeros_are_no_frame() -> None:
    assert make_frame(END)[4:] != bytes(4)
    for size in range(8, 40):
        for head in (b"TSRECV\x00\x01", b"TSRECV\x00\x02"):
            found = split_frames(head + bytes(size), is_snapshot=False)
            assert (found.payloads, found.tail) == ([], Tail.ZEROS)
        found = split_frames(b"TSRECV\x00\x02" + bytes(size), is_snapshot=True)
        assert found.tail is Tail.ZEROS
    # What release 1 wrote at the end of a snapshot is one.
    assert not split_frames(b"TSRECV\x00\x01" + bytes(8), is_snapshot=True).fault


def test_l32_files_of_format_1_are_read(tmp_path: Path) -> None:
    make_format_1(tmp_path)
    assert read_receive(tmp_path) == [EVENTS[0], *EVENTS]


def test_every_kind_of_file_of_config_is_tested_here() -> None:
    folder = Path("config")
    assert {type(make(folder)) for make in MANAGERS.values()} == set(ConfigManager.__subclasses__())
