"""Java's index files can be read, and ours equal them byte for byte."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.kit.tier.index import FOREVER, Node, find, header_of, put_keys
from tieredstore.message.index.tiered import ITEM_DTYPE
from tieredstore.tier.index import IndexItem, IndexStoreService

JAVA_VERSIONS = ["java-5.3.3", "java-5.5.0"]
LIVE = "1795266331636"


def golden_rows(unsealed: bytes) -> tuple[int, np.ndarray[Any, Any], list[int]]:
    """Return the begin time, items and store times from which our index must write the same
    unsealed file."""
    _, begin, end, _, count = struct.unpack(">Iqqii", unsealed[:28])
    items = np.frombuffer(unsealed, ITEM_DTYPE, offset=28 + 4 * 8 + 32, count=count)
    times = [begin + int(seconds) * 1000 for seconds in items["time_diff_seconds"]]
    return begin, items, [*times[:-1], end]


@pytest.mark.parametrize("version", JAVA_VERSIONS)
def test_golden_files_are_reproduced_byte_for_byte(
    golden: Path, tmp_path: Path, version: str
) -> None:
    unsealed = (golden / version / "unsealed.idx").read_bytes()
    begin, items, times = golden_rows(unsealed)
    node = Node(tmp_path, slots=4, max_items=10, now_ms=begin)
    service = node.open()
    for number, (item, time_ms) in enumerate(zip(items, times, strict=True)):
        put_keys(
            service,
            int(item["topic_id"]),
            "TopicA",
            int(item["queue_id"]),
            [f"k{number}"],
            np.array([item["offset"]], dtype=np.int64),
            np.array([item["size"]], dtype=np.int32),
            np.array([time_ms], dtype=np.int64),
        )
    assert (node.directory / str(begin)).read_bytes() == unsealed
    service.stop()
    [ours] = (tmp_path / "tier").rglob("INDEX/[!.]*")
    [java] = (golden / version).rglob("INDEX/[!.]*")
    assert ours.name == java.name
    assert ours.read_bytes() == java.read_bytes()


@pytest.mark.parametrize("version", JAVA_VERSIONS)
def test_golden_tiers_answer(golden: Path, tmp_path: Path, version: str) -> None:
    shutil.copytree(golden / version / "tier", tmp_path / "tier")
    shutil.copytree(golden / version / "config", tmp_path / "store" / "config")
    # Another capacity than the writer's: the slot count comes from the file.
    service = Node(tmp_path, slots=500, max_items=77).open()
    offsets = [find(service, f"k{number}", topic="TopicA")[0].offset for number in range(5)]
    sizes = [find(service, f"k{number}", topic="TopicA")[0].size for number in range(5)]
    assert offsets == [sum(sizes[:number]) for number in range(5)]
    assert find(service, "k5", topic="TopicA") == []


def java_node(public_a: Path, root: Path, **capacity: Any) -> Node:
    [cluster] = (public_a / "tiered").iterdir()
    index = Path(cluster.name, "labBroker", "rmq_sys_INDEX")
    shutil.copytree(cluster.parent / index, root / "tier" / index)
    (root / "store" / "config").mkdir(parents=True)
    shutil.copy(
        public_a / "store" / "config" / "tieredStoreMetadata.json", root / "store" / "config"
    )
    for path in root.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return Node(root, broker="labBroker", cluster="LabCluster", **capacity)


def keys_of(message: dict[str, Any]) -> list[str]:
    return [key for key in (message["uniqKey"], *(message["keys"] or "").split(" ")) if key]


def missing(service: IndexStoreService, manifest: dict[str, Any], *, every: int = 1) -> list[str]:
    """Return the keys of tiered messages that are not found at the message's own time. Messages
    from IPv6 hosts are queried without a time, because Java indexes a wrong one (Java's defect
    D14)."""
    lost = []
    for message in manifest["messages"][::every]:
        if not message.get("tiered"):
            continue
        time_ms = message["storeTimestamp"]
        begin, end = (0, FOREVER) if message["topic"] == "pub_v6" else (time_ms, time_ms)
        at = (message["queueId"], message["tiered"]["commitLogOffset"], message["tiered"]["size"])
        for key in keys_of(message):
            found = find(service, key, topic=message["topic"], begin_ms=begin, end_ms=end)
            if at not in [(item.queue_id, item.offset, item.size) for item in found]:
                lost.append(f"{message['topic']} {key} {at}")
    return lost


def test_files_uploaded_by_java_answer_every_key(
    public_a: Path, public_a_manifest: dict[str, Any], tmp_path: Path
) -> None:
    """All keys in index files uploaded by Java are found. Java itself finds almost none by the
    message's own time (Java's defect D5)."""
    service = java_node(public_a, tmp_path, slots=31, max_items=1000).open()
    assert missing(service, public_a_manifest) == []


def live_node(public_a: Path, root: Path) -> Node:
    """Return a broker's directory from just before its stop, while the last index file is local."""
    node = java_node(public_a, root, slots=200, max_items=800)
    metadata = node.metadata()
    last = list(metadata.segments("labBroker/rmq_sys_INDEX/0"))[-1]
    metadata.delete_segment(last.id)
    metadata.flush()
    [path] = (root / "tier").rglob(f"INDEX/*{last.base_offset:020d}")
    path.unlink()
    node.directory.mkdir()
    shutil.copy(public_a / "live-index" / LIVE, node.directory / LIVE)
    (node.directory / LIVE).chmod(0o644)
    return node


def test_a_file_that_java_was_writing_answers_every_key(
    public_a: Path, public_a_manifest: dict[str, Any], tmp_path: Path
) -> None:
    service = live_node(public_a, tmp_path).open()
    assert missing(service, public_a_manifest, every=7) == []


def test_opening_a_good_file_of_java_changes_nothing(public_a: Path, tmp_path: Path) -> None:
    node = live_node(public_a, tmp_path)
    node.open()
    assert (node.directory / LIVE).read_bytes() == (public_a / "live-index" / LIVE).read_bytes()


def test_p02_a_file_that_java_was_writing_becomes_the_segment_that_java_made_of_it(
    public_a: Path, tmp_path: Path
) -> None:
    node = live_node(public_a, tmp_path)
    node.open().stop()
    [java] = (public_a / "tiered").rglob(f"INDEX/*{167860:020d}")
    [ours] = (tmp_path / "tier").rglob(f"INDEX/*{167860:020d}")
    assert ours.read_bytes() == java.read_bytes()
    last = list(node.metadata().segments("labBroker/rmq_sys_INDEX/0"))[-1]
    assert last.begin_timestamp_ms == int(LIVE)
    assert last.size == java.stat().st_size


def test_p02_we_go_on_in_a_file_of_java(
    public_a: Path, public_a_manifest: dict[str, Any], tmp_path: Path
) -> None:
    node = live_node(public_a, tmp_path)
    service = node.open()
    one, size = np.ones(1, dtype=np.int64), np.ones(1, dtype=np.int32)
    for number in range(200):
        put_keys(service, 99, "mine", 0, [f"mine-{number}"], one * number, size, one * int(LIVE))
    assert header_of(node.directory / LIVE)[4] == 799
    service.stop()
    service = node.open()
    for number in range(200):
        expected = IndexItem(99, 0, number, 1, int(LIVE))
        [found] = find(service, f"mine-{number}", topic="mine")
        assert found._replace(timestamp_ms=int(LIVE)) == expected
    assert missing(service, public_a_manifest, every=7) == []


def test_expiry_of_java_segments_goes_by_their_end(public_a: Path, tmp_path: Path) -> None:
    service = java_node(public_a, tmp_path).open()
    assert service.expire(1795266322768) == 0
    assert service.expire(1795266322969) == 3
