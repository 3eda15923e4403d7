"""Tests of `config check` and `config show`, and of each command's errors about its `--config`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.command_line import one_line, tieredstore
from tests.kit.tier_builder import BROKER, BuiltTier, small_tier
from tieredstore.broker.settings import BROKER_FIELDS_BY_KEY
from tieredstore.config import FIELDS_BY_KEY
from tieredstore.java_settings import BROKER_SETTINGS, SETTINGS_ELSEWHERE

WRONG = """# one of each
brokerName=broker-z
brokerName=broker-a
tieredStoreGroupCommitCout=5
tieredStoreGroupCommitCount=many
listenPort=\\
  99999999
brokerRole=SYNC_MASTER
tieredBackendServiceProvider=posixx
tieredMetadataServiceProvider=jsonn
messageStorePlugIn=tiered,tierd
brokerIP2=10.0.0.1
useABSLock=true
useScanThreshold=1
somethingElse=1
objectStoreSecretKye=hunter2
objectStoreSecretKey=hunter3
tieredStoreS3Prefix=history
"""


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(WRONG)
    return path


def test_check_has_a_finding_for_each_line_that_is_not_as_it_was_meant(wrong: Path) -> None:
    ran = tieredstore("config", "check", wrong, "--output", "json")
    found = ran.record
    assert [(row["level"], row["line"], row["key"]) for row in found["findings"]] == [
        ("warning", 2, "brokerName"),
        ("warning", 4, "tieredStoreGroupCommitCout"),
        ("error", 5, "tieredStoreGroupCommitCount"),
        ("error", 6, "listenPort"),
        ("error", 8, "brokerRole"),
        ("error", 9, "tieredBackendServiceProvider"),
        ("error", 10, "tieredMetadataServiceProvider"),
        ("error", 11, "messageStorePlugIn"),
        ("note", 12, "brokerIP2"),
        ("note", 13, "useABSLock"),
        ("warning", 14, "useScanThreshold"),
        ("warning", 15, "somethingElse"),
        ("warning", 16, "objectStoreSecretKye"),
    ]
    assert (ran.code, found["settings"], found["errors"]) == (2, 16, 6)
    assert (found["warnings"], found["notes"]) == (5, 2)
    problems = {row["key"]: row["problem"] for row in found["findings"]}
    assert problems["tieredStoreGroupCommitCout"].endswith("mean tieredStoreGroupCommitCount?")
    assert problems["objectStoreSecretKye"].endswith("did you mean objectStoreSecretKey?")
    assert problems["tieredStoreGroupCommitCount"] == "expected a int, found 'many'"
    assert "hunter" not in ran.out


def test_check_of_a_good_file_is_exit_code_0(public_a: Path) -> None:
    ran = tieredstore("config", "check", public_a / "broker.conf", "--output", "json")
    assert (ran.code, ran.record["errors"], ran.record["warnings"], ran.err) == (0, 0, 0, "")
    assert {row["problem"] for row in ran.record["findings"]} == {"without effect here"}


def test_show_says_what_counts_and_where_it_comes_from(wrong: Path) -> None:
    ran = tieredstore("config", "show", "--config", wrong, "--cluster", "c", "--output", "ndjson")
    rows = {row["key"]: row for row in ran.rows}
    assert ran.code == 2
    shown = {key: (row["value"], row["origin"]) for key, row in rows.items()}
    assert shown["brokerName"] == ("broker-a", f"{wrong}:3")
    assert shown["brokerClusterName"] == ("c", "command line")
    assert shown["tieredStoreS3Prefix"] == ("history", f"{wrong}:18")
    assert shown["objectStoreSecretKey"] == ("a secret", f"{wrong}:17")
    assert shown["objectStoreSecretKye"] == (None, f"{wrong}:16")
    assert "objectStoreSecretKey?" in rows["objectStoreSecretKye"]["problem"]
    assert "default" not in {row["origin"] for row in ran.rows}
    assert "hunter" not in ran.out


def test_show_has_defaults_of_keys_that_are_named_and_all_with_all() -> None:
    ran = tieredstore("config", "show", "tieredStorageLevel", "listenPort", "--output", "ndjson")
    assert [(row["key"], row["value"], row["origin"]) for row in ran.rows] == [
        ("tieredStorageLevel", "NOT_IN_DISK", "default"),
        ("listenPort", "10911", "default"),
    ]
    every = {
        row["key"] for row in tieredstore("config", "show", "--all", "--output", "json").record
    }
    assert every >= {*FIELDS_BY_KEY, *BROKER_FIELDS_BY_KEY, "tieredStoreS3Prefix"}
    assert "did you mean 'listenPort'" in one_line(tieredstore("config", "show", "listnPort"))
    given = one_line(tieredstore("config", "show", __file__))
    assert f"{__file__} is a file: give it as --config {__file__}" in given


def test_the_keys_of_the_broker_are_those_that_it_reads() -> None:
    assert set(BROKER_FIELDS_BY_KEY) - set(FIELDS_BY_KEY) == BROKER_SETTINGS
    assert not SETTINGS_ELSEWHERE & (FIELDS_BY_KEY.keys() - {"brokerRole"})


@pytest.fixture
def tier(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path)


VERBS = {
    "ls": ["--tier", "TIER"],
    "cat": ["--tier", "TIER", "--topic", "over6", "--limit", "1"],
    "verify": ["--tier", "TIER", "--workers", "1", "--topic", "over6"],
    "health": ["--tier", "TIER", "--state", "STATE"],
    "doctor": ["--tier", "TIER", "--racers", "2", "--rounds", "1", "--no-throughput"],
    "tier delete": ["over6", "--tier", "TIER", "--state", "STATE"],
    "rebuild metadata": ["--tier", "TIER", "--state", "NEW", "--dry-run"],
    "copy": ["--from", "TIER", "--to", "OTHER", "--to-state", "NEW", "--dry-run"],
}


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_tells_the_warnings_of_a_file_once(
    tier: BuiltTier, verb: str, tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName={BROKER}\ntieredStorGroupCommit=true\nbrokerIP2=x\n")
    places = {"TIER": tier.url, "STATE": tier.state, "NEW": tmp_path / "new"}
    places["OTHER"] = f"file://{tmp_path / 'other'}"
    files = ["--from-config", conf, "--to-config", conf] if verb == "copy" else ["--config", conf]
    ran = tieredstore(*verb.split(), *(places.get(word, word) for word in VERBS[verb]), *files)
    assert ran.code == 0, ran.err
    warnings = [line for line in ran.err.splitlines() if "warning: " in line]
    assert warnings == [
        (
            f"tieredstore: warning: {conf}: unknown key tieredStorGroupCommit; did you mean "
            "tieredStoreGroupCommit?"
        ),
        f"tieredstore: warning: {conf}: keys of Java without effect here: brokerIP2",
    ]


FOREIGN = {
    "README.md": b"# Title\n\nNote: brokers\nand more\n",
    "topics.json": b'{\n "dataVersion": {},\n "topicConfigTable": {}\n}\n',
    "tools.yml": b"accessKey: rocketmq\nsecretKey: hunter2\n",
    "log": b"brokerName=a\n\0\0\0\0",
    "large": b"brokerName=a\n" + b"#" * (4 << 20),
}


@pytest.mark.parametrize("name", FOREIGN)
@pytest.mark.parametrize("verb", ["ls", "broker", "config check"])
def test_a_file_that_is_no_configuration_is_refused(verb: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(FOREIGN[name])
    more = {"ls": ["--tier", f"file://{tmp_path}", "--config"], "broker": ["-c"]}
    ran = tieredstore(*verb.split(), *more.get(verb, []), path)
    assert ran.code == 2
    line = one_line(ran)
    assert f"{path}: no configuration: expected lines as in a broker.conf" in line
    assert "hunter2" not in line


def test_a_file_with_one_misspelt_key_is_told_what_was_meant(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("brokerNam=a\n")
    line = one_line(tieredstore("config", "check", path))
    assert "1 settings, none with a known key; did you mean brokerName?" in line


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "listenPort=1\n", "objectStoreX=1\n"])
def test_an_empty_file_and_one_of_a_broker_or_a_provider_is_one(text: str, tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    assert tieredstore("config", "check", path).code == 0
