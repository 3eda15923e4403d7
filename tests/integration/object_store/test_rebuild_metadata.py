"""Several processes rebuild the metadata of a tier in an object store."""

from __future__ import annotations

from pathlib import Path

from tests.kit.command_line import one_line, tieredstore
from tests.kit.jobs.rebuild_metadata import facts_of
from tests.kit.object_store.servers import ObjectStore
from tests.kit.object_store.tiers import open_tier
from tests.kit.tier_builder import BROKER, small_tier
from tieredstore.tier.state_files import LOCK_FILE


def test_processes_make_the_metadata_of_a_tier_of_objects(
    versitygw: ObjectStore, tmp_path: Path
) -> None:
    built = small_tier(tmp_path / "source")
    copied = tieredstore(
        "copy", "--from", built.url, "--from-state", built.state, "--to", versitygw.url(),
        "--to-state", tmp_path / "lost", "--quiet",
    )  # fmt: skip
    assert copied.code == 0, copied.err
    made = tmp_path / "made"
    rebuild = (
        "rebuild", "metadata", "--tier", versitygw.url(), "--state", made, "--work",
        tmp_path / "w", "--workers", 2, "--quiet", "--output", "json",
    )  # fmt: skip
    writer = open_tier(versitygw)
    epoch = writer.acquire_writer(BROKER)
    refused = tieredstore(*rebuild)
    epoch.release()
    writer.close()
    assert refused.code == 5
    assert "broker-a" in one_line(refused)
    assert [path.name for path in made.iterdir()] == [LOCK_FILE]

    ran = tieredstore(*rebuild)

    assert (ran.code, ran.record["findings"]) == (0, []), ran.err
    assert facts_of(made) == facts_of(tmp_path / "lost") == facts_of(built.state)
    verified = tieredstore("verify", "--tier", versitygw.url(), "--state", made, "--output", "json")
    assert (verified.code, verified.record["findings"]) == (0, [])
