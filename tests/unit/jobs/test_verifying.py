"""`verify` gives the same report for every runner and every division into tasks, even after
kills."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from tests.kit.tier_builder import BROKER, BuiltTier, TierBuilder, flip, message, small_tier
from tieredstore.contracts.segment import FileSegmentType, SegmentId
from tieredstore.errors import Invalid, Unavailable
from tieredstore.jobs.journal import Journal
from tieredstore.jobs.options import VerifyOptions
from tieredstore.jobs.run import JobRun
from tieredstore.jobs.runner import LocalRunner, Runner
from tieredstore.jobs.verifying import run_verify
from tieredstore.scan.findings import Finding
from tieredstore.scan.location import TierLocation, locate
from tieredstore.scan.verify import outcome as verify_outcome

TASK_BYTES = 600
VARYING = ("runner", "started_ms", "seconds", "stages")


class Killed(BaseException):
    pass


@pytest.fixture
def damaged(tmp_path: Path) -> BuiltTier:
    """A tier with several kinds of damage, and with unnamed bytes."""
    tier = small_tier(tmp_path / "t")
    paths = {
        kind: sorted((tier.root / "tier").rglob(f"{kind.name}/[!.]*"), key=str)
        for kind in FileSegmentType
    }
    for path in paths[FileSegmentType.COMMIT_LOG][:3]:
        flip(path, 8)
        flip(path, 300)
    with paths[FileSegmentType.COMMIT_LOG][-1].open("ab") as file:
        file.write(b"garbage")
    flip(paths[FileSegmentType.CONSUME_QUEUE][0], 21)
    paths[FileSegmentType.CONSUME_QUEUE][2].unlink()
    flip(paths[FileSegmentType.INDEX][0], 23)
    return tier


def source_of(tier: BuiltTier) -> TierLocation:
    return locate(tier.url, state=tier.state)


def report_of(
    source: TierLocation,
    runner: Runner | None = None,
    journal: Journal | None = None,
    task_bytes: int = TASK_BYTES,
    **options: Any,
) -> dict[str, Any]:
    with journal or Journal(None, {}) as kept:
        run = JobRun("verify", runner or LocalRunner(), kept)
        return run_verify(run, source, VerifyOptions(**options), task_bytes=task_bytes)


def same(report: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a report that do not depend on the location and time of the run."""
    return {name: value for name, value in report.items() if name not in VARYING}


def test_two_processes_say_what_one_says_and_what_one_task_says(damaged: BuiltTier) -> None:
    source = source_of(damaged)
    told: list[Finding] = []
    alone = report_of(source, on_finding=told.append)
    assert [one.row() for one in told] == alone["findings"]
    assert len(told) == sum(alone["kinds"].values()) == alone["damage"] + alone["notes"]
    assert {"record-body-crc", "index-header", "bytes-unnamed"} <= set(alone["kinds"])
    stages = {one["stage"]: one["tasks"] for one in alone["stages"]}
    assert stages["messages"] > 5
    assert stages["unnamed bytes"] > 1
    one_task = report_of(source, task_bytes=1 << 30)
    assert {one["stage"]: one["tasks"] for one in one_task["stages"]}["messages"] == 1
    assert same(one_task) == same(alone)
    two = report_of(source, LocalRunner(2))
    assert two["runner"] == "local[2]"
    assert same(two) == same(alone)


@pytest.mark.parametrize("is_noted", [False, True])
def test_a_run_after_a_kill_at_each_step_says_the_same(
    damaged: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_noted: bool
) -> None:
    source = source_of(damaged)
    right = same(report_of(source))
    really_record = Journal.record
    steps = 0
    while True:
        path = tmp_path / f"journal{steps}"
        left = steps

        def record(self: Journal, step: str, outcome: object) -> None:
            nonlocal left
            if left == 0 and not is_noted:
                raise Killed
            really_record(self, step, outcome)
            left -= 1
            if left < 0:
                raise Killed

        monkeypatch.setattr(Journal, "record", record)
        try:
            report_of(source, journal=Journal(path, {"job": "verify"}))
        except Killed:
            pass
        else:
            break
        monkeypatch.setattr(Journal, "record", really_record)
        journal = Journal(path, {"job": "verify"})
        done_before = journal.steps
        assert done_before == steps + is_noted
        assert same(report_of(source, journal=journal)) == right
        steps += 3  # all steps would take long
    assert steps > 12


def test_a_segment_that_expires_meanwhile_is_a_note(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = small_tier(tmp_path)
    ids = [
        SegmentId(f"{BROKER}/orders/0", FileSegmentType.CONSUME_QUEUE, 100 * 20),
        SegmentId(f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, 0),
    ]
    really_record = Journal.record

    def record(self: Journal, step: str, outcome: object) -> None:
        really_record(self, step, outcome)
        if step == "pin":
            for one in ids:
                tier.path(one).unlink()
                tier.metadata.delete_segment(one)
            tier.metadata.flush()

    monkeypatch.setattr(Journal, "record", record)
    report = report_of(source_of(tier))
    assert report["damage"] == 0, report["findings"]
    expired = [one for one in report["findings"] if one["kind"] == "segment-expired"]
    assert {(one["type"], one["base_offset"]) for one in expired} == {
        ("CONSUME_QUEUE", 2000),
        ("COMMIT_LOG", 0),
    }


def test_a_queue_that_expires_whole_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue that expires completely during a verification is not reported as damage."""
    tier = small_tier(tmp_path)
    really_record = Journal.record

    def record(self: Journal, step: str, outcome: object) -> None:
        really_record(self, step, outcome)
        if step == "pin":
            for entry in list(tier.metadata.segments(f"{BROKER}/orders/0")):
                tier.path(entry.id).unlink()
                tier.metadata.delete_segment(entry.id)
            tier.metadata.flush()

    monkeypatch.setattr(Journal, "record", record)
    report = report_of(source_of(tier))
    assert report["damage"] == 0, report["findings"]
    assert report["index_items"] > 0
    assert {"segment-expired", "index-item-dangling"} <= report["kinds"].keys()


def test_a_segment_that_vanishes_and_should_be_there_is_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tier = small_tier(tmp_path)
    lost = SegmentId(f"{BROKER}/orders/0", FileSegmentType.COMMIT_LOG, 0)
    really_record = Journal.record

    def record(self: Journal, step: str, outcome: object) -> None:
        really_record(self, step, outcome)
        if step == "pin":
            tier.path(lost).unlink()

    monkeypatch.setattr(Journal, "record", record)
    kinds = {one["kind"] for one in report_of(source_of(tier))["findings"]}
    assert "record-missing" in kinds
    assert "segment-expired" not in kinds


def verify_while_segments_vanish(
    tier: BuiltTier, monkeypatch: pytest.MonkeyPatch, *patterns: str
) -> dict[str, set[str]]:
    """Verify without metadata while matching files disappear after the listing. Return the files
    with findings, by kind of finding."""
    really_record = Journal.record

    def record(self: Journal, step: str, outcome: object) -> None:
        really_record(self, step, outcome)
        if step == "pin":
            for pattern in patterns:
                for path in (tier.root / "tier").glob(f"*/*/{pattern}"):
                    path.unlink()

    monkeypatch.setattr(Journal, "record", record)
    kinds: dict[str, set[str]] = {}
    for one in report_of(locate(tier.url))["findings"]:
        kinds.setdefault(one["kind"], set()).add(one["type"])
    return kinds


def test_j42_a_queue_that_expires_whole_is_no_damage_without_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kinds = verify_while_segments_vanish(small_tier(tmp_path), monkeypatch, "orders/0/*/[!.]*")
    assert kinds.pop("segment-expired") == {"COMMIT_LOG", "CONSUME_QUEUE"}
    assert set(kinds) <= {"index-item-dangling", "index-dangling"}


def test_j42_a_queue_whose_units_have_expired_is_no_damage_without_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without metadata, a queue is not reported as damaged if its units have expired but its commit
    log is still being deleted."""
    tier = small_tier(tmp_path)
    kinds = verify_while_segments_vanish(tier, monkeypatch, "orders/0/CONSUME_QUEUE/[!.]*")
    assert kinds["segment-expired"] == {"CONSUME_QUEUE"}


@pytest.mark.parametrize("which", [1, -1, None])
def test_segments_that_vanish_behind_others_are_damage_without_metadata(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: int | None
) -> None:
    """Without metadata, a segment missing after an existing one is reported as damage. `which` is
    the missing commit log segment, or None for all of them."""
    tier = small_tier(tmp_path)
    folder = next((tier.root / "tier").glob("*/*/orders/0/COMMIT_LOG"))
    names = sorted((path.name for path in folder.glob("[!.]*")), key=lambda name: name[-20:])
    assert len(names) > 2
    name = "[!.]*" if which is None else names[which]
    kinds = verify_while_segments_vanish(tier, monkeypatch, f"orders/0/COMMIT_LOG/{name}")
    assert "record-missing" in kinds
    assert "segment-expired" not in kinds


def test_a_segment_that_the_system_does_not_let_one_read_is_unavailable(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    segment = SegmentId(f"{BROKER}/orders/1", FileSegmentType.COMMIT_LOG, 0)
    path = tier.path(segment)
    source = source_of(tier)
    path.unlink()
    path.symlink_to(path.name)  # a loop: not even root can open it
    with pytest.raises(Unavailable, match=path.name):
        report_of(source)


@pytest.mark.parametrize("with_state", [False, True])
def test_a_broker_that_the_tier_has_not_is_refused(tmp_path: Path, with_state: bool) -> None:
    """An unknown broker is rejected, so that a mistyped name does not lead to a clean report."""
    tier = small_tier(tmp_path)
    for broker in (BROKER, "broker-z"):
        source = locate(tier.url, broker=broker, state=tier.state if with_state else None)
        if broker == BROKER:
            assert report_of(source)["damage"] == 0
        else:
            with pytest.raises(Invalid, match=f"no broker 'broker-z' .* There are: {BROKER}"):
                report_of(source)


def test_one_damaged_segment_among_a_thousand_is_named(tmp_path: Path) -> None:
    builder = TierBuilder(tmp_path, messages_per_segment=1)
    with builder.built.metadata.batch():
        stored = builder.queue("many", 0, [message("many", 0, n) for n in range(1000)])
    segment = SegmentId(f"{BROKER}/many/0", FileSegmentType.COMMIT_LOG, stored[777].offset)
    flip(builder.built.path(segment), 100)
    report = report_of(source_of(builder.built), task_bytes=20_000)
    [finding] = report["findings"]
    assert (finding["kind"], finding["base_offset"]) == ("record-body-crc", segment.base_offset)
    assert (finding["position"], finding["queue_offset"]) == (8, 777)
    assert report["messages"] == 999
    assert report["segments"] == 2000


def test_findings_are_bounded_and_all_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    builder = TierBuilder(tmp_path, messages_per_segment=40)
    builder.queue("many", 0, [message("many", 0, n) for n in range(80)])
    builder.built.metadata.flush()
    for path in (tmp_path / "tier").rglob("COMMIT_LOG/[!.]*"):
        for item in builder.built.stored["many", 0][:40]:
            flip(path, item.offset + 8)
    whole = report_of(source_of(builder.built), task_bytes=1 << 30)
    assert whole["damage"] > 40
    monkeypatch.setattr(verify_outcome.FindingsBox.__init__, "__defaults__", (5,))
    bounded = report_of(source_of(builder.built), task_bytes=1 << 30)
    assert (bounded["kinds"], bounded["damage"]) == (whole["kinds"], whole["damage"])
    assert len(bounded["findings"]) < 12
    last = [one for one in bounded["findings"] if "more of this kind" in one["message"]]
    segments = {one["base_offset"] for one in whole["findings"]}
    assert {one["base_offset"] for one in bounded["findings"]} == segments
    assert last


def test_a_topic_alone_and_metadata_that_does_not_parse(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    report = report_of(source_of(tier), topic="orders", queue=1)
    assert (report["queues"], report["messages"], report["index_items"]) == (1, 4, 0)
    for path in tier.metadata.path.parent.iterdir():
        path.write_bytes(b"{")
    report = report_of(source_of(tier))
    assert cast("dict[str, int]", report["kinds"])["metadata-unreadable"] == 1
    assert (report["damage"], report["messages"]) == (1, 22)
