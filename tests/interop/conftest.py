"""The lane that runs the published Java broker; skipped, with the reason, where it cannot run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.kit.java import (
    JavaTools,
    Manifest,
    copy_tree,
    tieredstore,
    write_broker_conf,
)

OUR_OFFLOAD = {"tieredStoreGroupCommitTimeout": "1000"}


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


@dataclass(frozen=True, slots=True)
class Offloaded:
    """A tier that `tieredstore offload` made from the fixture's local store.

    root: as check.sh wants it, `store/` (our state directory) and `tiered/`; source: the local
    store; manifest: what must be in the tier, as the Java broker itself saw it in the local store.
    """

    root: Path
    source: Path
    manifest: Manifest


def tier_manifest(public_a_manifest: Manifest) -> Manifest:
    """The fixture's messages of the topics that Java tiers; expired there or not, all are local."""
    tiered_topics = {m["topic"] for m in public_a_manifest["messages"] if "tiered" in m}
    messages = [
        {**message, "tiered": message.get("tiered", {})}
        for message in public_a_manifest["messages"]
        if message["topic"] in tiered_topics
    ]
    return {"brokerConf": public_a_manifest["brokerConf"], "messages": messages}


def offload(source: Path, root: Path, manifest: Manifest) -> str:
    """Copy the local store `source` into `root/tiered` with the state in `root/store`."""
    conf = write_broker_conf(root / "broker.conf", manifest, **OUR_OFFLOAD)
    return tieredstore(
        "offload", source, "--tier", f"file://{root / 'tiered'}", "--state", root / "store",
        "--config", conf,
    )  # fmt: skip


@pytest.fixture(scope="session")
def offloaded(
    public_a: Path, public_a_manifest: Manifest, tmp_path_factory: pytest.TempPathFactory
) -> Offloaded:
    root = tmp_path_factory.mktemp("offloaded")
    copy_tree(public_a / "store", root / "source")
    manifest = tier_manifest(public_a_manifest)
    offload(root / "source", root, manifest)
    return Offloaded(root, root / "source", manifest)
