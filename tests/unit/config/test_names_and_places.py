"""Tests of the keys for a broker's names, directories and plugin classes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.configured_broker import TOPIC, MakeBroker, RecordingProvider, conf
from tieredstore import registry
from tieredstore.clock import ManualClock
from tieredstore.contracts.durability import PutMessageStatus
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.contracts.wrapping import find_layer
from tieredstore.errors import Invalid
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.local.read_only import ReadOnlyMessageStore
from tieredstore.message.encoding import Message
from tieredstore.metadata.json_store import DefaultMetadataStore
from tieredstore.providers.memory.provider import MemoryProvider
from tieredstore.providers.posix.provider import PosixProvider
from tieredstore.tier.store import TieredMessageStore


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["broker-a", "broker-b"])
def test_broker_name_is_the_first_element_of_every_path(broker: MakeBroker, name: str) -> None:
    made = broker(brokerName=name)
    made.put(3)
    made.upload()
    assert made.store.index.seal_and_upload(force=True) == 1
    assert {item.id.path for item in made.provider.list()} == {
        f"{name}/{TOPIC}/0",
        f"{name}/rmq_sys_INDEX/0",
    }
    metadata = made.store._metadata
    assert metadata.queue(TOPIC, 0).broker_name == name


@pytest.mark.parametrize(
    ("name", "folder"),
    [("DefaultCluster", "212d6b50_DefaultCluster"), ("other", "795f3202_other")],
)
def test_broker_cluster_name_is_the_top_folder_of_a_posix_tier(
    broker: MakeBroker, name: str, folder: str
) -> None:
    made = broker(brokerClusterName=name, tieredBackendServiceProvider="posix")
    made.put(1)
    made.upload()
    assert [path.name for path in (made.root / "tier").iterdir()] == [folder]


@pytest.mark.parametrize(("role", "uploaded"), [("ASYNC_MASTER", 5), ("SLAVE", 0)])
def test_broker_role_slave_never_uploads(broker: MakeBroker, role: str, uploaded: int) -> None:
    master = broker()
    master.put(5)
    master.store.shutdown()
    loaded = conf(master.root, brokerRole=role)
    provider = RecordingProvider()
    store = TieredMessageStore(
        ReadOnlyMessageStore(loaded.config),
        loaded.config,
        provider,
        registry.metadata_store(loaded.config),
        master.root / "state",
        ManualClock(),
    )
    store.load()
    try:
        assert sum(outcome.messages for outcome in store.dispatcher.scan(force=True)) == uploaded
    finally:
        store.shutdown()
    assert bool(provider.writes) == (role != "SLAVE")


@pytest.mark.parametrize(
    ("role", "status"),
    [("ASYNC_MASTER", PutMessageStatus.PUT_OK), ("SLAVE", PutMessageStatus.SERVICE_NOT_AVAILABLE)],
)
def test_broker_role_slave_takes_no_messages_from_producers(
    broker: MakeBroker, role: str, status: PutMessageStatus
) -> None:
    made = broker(brokerRole=role)
    assert made.store.put_message(Message.create(TOPIC, b"x")).status is status


def test_store_path_root_dir_is_the_root_of_store_metadata_and_index_files(
    broker: MakeBroker, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        made = broker(storePathRootDir=tmp_path / name)
        made.put(1)
        made.upload()
        made.store.index.checkpoint()
        assert {
            "commitlog/00000000000000000000",
            f"consumequeue/{TOPIC}/0/00000000000000000000",
            "config/tieredStoreMetadata.json",
            "tiered_index_file/watermarks.json",
        } <= files(tmp_path / name)
        assert files(made.root) == set()


def test_store_path_commit_log_is_the_folder_of_the_log(broker: MakeBroker, tmp_path: Path) -> None:
    for log in ("", str(tmp_path / "fast-disk")):
        made = broker(storePathCommitLog=log)
        made.put(1)
        root = made.root / "store"
        assert "00000000000000000000" in files(Path(log) if log else root / "commitlog")
        assert (root / "commitlog").exists() == (not log)


class Labelled(TieredMessageStore):
    """A third-party store plugin."""


def test_message_store_plug_in_names_the_stores_around_the_local_one(broker: MakeBroker) -> None:
    alone = broker(messageStorePlugIn="")
    assert type(alone.store) is DefaultMessageStore

    tiered = broker(messageStorePlugIn="org.apache.rocketmq.tieredstore.TieredMessageStore")
    assert type(tiered.store) is TieredMessageStore
    tiered.put(2)
    assert tiered.upload() == 2

    both = conf(tiered.root, messageStorePlugIn=f"{__name__}:Labelled,tiered")
    made = registry.message_store(both)
    assert [type(made), type(made.next_store)] == [Labelled, TieredMessageStore]


def test_store_type_says_where_the_consume_queues_are(broker: MakeBroker) -> None:
    for name, is_database in (("default", False), ("defaultRocksDB", True)):
        made = broker(storeType=name)
        made.put(1)
        assert made.get().status is GetMessageStatus.FOUND
        queues = made.root / "store" / "consumequeue"
        assert (queues / "CURRENT").exists() == is_database
        assert (queues / TOPIC).exists() != is_database


def test_use_separate_store_path_for_rocksdb_cq_moves_the_database(
    broker: MakeBroker, tmp_path: Path
) -> None:
    made = broker(storeType="defaultROCKSDB", useSeparateStorePathForRocksdbCQ=True)
    made.put(1)
    store = made.root / "store"
    assert (store / "consumequeue_rocksdb" / "CURRENT").exists()
    assert not (store / "consumequeue").exists()
    for keys, expected in (
        ({"storeType": "default"}, "storeType=defaultRocksDB"),
        ({"storeType": "defaultRocksDB"}, "useSeparateStorePathForRocksdbCQ=true"),
    ):
        changed = conf(tmp_path / "other", **keys, storePathRootDir=store)
        with pytest.raises(Invalid, match=expected):
            registry.message_store(changed).load()


def test_metadata_service_provider_is_the_class_that_is_loaded(broker: MakeBroker) -> None:
    made = broker(
        tieredMetadataServiceProvider="org.apache.rocketmq.tieredstore.metadata.DefaultMetadataStore"
    )
    assert type(made.store._metadata) is DefaultMetadataStore
    other = broker(tieredMetadataServiceProvider=f"{__name__}:OwnMetadata")
    assert type(other.store._metadata) is OwnMetadata


class OwnMetadata(DefaultMetadataStore):
    """A third-party metadata store."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("org.apache.rocketmq.tieredstore.provider.MemoryFileSegment", MemoryProvider),
        ("org.apache.rocketmq.tieredstore.provider.PosixFileSegment", PosixProvider),
    ],
)
def test_backend_service_provider_is_the_class_that_is_loaded(
    broker: MakeBroker, name: str, kind: type[object]
) -> None:
    made = broker(tieredBackendServiceProvider=name)
    assert find_layer(made.store.flat_files.provider, kind) is not None
    made.put(1)
    assert made.upload() == 1
    assert bool(files(made.root / "tier")) == (kind is PosixProvider)


def test_tier_file_path_is_the_root_of_a_posix_tier(
    broker: MakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    working = tmp_path / "working"
    working.mkdir()
    monkeypatch.chdir(working)
    named = tmp_path / "named"
    for path, root in (("", working), (str(named), named)):
        named.mkdir(exist_ok=True)
        made = broker(tieredStoreFilePath=path, tieredBackendServiceProvider="posix")
        made.put(1)
        made.upload()
        made.store.shutdown()
        assert [folder.name for folder in root.iterdir()] == ["212d6b50_DefaultCluster"]
        assert files(root)


def test_storage_level_says_whether_the_tier_is_written_and_read(broker: MakeBroker) -> None:
    seen = {}
    for level in ("DISABLE", "NOT_IN_DISK", "FORCE"):
        made = broker(tieredStorageLevel=level)
        made.put(5)
        uploaded = made.upload()
        made.provider.reads.clear()
        found = made.get()
        assert len(found.messages) == 5
        seen[level] = (uploaded, bool(made.provider.reads))
    assert seen == {"DISABLE": (0, False), "NOT_IN_DISK": (5, False), "FORCE": (5, True)}


def test_storage_level_not_in_mem_reads_the_tier_for_what_is_not_in_memory(
    broker: MakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for level, resident, reads in (
        ("NOT_IN_MEM", False, True),
        ("NOT_IN_MEM", True, False),
        ("NOT_IN_DISK", False, False),
    ):
        made = broker(tieredStorageLevel=level)
        made.put(5)
        made.upload()
        made.provider.reads.clear()
        # What the page cache holds is the system's to decide.
        monkeypatch.setattr(
            made.local.dispatch_source, "is_in_memory", lambda *_, answer=resident: answer
        )
        assert len(made.get().messages) == 5
        assert bool(made.provider.reads) == reads


def test_refused_settings_make_no_store(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="enableDLegerCommitLog"):
        registry.message_store(conf(tmp_path, enableDLegerCommitLog="TRUE"))
    with pytest.raises(Invalid, match="brokerRole"):
        registry.message_store(conf(tmp_path, brokerRole="SYNC_MASTER"))


@pytest.mark.parametrize("key", ["brokerRole", "flushDiskType", "storeType"])
def test_a_value_that_a_key_does_not_have_is_an_error(tmp_path: Path, key: str) -> None:
    with pytest.raises(Invalid, match=key):
        conf(tmp_path, **{key: "junk"})
