"""A broker starts with a tier that is lost, older than its store, or of another broker. Each such
start is refused. The test then follows the recovery procedure in the error, with a broker.conf."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.command_line import tieredstore
from tieredstore.broker.broker import Broker
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.errors import TieredStoreError
from tieredstore.local.message_store import DefaultMessageStore
from tieredstore.message.encoding import Message
from tieredstore.tier.store import TieredMessageStore

KEYS = {
    "brokerName": "broker-a",
    "brokerIP1": "127.0.0.1",
    "bindAddress": "127.0.0.1",
    "listenPort": "0",
    "grpcServerPort": "0",
    "metricsPromExporterPort": "0",
    "mappedFileSizeCommitLog": str(1 << 16),
    "messageStorePlugIn": "tiered",
    "tieredBackendServiceProvider": "posix",
    "tieredStoreGroupCommitTimeout": "0",
    "tieredStorageLevel": "NOT_IN_DISK",
}


class Operator:
    """Starts and stops a broker with its broker.conf."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.store = root / "store"
        self.tier = root / "tier"

    def serve(self, use: Callable[[TieredMessageStore], object], *lines: str) -> None:
        """Start the broker, use its store, upload, and stop. `lines` are added to the
        broker.conf."""
        places = [f"storePathRootDir={self.store}", f"tieredStoreFilePath={self.tier}"]
        settings = [f"{key}={value}" for key, value in KEYS.items()]
        (self.root / "broker.conf").write_text("\n".join([*settings, *places, *lines, ""]))

        async def run() -> None:
            broker = Broker.from_file(self.root / "broker.conf")
            await broker.start()
            try:
                store: object = broker.services.store
                assert isinstance(store, TieredMessageStore)
                use(store)
                assert isinstance(store.next_store, DefaultMessageStore)
                store.next_store.wait_until_dispatched()
                store.next_store.flush()
                store.dispatcher.scan(force=True)
            finally:
                await broker.stop()

        asyncio.run(run())

    def put(self, *bodies: bytes, first: int) -> Callable[[TieredMessageStore], object]:
        def use(store: TieredMessageStore) -> None:
            for offset, body in enumerate(bodies, first):
                result = store.put_message(Message.create("T", body))
                assert (result.ok, result.queue_offset) == (True, offset)

        return use

    def refuse(self, *lines: str) -> str:
        with pytest.raises(TieredStoreError) as caught:
            self.serve(lambda store: None, *lines)
        return str(caught.value)

    def cat_tier(self) -> list[str]:
        ran = tieredstore(
            "cat", "--tier", f"file://{self.tier}", "--topic", "T", "--output", "ndjson"
        )
        assert ran.code == 0, ran.err
        return [row["body"] for row in ran.rows]

    def rebuild(self) -> None:
        ran = tieredstore(
            *("rebuild", "metadata", "--tier", f"file://{self.tier}"),
            *("--state", self.store, "--force", "--broker", "broker-a"),
        )
        assert ran.code == 0, ran.err


@pytest.fixture
def operator(tmp_path: Path) -> Operator:
    """Return an `Operator` after its broker has uploaded three messages to the tier."""
    operator = Operator(tmp_path)
    operator.serve(operator.put(b"0", b"1", b"2", first=0))
    return operator


def read_all(store: TieredMessageStore) -> None:
    found = store.get_message("g", "T", 0, 0, 32)
    assert found.status is GetMessageStatus.FOUND
    assert [bytes(message.body) for message in found.messages] == [b"0", b"1", b"2", b"3"]


@pytest.mark.parametrize("is_mounted", [False, True])
def test_w75_a_tier_that_is_lost_for_good_is_begun_anew(
    operator: Operator, *, is_mounted: bool
) -> None:
    shutil.rmtree(operator.tier)
    if is_mounted:
        operator.tier.mkdir()
    for lines in ([], ["tieredStoreAdopt=true"]):
        assert "move config/tieredStoreMetadata.json*" in operator.refuse(*lines)
    for path in (operator.store / "config").glob("tieredStoreMetadata.json*"):
        path.unlink()
    (operator.store / "tieredstore.ends.json").unlink()
    operator.serve(operator.put(b"3", first=3), "tieredStoreAdopt=true")
    assert operator.cat_tier() == ["0", "1", "2", "3"], "the local disk is uploaded again"
    operator.serve(read_all)


def test_w75_an_older_tier_is_adopted_once_its_metadata_is_made_again(operator: Operator) -> None:
    shutil.copytree(operator.tier, operator.root / "older")
    operator.serve(operator.put(b"3", first=3))
    shutil.rmtree(operator.tier)
    (operator.root / "older").rename(operator.tier)
    for lines in ([], ["tieredStoreAdopt=true"]):
        assert "the tier is an older copy" in operator.refuse(*lines)
    operator.rebuild()
    operator.serve(lambda store: None, "tieredStoreAdopt=true")
    assert operator.cat_tier() == ["0", "1", "2", "3"], "the local disk is uploaded again"
    operator.serve(read_all)


def test_w75_a_broker_moves_to_a_copy_of_its_tier(operator: Operator) -> None:
    copied = operator.root / "copied"
    ran = tieredstore(
        "copy",
        "--from",
        f"file://{operator.tier}",
        "--to",
        f"file://{copied}",
        "--to-state",
        operator.root / "to",
    )
    assert ran.code == 0, ran.err
    operator.tier = copied
    assert "rebuild metadata --force" in operator.refuse()
    operator.rebuild()
    operator.serve(operator.put(b"3", first=3), "tieredStoreAdopt=true")
    assert operator.cat_tier() == ["0", "1", "2", "3"]
    operator.serve(read_all)


def test_w75_another_name_in_the_configuration_is_refused(operator: Operator) -> None:
    """A broker that is restarted under another name, as can happen to a pod, is refused."""
    assert "is that of broker 'broker-a'" in operator.refuse("brokerName=pod-7f9c")
    assert [path.name for path in operator.tier.glob("*/*")] == ["broker-a"]
    operator.serve(operator.put(b"3", first=3))


def test_w75_a_tier_that_is_not_mounted_loses_and_hides_nothing(operator: Operator) -> None:
    """A start is refused if the tier is not mounted and only its empty mount point exists. No
    history is lost or hidden."""
    disk = operator.root / "disk"
    operator.tier.rename(disk)
    operator.tier.mkdir()
    for _ in range(3):
        assert "Mount the disk" in operator.refuse()
    assert list(operator.tier.iterdir()) == []
    operator.tier.rmdir()
    disk.rename(operator.tier)
    operator.serve(operator.put(b"3", first=3))
    operator.serve(read_all)


@pytest.mark.parametrize("is_adopted_before", [False, True])
def test_w76_metadata_that_is_made_again_knows_where_an_expired_queue_ended(
    operator: Operator, *, is_adopted_before: bool
) -> None:
    """A queue continues at its old end offset although all its messages have expired and the local
    store is lost. The rebuilt metadata has this offset."""
    operator.serve(lambda store: store.put_message(Message.create("Other", b"0")))
    ran = tieredstore(
        *("tier", "expire", "T", "--before", "2999-01-01", "--yes"),
        *("--tier", f"file://{operator.tier}", "--state", operator.store),
    )
    assert ran.code == 0, ran.err
    config = operator.store / "config"
    kept = operator.root / "kept"
    config.rename(kept)
    shutil.rmtree(operator.store)
    operator.store.mkdir()
    if is_adopted_before:
        kept.rename(config)
        operator.serve(lambda store: None, "tieredStoreAdopt=true")
    operator.rebuild()
    operator.serve(operator.put(b"3", first=3), "tieredStoreAdopt=true")
