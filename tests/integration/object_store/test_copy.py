"""`tieredstore copy` reads from real object stores and writes to them. The copy is killed, and the
stores fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, one_line, tieredstore
from tests.kit.fault_proxy.faults import answer, lose_reply
from tests.kit.fault_proxy.proxy import FaultProxy
from tests.kit.object_store.fixtures import new_bucket
from tests.kit.object_store.servers import ObjectStore, Servers
from tests.kit.tier_builder import BuiltTier, small_tier


@pytest.fixture
def built(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path / "source")


def copy_in(built: BuiltTier, store: ObjectStore, state: Path, *options: str) -> Ran:
    return tieredstore(
        "copy", "--from", built.url, "--from-state", built.state,
        "--to", store.url(), "--to-state", state, "--quiet", "--output", "json", *options,
    )  # fmt: skip


def copy_out(store: ObjectStore, root: Path) -> dict[str, bytes]:
    """Copy the tier to files, without its state directory. Return the segments by name."""
    ran = tieredstore(
        "copy", "--from", store.url(), "--to", f"file://{root}/tier", "--to-state", root / "state",
        "--quiet",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    return segments_of(root / "tier")


def segments_of(root: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }


def test_a_tier_goes_there_and_back(
    object_store: ObjectStore, built: BuiltTier, tmp_path: Path
) -> None:
    ran = copy_in(built, object_store, tmp_path / "state")
    assert ran.code == 0, ran.err
    assert ran.record["target_requests"]["PutObject"] > 0
    assert ran.record["cost_usd"] > 0
    verified = tieredstore(
        "verify", "--tier", object_store.url(), "--state", tmp_path / "state", "--output", "json"
    )
    assert (verified.code, verified.record["findings"]) == (0, [])
    assert copy_out(object_store, tmp_path / "out") == segments_of(built.root / "tier")
    again = copy_in(built, object_store, tmp_path / "state")
    assert (again.code, again.record["copied_bytes"]) == (0, 0)
    assert object_store.open_uploads() == 0


def test_segments_that_are_whole_in_the_source_are_sealed(
    object_store: ObjectStore, built: BuiltTier, tmp_path: Path
) -> None:
    assert copy_in(built, object_store, tmp_path / "state").code == 0
    names = [key.rpartition("/")[2] for key in sorted(object_store.keys())]
    # Of the three queues' files all segments but the last one each, and the index segment.
    assert names.count("s") == (2 + 2) + (0 + 0) + (1 + 1) + 1


def test_o01_replies_that_are_lost_do_not_double_anything(
    object_store: ObjectStore, proxy: FaultProxy, built: BuiltTier, tmp_path: Path
) -> None:
    proxy.inject(lose_reply(), "PutObject", calls={4, 9, 13})
    ran = copy_in(built, object_store.through(proxy.endpoint), tmp_path / "state")
    assert ran.code == 0, ran.err
    assert copy_out(object_store, tmp_path / "out") == segments_of(built.root / "tier")


@pytest.mark.parametrize(
    "call", [11, *(pytest.param(call, marks=pytest.mark.slow) for call in (5, 17))]
)
def test_o03_a_store_that_goes_away_leaves_a_copy_that_goes_on(
    object_store: ObjectStore, proxy: FaultProxy, built: BuiltTier, tmp_path: Path, call: int
) -> None:
    proxy.inject(answer(503, "SlowDown"), "PutObject", calls=set(range(call, 1000)))
    ran = copy_in(built, object_store.through(proxy.endpoint), tmp_path / "state")
    assert ran.code == 4
    proxy.heal()
    # Its epoch could not be released either, and the process that held it is this very one.
    ran = copy_in(built, object_store, tmp_path / "state", "--take-over")
    assert ran.code == 0, ran.err
    assert copy_out(object_store, tmp_path / "out") == segments_of(built.root / "tier")


def test_a_bucket_of_the_same_name_elsewhere_is_another_place(
    servers: Servers, built: BuiltTier, tmp_path: Path
) -> None:
    here, there = new_bucket(servers, "moto"), new_bucket(servers, "versitygw")
    client = there.client()
    client.create_bucket(Bucket=here.bucket)
    client.close()
    assert copy_in(built, here, tmp_path / "state").code == 0
    other = replace(there, bucket=here.bucket)
    ran = tieredstore(
        "copy", "--from", here.url(), "--to", other.url(), "--to-state", tmp_path / "other",
        "--quiet",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    assert copy_out(other, tmp_path / "out") == segments_of(built.root / "tier")
    same = tieredstore("copy", "--from", here.url(), "--to", here.url(), "--to-state", tmp_path)
    assert "are the same tier" in one_line(same)
