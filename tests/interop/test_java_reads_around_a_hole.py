"""The published Java broker reads a queue with a hole (docs/adr/0001-dispatch-gap.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.java import JavaTools, Manifest
from tests.kit.tier.writing import become_writer
from tieredstore.clock import SystemClock
from tieredstore.config import StoreConfig
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.registry import metadata_store, segment_provider
from tieredstore.tier.flat.file_store import FlatFileStore
from tieredstore.tier.reading import run

TOPIC, QUEUE = "pub_multi", 1
HOLE_BEGIN, HOLE_END = 50, 70


def open_tier(root: Path, tier: Path, manifest: Manifest) -> FlatFileStore:
    config = StoreConfig(
        broker_name=manifest["brokerConf"]["brokerName"],
        broker_cluster_name=manifest["brokerConf"]["brokerClusterName"],
        store_path_root_dir=str(root),
        tier_file_path=str(tier),
        backend_service_provider="posix",
    )
    clock = SystemClock()
    metadata = metadata_store(config, clock)
    metadata.load()
    files = FlatFileStore(config, segment_provider(config), metadata, clock)
    files.load()
    return files


@pytest.fixture(scope="module")
def with_hole(
    public_a: Path, public_a_manifest: Manifest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Create a tier of one queue that lacks the messages [HOLE_BEGIN, HOLE_END)."""
    root = tmp_path_factory.mktemp("hole")
    source_state = root / "source"
    (source_state / "config").mkdir(parents=True)
    name = "config/tieredStoreMetadata.json"
    (source_state / name).write_bytes((public_a / "store" / name).read_bytes())
    source = open_tier(source_state, public_a / "tiered", public_a_manifest)
    (root / "tiered").mkdir()
    target = open_tier(root / "store", root / "tiered", public_a_manifest)
    read = source.get(TOPIC, QUEUE)
    assert read is not None
    writer = become_writer(target)
    written = target.get_or_create(TOPIC, QUEUE)
    written.init_offset(0)
    for begin, end in ((0, HOLE_BEGIN), (HOLE_END, read.consume_queue_commit_offset)):
        if begin:
            written.skip_to(begin)
        units = run(read.read_units(begin, end - begin))
        first = int(units["physical_offset"][0])
        length = int(units["physical_offset"][-1]) + int(units["size"][-1]) - first
        written.append_batch(units, [run(read.read_commit_log(first, length))])
        assert written.commit()
    assert written.holes == [(HOLE_BEGIN, HOLE_END)]
    segments = list(target.metadata.segments(written.path, FileSegmentType.CONSUME_QUEUE))
    assert [segment.base_offset for segment in segments] == [0, HOLE_END * 20]
    writer.release()
    target.metadata.flush()
    target.close()
    source.close()
    return root


def messages_between(manifest: Manifest, begin: int, end: int) -> Manifest:
    messages = [
        message
        for message in manifest["messages"]
        if (message["topic"], message["queueId"]) == (TOPIC, QUEUE)
        and begin <= message["queueOffset"] < end
    ]
    without_index = [{**message, "uniqKey": None, "keys": None} for message in messages]
    for message in without_index:
        del message["uniqKey"], message["keys"]
    return {"brokerConf": manifest["brokerConf"], "messages": without_index}


@pytest.mark.parametrize(("begin", "end"), [(0, HOLE_BEGIN), (HOLE_END, 10_000)])
def test_java_reads_both_sides_of_a_hole(
    java: JavaTools,
    with_hole: Path,
    public_a_manifest: Manifest,
    tmp_path: Path,
    begin: int,
    end: int,
) -> None:
    wanted = messages_between(public_a_manifest, begin, end)

    report = java.check("tiered", with_hole, wanted, tmp_path / "check")

    assert report.passed, report.text
    assert report.right == report.wanted == len(wanted["messages"]) > 0
