"""Fixtures of the tests that run the published Java broker. If the broker cannot run here, the
tests are skipped with the reason."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.java import JavaTools, Manifest, copy_tree
from tests.kit.offloaded import Offloaded, offload, tier_manifest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.interop)


@pytest.fixture(scope="session")
def java() -> JavaTools:
    tools = JavaTools.resolve()
    if isinstance(tools, str):
        pytest.skip(f"no Java side: {tools}")
    return tools


@pytest.fixture(scope="session")
def offloaded(
    public_a: Path, public_a_manifest: Manifest, tmp_path_factory: pytest.TempPathFactory
) -> Offloaded:
    root = tmp_path_factory.mktemp("offloaded")
    copy_tree(public_a / "store", root / "source")
    manifest = tier_manifest(public_a_manifest)
    offload(root / "source", root, manifest)
    return Offloaded(root, root / "source", manifest)
