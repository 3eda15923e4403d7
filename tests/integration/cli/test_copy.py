"""The tests run `tieredstore copy` in a shell."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, files_of, one_line, tieredstore
from tests.kit.tier_builder import BROKER, BuiltTier, small_tier
from tests.kit.tiered_local import TieredLocal


@pytest.fixture
def built(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path / "source")


def ends(built: BuiltTier, target: Path) -> list[object]:
    return [
        "--from", built.url, "--from-state", built.state,
        "--to", f"file://{target / 'tier'}", "--to-state", target / "state",
    ]  # fmt: skip


def segments_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_copy_can_be_listed_read_searched_and_verified(built: BuiltTier, tmp_path: Path) -> None:
    target = tmp_path / "target"
    before = files_of(built.root)

    ran = tieredstore("copy", *ends(built, target), "--output", "json")

    assert ran.code == 0, ran.err
    assert ran.record["queues"] == 3
    assert ran.record["failed"] == []
    assert ran.record["index_segments"] == 1
    assert "copy: " in ran.err
    assert files_of(built.root) == before, "the origin is only read"
    assert segments_of(target / "tier") == segments_of(built.root / "tier")
    there = ["--tier", f"file://{target / 'tier'}", "--state", target / "state"]
    verified = tieredstore("verify", *there, "--output", "json")
    assert verified.code == 0, verified.out
    assert verified.record["notes"] == 0
    source = ["--tier", built.url, "--state", built.state]
    for verb in (
        ["cat", "--topic", "orders", "--output", "json"],
        ["query", "--topic", "orders", "--key", "orders-0-3", "--output", "json"],
    ):
        assert tieredstore(*verb, *there).record == tieredstore(*verb, *source).record != []


def test_a_second_run_copies_nothing(built: BuiltTier, tmp_path: Path) -> None:
    tieredstore("copy", *ends(built, tmp_path / "target"))
    before = segments_of(tmp_path / "target/tier")
    ran = tieredstore("copy", *ends(built, tmp_path / "target"), "--output", "json", "--quiet")
    assert ran.code == 0
    assert ran.record["copied_bytes"] == ran.record["segments"] == 0
    assert ran.err == ""
    assert segments_of(tmp_path / "target/tier") == before


def test_a_dry_run_says_what_a_run_then_does_and_writes_nothing(
    built: BuiltTier, tmp_path: Path
) -> None:
    target = tmp_path / "target"
    plan = tieredstore("copy", *ends(built, target), "--dry-run", "--output", "json")
    assert plan.code == 0
    assert not target.exists()
    ran = tieredstore("copy", *ends(built, target), "--output", "json")
    for field in ("copy_bytes", "segments"):
        done = {"copy_bytes": "copied_bytes"}.get(field, field)
        assert plan.record[field] == ran.record[done] > 0
    assert plan.record["conflicts"] == 0


def test_the_table_of_a_plan_has_a_line_a_path(built: BuiltTier, tmp_path: Path) -> None:
    plan = tieredstore("copy", *ends(built, tmp_path / "target"), "--dry-run")
    assert f"{BROKER}/orders/0" in plan.out
    assert f"{BROKER}/rmq_sys_INDEX/0" in plan.out


def other_tier(root: Path) -> dict[str, bytes]:
    """A tier with the same names and different content: each segment's first message has another
    body."""
    other = small_tier(root)
    for path in (root / "tier").rglob("COMMIT_LOG/[!.]*"):
        data = bytearray(path.read_bytes())
        data[90] ^= 0xFF
        path.write_bytes(data)
    other.metadata.close()
    return segments_of(root / "tier")


def test_h02_a_target_with_something_else_is_refused(built: BuiltTier, tmp_path: Path) -> None:
    before = other_tier(tmp_path / "target")
    ran = tieredstore("copy", *ends(built, tmp_path / "target"))
    assert ran.code == 2
    assert "holds something else" in one_line(ran)
    assert "--force" in ran.err
    assert segments_of(tmp_path / "target" / "tier") == before


def test_h01_force_is_a_dry_run_without_yes(built: BuiltTier, tmp_path: Path) -> None:
    before = other_tier(tmp_path / "target")
    ran = tieredstore("copy", *ends(built, tmp_path / "target"), "--force", "--output", "json")
    assert ran.code == 0
    assert ran.record["deletes_bytes"] > 0
    assert "add --yes" in ran.err
    assert segments_of(tmp_path / "target" / "tier") == before

    done = tieredstore("copy", *ends(built, tmp_path / "target"), "--force", "--yes")

    assert done.code == 0, done.err
    assert segments_of(tmp_path / "target" / "tier") == segments_of(built.root / "tier")


def test_h02_another_copy_to_the_same_target_is_refused_while_one_runs(
    built: BuiltTier, tmp_path: Path
) -> None:
    from tieredstore.providers.posix.provider import PosixProvider

    (tmp_path / "target/tier").mkdir(parents=True)
    provider = PosixProvider(tmp_path / "target/tier", "cluster-a")
    epoch = provider.acquire_writer(BROKER)
    ran = tieredstore("copy", *ends(built, tmp_path / "target"))
    epoch.release()
    provider.close()
    assert ran.code == 5
    assert "live writer" in one_line(ran)


def test_h01_the_state_of_another_tier_is_refused(built: BuiltTier, tmp_path: Path) -> None:
    tieredstore("copy", *ends(built, tmp_path / "first"))
    mixed = [*ends(built, tmp_path / "second")[:-1], tmp_path / "first" / "state"]
    ran = tieredstore("copy", *mixed)
    assert ran.code == 2
    assert "docs/belonging.md, 'tier empty'" in one_line(ran)


def test_h01_a_target_whose_state_is_lost_is_refused(built: BuiltTier, tmp_path: Path) -> None:
    tieredstore("copy", *ends(built, tmp_path / "target"))
    shutil.rmtree(tmp_path / "target" / "state")
    ran = tieredstore("copy", *ends(built, tmp_path / "target"))
    assert ran.code == 2
    assert "which the target's state does not know" in one_line(ran)


def test_h01_source_and_target_must_differ(built: BuiltTier, tmp_path: Path) -> None:
    ran = tieredstore(
        "copy", "--from", built.url, "--to", built.url, "--to-state", tmp_path / "state"
    )
    assert ran.code == 2
    assert "are the same tier" in one_line(ran)
    ran = tieredstore(
        "copy", "--from", built.url, "--from-state", built.state, "--to", f"file://{tmp_path}/t",
        "--to-state", built.state,
    )  # fmt: skip
    assert ran.code == 2
    assert "is the state of the origin" in one_line(ran)


def test_a_segment_that_the_source_has_lost_is_named_and_the_rest_is_copied(
    built: BuiltTier, tmp_path: Path
) -> None:
    victim = min(
        (built.root / "tier").rglob("orders/0/COMMIT_LOG/[!.]*"), key=lambda p: p.name[-20:]
    )
    victim.unlink()
    ran = tieredstore("copy", *ends(built, tmp_path / "target"), "--output", "json", "--quiet")
    assert ran.code == 1
    assert ran.record["failed"] == []
    assert [line.split(":")[0] for line in ran.record["damage"]] == [
        f"{BROKER}/orders/0/COMMIT_LOG@0"
    ]
    assert segments_of(tmp_path / "target/tier") == segments_of(built.root / "tier")


def test_several_brokers_are_copied_one_at_a_time(built: BuiltTier, tmp_path: Path) -> None:
    [cluster] = (built.root / "tier").iterdir()
    shutil.copytree(cluster / BROKER, cluster / "broker-b")
    ran = tieredstore(
        "copy", "--from", built.url, "--to", f"file://{tmp_path}/t", "--to-state", tmp_path / "s"
    )
    assert ran.code == 2
    assert "broker-a, broker-b" in one_line(ran)
    ran = tieredstore("copy", *ends(built, tmp_path / "target"), "--broker", "broker-a")
    assert ran.code == 0, ran.err


def test_h01_a_broker_that_is_not_there_is_refused_before_anything_is_made(
    built: BuiltTier, tmp_path: Path
) -> None:
    ran = tieredstore(
        "copy", "--from", built.url, "--broker", "broker-x",
        "--to", f"file://{tmp_path}/target/tier", "--to-state", tmp_path / "target/state",
    )  # fmt: skip
    assert ran.code == 2
    assert "no broker 'broker-x' in the tier. It has: broker-a" in one_line(ran)
    assert segments_of(tmp_path / "target") == {}


def test_messages_that_expired_before_they_were_copied_are_told_of(tmp_path: Path) -> None:
    """A copy reports messages that expired before it could copy them. After the first messages were
    copied, all messages of the topic expired in the origin."""
    world = TieredLocal(tmp_path)
    places = ("--to", f"file://{tmp_path / 'copy'}", "--to-state", tmp_path / "copy-state")
    tier = ("--tier", f"file://{tmp_path / 'tier'}", "--state", tmp_path / "store")
    copied = ("--tier", places[1], "--state", places[3])

    def copy(*more: object) -> Ran:
        return tieredstore("copy", "--from", tier[1], "--from-state", tier[3], *places, *more)

    world.put("A", b"a0", b"a1")
    world.put("B", b"b0")
    world.upload()
    world.close()
    assert copy().code == 0
    world.open()
    world.put("A", b"a2", b"a3")
    world.upload()
    world.close()
    expire = ("tier", "expire", "--all-topics", "--before", "2100-01-01", *tier, "--yes")
    assert tieredstore(*expire).code == 0
    for _ in range(2):
        ran = copy()
        assert ran.code == 2
        assert "A/0: the target ends at offset" in ran.err
        assert "has expired before it was copied. --force replaces the target's" in ran.err
        assert "B/0" not in ran.err
        assert tieredstore("verify", *copied, "--quiet").code == 0
    assert copy("--force", "--yes").code == 0
    assert copy().code == 0
    assert tieredstore("verify", *copied, "--quiet").code == 0
    rows = tieredstore("ls", *copied, "--output", "ndjson").rows
    assert [row["topic"] for row in rows] == ["B"]
    world.open()
    world.put("A", b"a4")
    world.upload()
    world.close()
    assert copy().code == 0
    rows = tieredstore("cat", "--topic", "A", *copied, "--output", "ndjson").rows
    assert [(row["queue_offset"], row["body"]) for row in rows] == [(4, "a4")]
    assert tieredstore("verify", *copied, "--quiet").code == 0
