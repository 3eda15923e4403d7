"""Tests of named profiles: options, variables, and changes of their file."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.command_line import Ran, files_of, one_line, tieredstore
from tests.kit.local_stores import plain, put_all, running, small_config
from tests.kit.paths import ROOT
from tests.kit.tier_builder import BROKER, BuiltTier, small_tier
from tieredstore.cli.profiles import load_profiles, profile_path
from tieredstore.errors import Invalid


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def tier(tmp_path: Path) -> BuiltTier:
    return small_tier(tmp_path / "prod")


def write(text: str) -> None:
    profile_path().parent.mkdir(parents=True, exist_ok=True)
    profile_path().write_text(text)


def save(name: str, tier: BuiltTier, *options: object) -> Ran:
    ran = tieredstore("profile", "set", name, "--tier", tier.url, "--state", tier.state, *options)
    assert ran.code == 0, ran.err
    return ran


def origins(*options: str) -> dict[str, str]:
    rows = tieredstore("config", "show", "tier", "state", *options, "--output", "ndjson").rows
    return {row["key"]: row["origin"] for row in rows}


def test_a_profile_stands_for_the_options(tier: BuiltTier, monkeypatch: pytest.MonkeyPatch) -> None:
    save("prod", tier)
    assert tieredstore("ls").code == 2
    assert tieredstore("health", "--profile", "prod", "--output", "json").record["status"] == "up"
    assert origins("--profile", "prod") == {"tier": "profile prod", "state": "profile prod"}
    monkeypatch.setenv("TIEREDSTORE_PROFILE", "prod")
    assert tieredstore("ls").code == 0
    write(f'default = "prod"\n{profile_path().read_text()}')
    monkeypatch.delenv("TIEREDSTORE_PROFILE")
    assert tieredstore("ls").code == 0


def test_the_variables_beat_the_profile_that_nobody_named_on_the_command_line(
    tier: BuiltTier, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = small_tier(tmp_path / "other")
    save("prod", tier)
    monkeypatch.setenv("TIEREDSTORE_PROFILE", "prod")
    monkeypatch.setenv("TIEREDSTORE_TIER", other.url)
    assert origins() == {"tier": "TIEREDSTORE_TIER", "state": "default"}
    assert origins("--profile", "prod") == {"tier": "profile prod", "state": "profile prod"}
    monkeypatch.setenv("TIEREDSTORE_TIER", tier.url)
    assert origins() == {"tier": "TIEREDSTORE_TIER", "state": "profile prod"}


BROKEN = ["[profiles", 'default = "a"\n[profiles.b]\ntier = "/b"', "x = 1"]


@pytest.mark.parametrize("text", BROKEN)
def test_a_broken_file_is_no_matter_where_nobody_needs_it(
    tier: BuiltTier, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(text)
    names = ["--tier", tier.url, "--state", str(tier.state)]
    for verb in (
        ["ls"],
        ["stat"],
        ["cat", "--topic", "orders"],
        ["query", "--topic", "orders", "--key", "no"],
    ):
        ran = tieredstore(*verb, *names)
        assert ran.code == (3 if "--key" in verb else 0)
        assert ran.err.startswith(
            f"tieredstore: warning: no default profile: {profile_path()}: "
        ), ran.err
    monkeypatch.setenv("TIEREDSTORE_TIER", tier.url)
    assert tieredstore("ls").code == 0
    for more in (["--profile", "a"], []):
        monkeypatch.setenv("TIEREDSTORE_PROFILE", "" if more else "a")
        asked = tieredstore("ls", *names, *more)
        assert str(profile_path()) in one_line(asked)
    monkeypatch.delenv("TIEREDSTORE_PROFILE")
    monkeypatch.delenv("TIEREDSTORE_TIER")
    assert str(profile_path()) in one_line(tieredstore("ls"))


def test_variables_of_a_default_profile_are_those_of_its_tier(
    tier: BuiltTier, tmp_path: Path
) -> None:
    save("prod", tier, "--variable", "brokerName=NOT_SET")
    write(f'default = "prod"\n{profile_path().read_text()}')
    other = small_tier(tmp_path / "other")
    ran = tieredstore("ls", "--tier", other.url)
    assert (ran.code, ran.err) == (0, "")
    assert "NOT_SET, which is not set" in one_line(tieredstore("ls"))


def test_a_tier_beside_the_profile_of_another_one_is_refused(tier: BuiltTier) -> None:
    save("prod", tier)
    ran = tieredstore("ls", "--profile", "prod", "--tier", "/somewhere")
    assert "its tier is file://" in one_line(ran)
    assert tieredstore("ls", "--profile", "prod", "--tier", tier.url).code == 0


@pytest.mark.parametrize("verb", ["tier delete orders", "rebuild index", "restore", "copy"])
def test_a_verb_that_deletes_or_restores_takes_none(
    tier: BuiltTier, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save("prod", tier)
    before = files_of(tier.root)
    ran = tieredstore(*verb.split(), "--profile", "prod")
    assert "No such option '--profile'" in one_line(ran)
    monkeypatch.setenv("TIEREDSTORE_PROFILE", "prod")
    assert "Missing option '--" in one_line(tieredstore(*verb.split()))
    assert files_of(tier.root) == before


def test_settings_come_from_variables(tier: BuiltTier, monkeypatch: pytest.MonkeyPatch) -> None:
    save("prod", tier, "--variable", "brokerName=THE_BROKER")
    ran = tieredstore("ls", "--profile", "prod")
    assert "brokerName is in the variable THE_BROKER, which is not set" in one_line(ran)
    monkeypatch.setenv("THE_BROKER", "nobody")
    assert "nobody" in one_line(tieredstore("ls", "--profile", "prod"))
    monkeypatch.setenv("THE_BROKER", BROKER)
    assert tieredstore("ls", "--profile", "prod").code == 0
    shown = tieredstore("profile", "show", "prod", "--output", "json")
    (variable,) = shown.record["variables"]
    assert variable == {"setting": "brokerName", "variable": "THE_BROKER", "is_set": True}
    assert BROKER not in shown.out


def test_offload_takes_its_names_from_variables_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(small_config(tmp_path / "store")) as store:
        put_all(store, [plain("orders")])
    names = {"brokerName": "THE_BROKER", "brokerClusterName": "THE_CLUSTER"}
    pairs = [f"{setting}={variable}" for setting, variable in names.items()]
    ran = tieredstore(
        *("profile", "set", "new", "--tier", tmp_path / "tier", "--state", tmp_path / "state"),
        *(word for pair in pairs for word in ("--variable", pair)),
    )
    assert ran.code == 0, ran.err
    monkeypatch.setenv("THE_BROKER", "broker-v")
    monkeypatch.setenv("THE_CLUSTER", "cluster-v")
    monkeypatch.setenv("TIEREDSTORE_PROFILE", "new")
    ran = tieredstore("offload", tmp_path / "store", "--output", "json")
    assert (ran.code, ran.record["messages"]) == (0, 1), ran.err
    (row,) = tieredstore("ls", "--output", "json").record
    assert (row["broker"], row["messages"]) == ("broker-v", 1)


def test_what_is_written_leaves_the_rest_of_the_file_alone(tier: BuiltTier) -> None:
    write(
        '# mine\ndefault = "b"\n\n[profiles.a]\ntier = "/a"\n'
        '[profiles.a.variables]\nx = "X"\n\n[profiles.b]  # two\ntier = "~/b"\n'
    )
    save("a", tier, "--cluster", 'na"me')
    text = profile_path().read_text()
    assert text.startswith('# mine\ndefault = "b"\n\n[profiles.b]  # two\ntier = "~/b"\n\n')
    found = load_profiles()
    assert dict(found.find("a").places) == {
        "tier": tier.url, "state": str(tier.state), "cluster": 'na"me',
    }  # fmt: skip
    assert not found.find("a").variables
    assert found.find("b").places["tier"] == str(Path.home() / "b")
    assert tieredstore("profile", "delete", "b").code == 0
    assert (load_profiles().default, list(load_profiles().profiles)) == (None, ["a"])
    assert profile_path().read_text().startswith("# mine\n")


def test_profiles_are_listed(tier: BuiltTier) -> None:
    assert "no profile" in tieredstore("profile", "list").err
    save("a", tier)
    save("b", tier)
    write(f'default = "b"\n{profile_path().read_text()}')
    rows = tieredstore("profile", "list", "--output", "json").record
    assert [(row["profile"], row["default"], row["tier"]) for row in rows] == [
        ("a", False, tier.url), ("b", True, tier.url),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[profiles", "no TOML"),
        ("x = 1", "expected `default` and tables"),
        ("[profiles]\na = 1", "expected a table"),
        ('[profiles.a]\nteir = "/x"', "unknown key 'teir'; did you mean 'tier'?"),
        ('[profiles.a]\nsecretKey = "x"', "expected tier, state"),
        ("[profiles.a]\ntier = 1", "expected texts"),
        ('[profiles.a]\nstate = "here"', "expected an absolute path"),
        ('[profiles.a]\ntier = "here"', "expected an absolute path"),
        (
            '[profiles.a]\n[profiles.a.variables]\nk = "wJalr/XUt"',
            "expected the name of a variable",
        ),
        ('default = "b"\n[profiles.a]\ntier = "/a"', "no profile 'b'; there are: a"),
    ],
)
def test_a_file_that_says_something_else_is_refused(text: str, problem: str) -> None:
    write(text)
    with pytest.raises(Invalid) as raised:
        load_profiles()
    assert problem in str(raised.value)
    assert "wJalr" not in str(raised.value)


def test_a_name_that_is_none_and_one_that_is_not_known(tier: BuiltTier) -> None:
    ran = tieredstore("profile", "set", "a.b", "--tier", tier.url)
    assert "expected up to 64 letters" in one_line(ran)
    save("prod", tier)
    assert "did you mean 'prod'?" in one_line(tieredstore("ls", "--profile", "prd"))
    assert tieredstore("profile", "delete", "prd").code == 2


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("s3://bucket/x?region=r&secret_key=abc", "secret_key"),
        ("s3://bucket/x?access_key=abc", "access_key"),
        ("gs://bucket/x?option.token=abc", "option.token"),
    ],
)
def test_a_secret_in_the_url_of_a_tier_is_not_kept(url: str, name: str) -> None:
    said = one_line(tieredstore("profile", "set", "prod", "--tier", url))
    assert f"{name} " in said
    assert "secret" in said
    assert "abc" not in said
    assert not profile_path().exists()


def test_a_setting_that_nobody_knows_is_told_when_it_is_written(tier: BuiltTier) -> None:
    ran = save("prod", tier, "--variable", "objectStoreSecretKye=KEY")
    assert "objectStoreSecretKye: unknown, did you mean objectStoreSecretKey?" in ran.err
    assert "warning" not in save("prod", tier, "--variable", "objectStoreSecretKey=KEY").err


def test_a_warning_names_the_profile_that_a_setting_is_from(
    tier: BuiltTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs = {"tieredStorGroupCommit": "X1", "readAheadNone": "X2", "objectStoreRegoin": "X3"}
    monkeypatch.setenv("X1", "1")
    monkeypatch.setenv("X2", "2")
    monkeypatch.setenv("X3", "3")
    save("prod", tier, *(f"--variable={key}={variable}" for key, variable in pairs.items()))
    start = "tieredstore: warning: profile prod: unknown key "
    said = tieredstore("ls", "--profile", "prod").err.splitlines()
    assert sorted(line[: len(start) + 10] for line in said) == [
        f"{start}readAheadN", f"{start}tieredStor",
    ]  # fmt: skip
    conf = tier.root / "broker.conf"
    conf.write_text("brokerName=nobody\ntieredStoreNothing=1\n")
    ran = tieredstore("ls", "--profile", "prod", "--config", conf, "--broker", BROKER)
    others = [line for line in ran.err.splitlines() if line not in said]
    assert [line.partition(": unknown key")[0] for line in others] == [
        f"tieredstore: warning: {conf}"
    ]


def test_a_bad_value_names_the_profile_that_it_is_from(
    tier: BuiltTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIZE", "much")
    save("prod", tier, "--variable", "tieredStoreCommitLogMaxSize=SIZE")
    error = one_line(tieredstore("ls", "--profile", "prod"))
    assert "error: profile prod: tieredStoreCommitLogMaxSize: expected a int" in error


def test_the_page_has_settings_that_there_are() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    write(page.split("```toml\n", 1)[1].split("```", 1)[0])
    [profile] = load_profiles().profiles.values()
    places = [word for key, place in profile.places.items() for word in (f"--{key}", place)]
    pairs = [f"--variable={key}={variable}" for key, variable in profile.variables.items()]
    assert len(pairs) == 2
    ran = tieredstore("profile", "set", "same", *places, *pairs)
    assert (ran.code, "warning" in ran.err) == (0, False), ran.err


def test_l30_profiles_that_are_set_at_once_are_all_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    names = [f"p{number}" for number in range(8)]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "tieredstore", "profile", "set", name, "--tier", str(tmp_path)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        for name in names
    ]
    said = [process.communicate()[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(names), said
    assert sorted(load_profiles().profiles) == names
