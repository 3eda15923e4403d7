"""An offload backs up the topics, groups and offsets of a Java broker, so that `restore` works."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as run
from tests.kit.older import OlderStore, unpack_older
from tieredstore.broker.auth.users import AclManager
from tieredstore.contracts.backups import BackupName
from tieredstore.errors import Refused
from tieredstore.java_json import quote_integer_keys
from tieredstore.providers.posix.provider import PosixProvider

NAMES = ("--cluster", "OldCluster", "--broker", "oldBroker")


def offload(older: OlderStore, root: Path, *more: object) -> dict[str, object]:
    done = run(
        "offload", older.store, *NAMES, "--tier", root / "tier", "--state", root / "state",
        "--quiet", "--output", "json", *more,
    )  # fmt: skip
    assert done.code == 0, done.err
    record: dict[str, object] = done.record
    return record


def read_config(store: Path, name: str) -> dict[str, dict[str, dict[str, object]]]:
    found: dict[str, dict[str, dict[str, object]]] = json.loads(
        quote_integer_keys((store / "config" / name).read_bytes())
    )
    return found


@pytest.mark.parametrize("name", ["4.9.7-plain", "5.1.4-plain", "5.4.0-rocks"])
def test_j55_a_store_is_restored_from_the_tier_of_an_offload(name: str, tmp_path: Path) -> None:
    """A store is restored from the tier of an offload, even if the broker keeps topics, groups and
    offsets in RocksDB."""
    older = unpack_older(name, tmp_path / "older")
    if name == "4.9.7-plain":  # its consumers had stopped before they committed anything
        (older.store / "config/consumerOffset.json").write_text(
            '{"offsetTable":{"old_normal@CG":{0:7,1:9}}}'
        )
    record = offload(older, tmp_path)
    backup = record["backup"]
    assert isinstance(backup, dict)
    assert {"topics.json", "subscriptionGroup.json"} <= {*backup["files"]}
    assert backup["left_out"] == {}
    shutil.rmtree(older.store)
    done = run("restore", "--tier", tmp_path / "tier", "--store", tmp_path / "new", *NAMES)
    assert done.code == 0, done.out + done.err
    topics = read_config(tmp_path / "new", "topics.json")["topicConfigTable"]
    assert topics["old_normal"]["writeQueueNums"] == 2
    groups = read_config(tmp_path / "new", "subscriptionGroup.json")["subscriptionGroupTable"]
    assert "CG_order" in groups
    if name == "4.9.7-plain":
        offsets = read_config(tmp_path / "new", "consumerOffset.json")["offsetTable"]
        assert offsets["old_normal@CG"] == {"0": 7, "1": 9}
    if name == "5.4.0-rocks":
        offsets = read_config(tmp_path / "new", "consumerOffset.json")["offsetTable"]
        assert offsets["old_fifo@CG_order"] == {"0": 15, "1": 15}
    conf = {
        "storePathRootDir": str(tmp_path / "new"),
        "brokerClusterName": "OldCluster",
        "brokerName": "oldBroker",
        "messageStorePlugIn": "org.apache.rocketmq.tieredstore.TieredMessageStore",
        "tieredBackendServiceProvider": "posix",
        "tieredStoreFilePath": str(tmp_path / "tier"),
        "mappedFileSizeCommitLog": str(4 << 20),
        "mappedFileSizeConsumeQueue": "4000",
        "storeType": "defaultRocksDB" if "rocks" in name else "default",
    }
    with tieredstore.open_store(conf) as store:
        for place in older.read_by_java():
            if place[0] in ("old_bcq", "old_compact"):
                continue
            found = store.get_message("g", *place, 1)
            assert [one.queue_offset for one in found.messages] == [place[2]]
        put = store.put_message(tieredstore.Message.create("old_normal", b"next"))
        assert put.queue_offset in (69, 81)


def test_j55_offsets_that_moved_are_backed_up_though_no_message_came(tmp_path: Path) -> None:
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    offload(older, tmp_path)
    offsets = older.store / "config/consumerOffset.json"
    offsets.write_text('{"offsetTable":{"old_normal@CG":{0:8}}}')
    assert offload(older, tmp_path)["messages"] == 0
    done = run("restore", "--tier", tmp_path / "tier", "--store", tmp_path / "new", *NAMES)
    assert done.code == 0, done.err
    found = read_config(tmp_path / "new", "consumerOffset.json")["offsetTable"]
    assert found["old_normal@CG"] == {"0": 8}


def test_j55_what_is_not_read_is_said_to_be_left_out(tmp_path: Path) -> None:
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    database = older.store / "config/consumerOffsets"
    database.mkdir()
    (database / "CURRENT").write_text("MANIFEST-000001\n")
    done = run(
        "offload", older.store, *NAMES, "--tier", tmp_path / "tier", "--state",
        tmp_path / "state", "--output", "json",
    )  # fmt: skip
    assert (done.code, "not backed up" in done.err) == (0, True), done.err
    assert "consumerOffset.json" in done.record["backup"]["left_out"]


ACL_OF_JAVA = (
    b'{"policies":[{"entries":[{"actions":[3,4],"decision":1,"environment":{"sourceIps":'
    b'["10.0.0.0/8"]},"resource":{"resourceName":"orders","resourcePattern":2,"resourceType":4}},'
    b'{"actions":[3,4],"decision":1,"environment":{"sourceIps":["10.0.0.0/8"]},"resource":'
    b'{"resourceName":"orders-","resourcePattern":3,"resourceType":4}}],"policyType":1},'
    b'{"entries":[{"actions":[1],"decision":2,"resource":{"resourcePattern":1,"resourceType":1}},'
    b'{"actions":[4],"decision":1,"resource":{"resourcePattern":1,"resourceType":5}}],'
    b'"policyType":2}],"subject":{"subjectType":1,"username":"app"}}'
)
"""File with users and permissions, written by the auth module of Java 5.5.0."""


def make_java_database(directory: Path, rows: dict[bytes, bytes]) -> None:
    rocksdict = pytest.importorskip("rocksdict")
    database = rocksdict.Rdict(str(directory), rocksdict.Options(raw_mode=True))
    for key, value in rows.items():
        database.put(key, value)
    database.close()


def test_j92_rights_of_a_java_broker_are_backed_up_and_users_are_named(tmp_path: Path) -> None:
    """The access rules of a Java broker are backed up without its users, and a report names the
    users. A tier has no passwords, because every reader of the tier could read them."""
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    make_java_database(older.store / "config/acls", {b"User:app": ACL_OF_JAVA})
    user = b'{"password":"app-password","subjectType":1,"userStatus":1,"userType":2}'
    make_java_database(older.store / "config/users", {b"app": user})
    backup = offload(older, tmp_path)["backup"]
    assert isinstance(backup, dict)
    assert "authAcls.json" in backup["files"]
    assert list(backup["left_out"]) == ["authUsers.json"]
    assert "passwords are in no backup" in backup["left_out"]["authUsers.json"]
    done = run("restore", "--tier", tmp_path / "tier", "--store", tmp_path / "new", *NAMES)
    assert done.code == 0, done.out + done.err
    path = tmp_path / "new/config/authAcls.json"
    assert path.stat().st_mode & 0o777 == 0o600
    found = AclManager(path.parent)
    found.decode(path.read_bytes())
    assert [
        (policy.policy_type, entry.resource, entry.actions, entry.source_ips, entry.decision)
        for policy in found.list_acls()["User:app"].policies
        for entry in policy.entries
    ] == [
        ("Custom", "Topic:orders", ["Pub", "Sub"], ["10.0.0.0/8"], "Allow"),
        ("Custom", "Topic:orders-*", ["Pub", "Sub"], ["10.0.0.0/8"], "Allow"),
        ("Default", "*", ["All"], None, "Deny"),
        ("Default", "Group:*", ["Sub"], None, "Allow"),
    ]
    for file in (tmp_path / "tier").rglob("*"):
        assert not file.is_file() or b"app-password" not in file.read_bytes()


def test_j92_rights_that_have_no_meaning_here_are_left_out_as_a_whole(tmp_path: Path) -> None:
    """If one access rule of a Java broker cannot be interpreted, none of the rules is backed up.
    The unknown rule might deny access."""
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    acl = ACL_OF_JAVA.replace(b'"resourceType":4', b'"resourceType":3')  # of a namespace
    make_java_database(older.store / "config/acls", {b"User:app": acl})
    backup = offload(older, tmp_path)["backup"]
    assert isinstance(backup, dict)
    assert "authAcls.json" not in backup["files"]
    assert list(backup["left_out"]) == ["authAcls.json"]


def test_s70_a_reader_without_a_right_to_the_backups_reads_the_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader without permission for the backups can read the tier. Only the broker may read the
    folder with the backups and the records of deleted topics."""
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    offload(older, tmp_path)

    def refuse(self: PosixProvider, broker: str) -> list[BackupName]:
        raise Refused(f"{self.url}/{broker}: cannot list: Permission denied")

    monkeypatch.setattr(PosixProvider, "list_backups", refuse)
    shown = run("ls", "--tier", tmp_path / "tier")
    assert (shown.code, "records of deleted topics" in shown.err) == (0, True), shown.err
    read = run("cat", "--tier", tmp_path / "tier", "--topic", "old_normal", "--output", "ndjson")
    assert (read.code, len(read.rows)) == (0, 150), read.err
