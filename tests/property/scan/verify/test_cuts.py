"""`verify` has the same findings for any division of a tier into tasks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from tests.kit.tier_builder import CLUSTER, TierBuilder, message
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.scan.findings import Finding
from tieredstore.scan.listing import load_catalogue
from tieredstore.scan.verify.verification import verify

CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["flip", "zero", "cut", "grow", "swap", "remove"]),
        st.integers(0, 1 << 16),
        st.integers(0, 1 << 16),
        st.integers(1, 255),
    ),
    min_size=1,
    max_size=6,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = TierBuilder(tmp_path_factory.mktemp("sound"), messages_per_segment=7)
    builder.queue("orders", 0, [message("orders", 0, n) for n in range(23)], first_offset=50)
    builder.queue("over6", 0, [message("over6", 0, n, born_host=("fe80::1", 9)) for n in range(5)])
    builder.index()
    builder.built.metadata.flush()
    return builder.built.root / "tier"


def damage(root: Path, changes: list[tuple[str, int, int, int]]) -> None:
    for kind, which, where, byte in changes:
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)
        if not files:
            return
        path = files[which % len(files)]
        data = bytearray(path.read_bytes())
        at = where % len(data)
        match kind:
            case "flip":
                data[at] ^= byte
            case "zero":
                data[at : at + byte] = bytes(len(data[at : at + byte]))
            case "cut":
                del data[at:]
            case "grow":
                data += bytes(byte)
            case "swap":
                at -= at % 20
                data[at : at + 40] = data[at + 20 : at + 40] + data[at : at + 20]
            case _:
                path.unlink()
                continue
        path.write_bytes(data)


def findings(root: Path, task_bytes: int) -> tuple[list[Finding], int, int]:
    provider = PosixProvider(root, CLUSTER, fsync=False)
    found: list[Finding] = []
    try:
        report = verify(provider, load_catalogue(provider), found.append, task_bytes=task_bytes)
    finally:
        provider.close()
    return found, report.messages, report.message_bytes


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(CHANGES, st.integers(1, 6000))
@example([("zero", 4, 20, 60)], 1)
@example([("flip", 1, 1772, 1)], 1)
@example([("grow", 4, 0, 240), ("cut", 5, 0, 1)], 1)
@example([("swap", 4, 40, 1), ("remove", 5, 0, 1)], 400)
def test_random_cuts_of_a_damaged_tier_give_the_same_findings(
    sound: Path, tmp_path: Path, changes: list[tuple[str, int, int, int]], task_bytes: int
) -> None:
    root = tmp_path / "tier"
    shutil.rmtree(root, ignore_errors=True)
    shutil.copytree(sound, root)
    damage(root, changes)
    whole = findings(root, 1 << 30)
    assert findings(root, task_bytes) == whole
    assert findings(root, 1) == whole
