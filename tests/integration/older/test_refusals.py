"""Every verb refuses unsupported stores of Java. Each error states the reason and the remedy."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tieredstore
from tests.kit.command_line import one_line
from tests.kit.command_line import tieredstore as run
from tests.kit.older import OlderStore, unpack_older
from tieredstore.config import read_broker_conf
from tieredstore.errors import Invalid

VERBS = {
    "check": ("store", "check"),
    "stat": ("store", "stat"),
    "recover": ("store", "recover", "--yes"),
    "cat": ("cat", "--topic", "*", "--store"),
    "offload": ("offload", "--tier", "tier", "--state", "state"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_j52_a_dledger_store_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    monkeypatch.chdir(tmp_path)
    older = unpack_older("4.9.7-dledger", tmp_path / "older")
    text = one_line(run(*VERBS[verb], older.store))
    assert "DLedger" in text
    assert "`tieredstore tail`" in text
    assert "tieredstore verify" not in text


def test_j52_a_broker_refuses_a_dledger_store(tmp_path: Path) -> None:
    older = unpack_older("4.9.7-dledger", tmp_path / "older")
    with pytest.raises(Invalid, match="DLedger"), tieredstore.open_store(str(older.store)):
        pass


@pytest.fixture
def several(tmp_path: Path) -> OlderStore:
    """A store with two folders in `storePathCommitLog`."""
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    (older.store / "log1").mkdir()
    first = older.store / "commitlog" / f"{0:020d}"
    shutil.copy(first, older.store / "log1" / f"{4 << 20:020d}")
    return older


@pytest.mark.parametrize("conf", ["beside", "none"])
@pytest.mark.parametrize("first", ["commitlog", "log0"])
@pytest.mark.parametrize("verb", VERBS)
def test_j52_a_log_in_several_folders_is_refused_by_name(
    several: OlderStore, monkeypatch: pytest.MonkeyPatch, verb: str, first: str, conf: str
) -> None:
    monkeypatch.chdir(several.root)
    if first != "commitlog":
        (several.store / "commitlog").rename(several.store / first)
    folders = f"{several.store / first},{several.store / 'log1'}"
    text = several.conf.read_text().replace(f"{several.store / 'commitlog'}", folders)
    several.conf.write_text(text)
    if conf == "none":
        several.conf.unlink()
    text = one_line(run(*VERBS[verb], several.store))
    assert "several folders" in text
    assert "storePathCommitLog" in text
    assert "tieredstore store check" in text
    assert "tieredstore verify" not in text


def test_j52_a_broker_refuses_a_log_in_several_folders(several: OlderStore) -> None:
    conf = dict(read_broker_conf(several.conf))
    with pytest.raises(Invalid, match="several folders"), tieredstore.open_store(conf):
        pass
    conf["storePathCommitLog"] += f",{several.store / 'log1'}"
    with pytest.raises(Invalid, match="several folders"), tieredstore.open_store(conf):
        pass


def test_j52_a_copy_of_the_log_beside_it_refuses_nothing(tmp_path: Path) -> None:
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    shutil.copytree(older.store / "commitlog", older.store / "commitlog.bak")
    assert run("store", "check", older.store).code == 0


def test_j52_damage_of_a_store_is_not_sent_to_the_check_of_a_tier(tmp_path: Path) -> None:
    """A file in the middle of a store's log is missing, and no repair can restore it. The error
    names a command for the store, and not `tieredstore verify`, which checks a tier."""
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    log = older.store / "commitlog"
    shutil.copy(log / f"{0:020d}", log / f"{8 << 20:020d}")
    for verb in (VERBS["check"], VERBS["stat"], VERBS["cat"], VERBS["offload"]):
        more = ("--cluster", "C", "--broker", "b") if verb[0] == "offload" else ()
        ran = run(*verb, older.store, *more)
        assert (ran.code, "tieredstore verify" in ran.err) == (1, False), ran.err
        assert "tieredstore store" in ran.err


def test_j52_damaged_topics_of_a_store_name_the_file_and_the_repair(tmp_path: Path) -> None:
    older = unpack_older("4.9.7-plain", tmp_path / "older")
    for name in ("topics.json", "topics.json.bak"):
        (older.store / "config" / name).write_bytes(b"garbage")
    places = ("--tier", tmp_path / "tier", "--state", tmp_path / "state")
    ran = run("offload", older.store, *places, "--cluster", "C", "--broker", "b")
    assert ran.code == 1
    text = " ".join(ran.err.split())
    assert "topics.json: expected JSON with a topicConfigTable" in text
    assert "There is no good topics.json.bak" in text
    assert "tieredstore config restore" in text
    assert "tieredstore verify" not in text


def test_j52_a_damaged_backup_of_config_is_not_sent_to_the_check_of_a_tier(tmp_path: Path) -> None:
    backup = tmp_path / "backup.tgz"
    backup.write_bytes(b"garbage")
    ran = run("config", "restore", tmp_path / "store", "--from", backup, "--yes")
    assert ran.code == 1
    assert "another backup of `tieredstore config backup`" in " ".join(ran.err.split())
    assert "tieredstore verify" not in ran.err
