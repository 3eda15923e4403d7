"""`offload` turns the store of a real broker into a new tier, and refuses unsuitable stores."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.kit.command_line import files_of, one_line, tieredstore
from tests.kit.followed import fill, options, put, tiered_bodies
from tests.kit.offloaded import stored_messages
from tieredstore.clock import ManualClock
from tieredstore.errors import Corrupt, Invalid
from tieredstore.jobs.offloading.job import offload_store, plan_offload
from tieredstore.jobs.run import JobProgress
from tieredstore.jobs.stopping import StopSignal
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.state_files import LOCK_FILE

NAMES = ["--broker", "labBroker", "--cluster", "LabCluster"]


@pytest.fixture(scope="module")
def offloaded(public_a: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tier of this project, made by an offload of the store in the public-a fixture."""
    root = tmp_path_factory.mktemp("offloaded")
    ran = tieredstore(
        *("offload", public_a / "store", "--tier", f"file://{root / 'tier'}"),
        *("--state", root / "state", "--config", public_a / "broker.conf", "--output", "json"),
        "--upload-index",
    )
    assert ran.code == 0, ran.err
    (root / "report.json").write_text(ran.out)
    return root


def test_all_messages_of_the_store_are_in_the_tier(
    offloaded: Path, public_a_manifest: dict[str, Any]
) -> None:
    report = json.loads((offloaded / "report.json").read_bytes())
    assert (report["queues"], report["messages"]) == (15, 2103)
    assert report["failed"] == report["holes"] == []
    assert "SCHEDULE_TOPIC_XXXX" in report["skipped_topics"]
    right = {
        (row["topic"], row["queueId"], row["queueOffset"]): row["bodySHA256"]
        for row in public_a_manifest["messages"]
        if row["topic"].startswith("pub_")
    }
    where = ["--tier", f"file://{offloaded / 'tier'}"]
    found: dict[tuple[str, int, int], str] = {}
    for topic in sorted({topic for topic, _, _ in right}):
        ran = tieredstore("cat", *where, "--topic", topic, "--body", "sha256", "--output", "ndjson")
        for row in ran.rows:
            found[topic, row["queue_id"], row["queue_offset"]] = row["body"]
    assert found == right


@pytest.mark.parametrize("with_state", [False, True])
def test_our_tier_verifies_without_a_note(offloaded: Path, with_state: bool) -> None:
    state = ["--state", str(offloaded / "state")] if with_state else []
    ran = tieredstore(
        "verify", "--tier", f"file://{offloaded / 'tier'}", *state, "--output", "json"
    )
    assert (ran.code, ran.record["findings"]) == (0, [])
    assert ran.record["messages"] == 2103
    assert ran.record["index_items"] > 6000


def segments_of(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return all files of a tier, except writer epochs and the backups of each run."""
    found = files_of(root / "tier")
    return {
        name: file
        for name, file in found.items()
        if not name.endswith((".writer", ".tier")) and "/.backups/" not in name
    }


def test_a_second_run_copies_nothing_and_changes_no_segment(
    offloaded: Path, public_a: Path
) -> None:
    before = segments_of(offloaded)
    ran = tieredstore(
        *("offload", public_a / "store", "--tier", f"file://{offloaded / 'tier'}"),
        *("--state", offloaded / "state", "--config", public_a / "broker.conf"),
        *("--output", "json"),
    )
    assert ran.code == 0
    assert (ran.record["messages"], ran.record["segments"]) == (0, 0)
    assert segments_of(offloaded) == before


def test_dry_run_foretells_the_run_and_writes_nothing(
    public_a: Path, offloaded: Path, tmp_path: Path
) -> None:
    ran = tieredstore(
        *("offload", public_a / "store", "--tier", f"file://{tmp_path / 'tier'}"),
        *("--state", tmp_path / "state", "--config", public_a / "broker.conf"),
        *("--dry-run", "--output", "json"),
    )
    assert ran.code == 0, ran.err
    report = json.loads((offloaded / "report.json").read_bytes())
    assert ran.record["messages"] == report["messages"]
    assert ran.record["message_bytes"] == report["message_bytes"]
    index = len(list((offloaded / "tier").rglob("INDEX/[!.]*")))
    assert ran.record["segments"] == report["segments"] - index
    assert list(tmp_path.iterdir()) == []
    left = tieredstore(
        *("offload", public_a / "store", "--tier", f"file://{offloaded / 'tier'}"),
        *("--state", offloaded / "state", "--config", public_a / "broker.conf"),
        *("--dry-run", "--output", "json"),
    )
    assert (left.record["messages"], left.record["segments"]) == (0, 0)


def test_the_store_is_never_written(small: Path) -> None:
    before = files_of(small)
    for path in small.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    report = offload_store(options(small))
    assert (report.messages, report.failed) == (19, [])
    assert files_of(small) == before
    for path in small.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


def test_topics_are_chosen_by_patterns(small: Path) -> None:
    report = offload_store(options(small, topics=["Topic*", "BatchT"]))
    assert report.queues == 2
    rest = offload_store(options(small))
    assert report.messages + rest.messages == 19
    with pytest.raises(Exception, match="did you mean TopicTest"):
        offload_store(options(small, topics=["TopicTast"]))


@pytest.mark.parametrize("how", ["offload", "plan"])
def test_a_pattern_that_no_topic_matches_is_refused_before_a_folder_is_made(
    small: Path, how: str
) -> None:
    before = files_of(small)
    wanted = options(small, topics=["typo_*"])
    with pytest.raises(Invalid, match="the store has no topic 'typo_\\*'"):
        (offload_store if how == "offload" else plan_offload)(wanted)
    assert not Path(wanted.state).exists()
    assert files_of(small) == before


def test_topics_that_no_tier_can_hold_are_named(small: Path) -> None:
    assert offload_store(options(small)).skipped["BT"] == "batch consume queue (BatchCQ)"
    chosen = offload_store(options(small, topics=["BT"]))
    assert (chosen.queues, list(chosen.skipped)) == (0, ["BT"])
    assert "BT" not in offload_store(options(small, topics=["Topic*"])).skipped


def test_progress_ends_at_its_total(small: Path) -> None:
    seen: list[JobProgress] = []
    offload_store(options(small, workers=2), seen.append)
    assert seen[0].done == 0
    assert (seen[-1].done, seen[-1].total) == (19, 19)
    assert [step.done for step in seen] == sorted(step.done for step in seen)


def test_nothing_ever_expires(small: Path) -> None:
    offload_store(options(small))
    clock = ManualClock(4_000_000_000_000)  # a century later
    report = offload_store(options(small), clock=clock)
    assert report.segments == 0
    assert tieredstore("verify", "--tier", f"file://{small.parent / 'tier'}").code == 0


def refused(store: Path, *arguments: object, names: list[str] = NAMES) -> str:
    return one_line(tieredstore("offload", store, *arguments, *names))


def test_h01_what_does_not_fit_together_is_refused_with_one_line(
    public_a: Path, offloaded: Path, small: Path, tmp_path: Path
) -> None:
    store = public_a / "store"
    tier = ["--tier", f"file://{tmp_path / 'tier'}"]
    state = ["--state", tmp_path / "new-state"]
    assert "--broker" in refused(store, *tier, *state, names=[])
    assert "--cluster" in refused(store, *tier, *state, names=["--broker", "labBroker"])
    assert "is in the store" in refused(store, *tier, "--state", store)
    assert "is in the store" in refused(store, *tier, "--state", store / "deep" / "inside")
    assert "is in the store" in refused(store, "--tier", f"file://{store}/tier", *state)
    assert "no such directory" in refused(tmp_path / "nowhere", *tier, *state)
    a_file = next(store.glob("checkpoint"))
    assert f"store {a_file}: not a directory" in refused(a_file, *tier, *state)
    assert "no commitlog" in refused(tmp_path, *tier, *state)
    assert "no commitlog" in refused(tmp_path, *tier, *state, names=[])
    assert "memory" in refused(store, "--tier", "memory:", *state)
    assert "s3" in refused(store, "--tier", "s3://bucket/x", *state)
    assert "no such configuration" in refused(store, *tier, *state, "--config", tmp_path / "x")
    # A tier that holds what the state does not know, and a state that knows what the tier lacks.
    known = f"file://{offloaded / 'tier'}"
    assert "does not know" in refused(store, "--tier", known, *state)
    lost = refused(store, *tier, "--state", offloaded / "state")
    assert "tier empty" in lost
    assert f", state {offloaded / 'state'}: " in lost
    assert "move the state directory away" in lost
    assert {path.name for path in (tmp_path / "new-state").iterdir()} <= {LOCK_FILE, "config"}
    # The listed problems are noted. No segment is known.
    found = {path.name for path in (tmp_path / "new-state").glob("config/*")}
    assert found <= {"tieredstoreTier.json"}


def test_a_symbolic_link_into_the_store_is_found(small: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(small)
    tier = ["--tier", f"file://{tmp_path / 'tier'}"]
    assert "is in the store" in refused(small, *tier, "--state", link / "state")


def test_w01_a_tier_with_a_living_writer_is_left_alone(small: Path, tmp_path: Path) -> None:
    (tmp_path / "tier").mkdir()
    provider = PosixProvider(tmp_path / "tier", "c")
    epoch = provider.acquire_writer("b")
    ran = tieredstore(
        *("offload", small, "--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "state"),
        *("--broker", "b", "--cluster", "c"),
    )
    assert ran.code == 5
    one_line(ran)
    epoch.release()
    assert offload_store(options(small)).messages == 19


def test_a_store_that_is_not_the_one_in_the_tier_stops_with_the_offset(
    small: Path, golden: Path
) -> None:
    offload_store(options(small, topics=["TopicTest"]))
    log = small / "commitlog" / "00000000000000004096"
    data = bytearray(log.read_bytes())
    at = data.rindex(b"TopicTest")
    data[at - 3] ^= 1  # in the body of the last message
    log.write_bytes(data)
    report = offload_store(options(small))
    assert [key.topic for key, _ in report.failed] == ["TopicTest"]
    error = report.failed[0][1]
    assert isinstance(error, Corrupt)
    assert error.offset is not None
    assert str(error.offset) in str(error)
    assert report.messages > 0  # the other queues


@pytest.mark.parametrize("is_flushed", [True, False])
@pytest.mark.parametrize("dry_run", [["--dry-run"], []])
def test_of_a_store_left_by_a_crash_it_says_what_is_not_taken(
    small: Path, is_flushed: bool, dry_run: list[str]
) -> None:
    (small / "abort").write_text("1")
    if not is_flushed:
        (small / "checkpoint").write_bytes(bytes(4096))
    where = ("--tier", f"file://{small.parent / 'tier'}", "--state", small.parent / "state")
    ran = tieredstore("offload", small, *where, *NAMES, *dry_run, "--quiet", "--output", "json")
    assert ran.code == 0
    assert (ran.record["messages"] > 0) == is_flushed
    if not dry_run:
        behind = ran.record["behind"]
        assert behind["messages"] == behind["held_back_messages"] == 19 - ran.record["messages"]
        assert ("which stays" in behind["reason"]) == (behind["messages"] > 0)
    [line] = ran.err.splitlines()
    assert line.startswith(f"tieredstore: warning: store {small}: was not stopped cleanly")
    assert ("of no message" not in line) == is_flushed
    assert "start and stop its broker" in line


def test_of_a_running_store_only_what_is_flushed_is_taken(
    growing: DefaultMessageStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(growing, 0, 10)
    with caplog.at_level(logging.WARNING):
        report = offload_store(options(tmp_path / "store"))
    assert "is in use by another process" in caplog.text
    assert report.messages <= 10
    assert report.failed == []
    put(growing, 10, 5)
    growing.shutdown()
    rest = offload_store(options(tmp_path / "store"))
    assert report.messages + rest.messages == 15
    ran = tieredstore("verify", "--tier", f"file://{tmp_path / 'tier'}", "--output", "json")
    assert (ran.code, ran.record["messages"], ran.record["findings"]) == (0, 15, [])


def test_l06_a_damaged_message_is_left_out_and_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, *(Message("A", b"body %d" % number) for number in range(6)))
    log = min((store / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    [at] = [m.physical_offset for m in stored_messages(store, {"A"}) if m.queue_offset == 2]
    data[at + 4 : at + 8] = bytes(4)  # its magic
    log.write_bytes(data)
    assert plan_offload(options(store)).messages == 6  # a dry run does not look at all of them
    ran = tieredstore(
        *("offload", store, "--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "state"),
        *("--broker", "b", "--cluster", "c", "--output", "json"),
    )
    assert ran.code == 1
    report = json.loads(ran.out)
    assert report["messages"] == 5
    [damaged] = report["damaged"]
    assert (damaged["topic"], damaged["from_offset"], damaged["until_offset"]) == ("A", 2, 3)
    assert "queue offset 2" in ran.err
    assert tiered_bodies(tmp_path, "A") == [f"body {number}" for number in (0, 1, 3, 4, 5)]
    again = offload_store(options(store))
    assert (again.messages, again.failed, again.damaged) == (0, [], [])


def test_l06_a_message_with_a_damaged_body_is_copied_counted_and_named(tmp_path: Path) -> None:
    store = tmp_path / "store"
    fill(store, *(Message("A", b"body %d" % number) for number in range(6)))
    log = min((store / "commitlog").iterdir())
    data = log.read_bytes()
    for number in (2, 5):
        data = data.replace(b"body %d" % number, b"bodi %d" % number)
    log.write_bytes(data)
    ran = tieredstore(
        *("offload", store, "--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "state"),
        *("--broker", "b", "--cluster", "c", "--output", "json"),
    )
    report = json.loads(ran.out)
    assert (ran.code, report["messages"], report["damaged"]) == (1, 6, [])
    wrong = [{"topic": "A", "queue_id": 0, "messages": 2, "first_offset": 2}]
    assert report["wrong_bodies"] == wrong
    assert "A/0: the bodies of 2 messages do not match their CRCs in the store" in ran.err
    verified = tieredstore("verify", "--tier", f"file://{tmp_path / 'tier'}", "--output", "json")
    assert [row["kind"] for row in verified.record["findings"]] == ["record-body-crc"] * 2
    again = offload_store(options(store))
    assert (again.messages, again.wrong_bodies) == (0, {})


def test_a_run_that_is_stopped_says_so_and_goes_on_later(small: Path) -> None:
    stop = StopSignal()
    stop.set()
    report = offload_store(options(small), stop=stop)
    assert (report.stopped, report.messages) == (True, 0)
    assert offload_store(options(small)).messages == 19


def _tiered_queue(store: Path) -> Path:
    """Return the local folder of a queue whose topic is uploaded to the tier."""
    found = (store / "consumequeue").glob("*/*")
    return min(path for path in found if path.parent.name[0] not in "%S")


def test_a_topic_that_no_tier_can_name_is_left_out_and_stops_no_other(small: Path) -> None:
    shutil.copytree(_tiered_queue(small).parent, small / "consumequeue" / ".hidden")
    report = offload_store(options(small))
    assert report.skipped[".hidden"] == "a name that no tier can hold"
    assert report.messages == 19


def test_a_cut_local_queue_is_made_from_the_log(small: Path) -> None:
    whole = offload_store(options(small, topics=["*"])).messages
    shutil.rmtree(small.parent / "tier")
    shutil.rmtree(small.parent / "state")
    queue = _tiered_queue(small)
    first = min(queue.iterdir())
    first.write_bytes(first.read_bytes()[:-7])
    report = offload_store(options(small))
    assert report.failed == []
    assert report.messages == whole
    assert [(one.key.topic, one.key.queue_id) for one in report.built] == [
        (queue.parent.name, int(queue.name))
    ]
