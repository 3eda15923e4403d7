"""Tests of realistic configurations, and of machines without common parts."""

from __future__ import annotations

import pwd
import tempfile
import threading
from datetime import timedelta
from pathlib import Path

import pytest

from tests.kit.client_sessions import NotingSession
from tests.kit.command_line import tieredstore
from tests.kit.tier_builder import small_tier
from tieredstore.broker.namesrv.registered import RegisteredBrokers, Registration
from tieredstore.broker.state.config_manager import DataVersion
from tieredstore.broker.tls import Tls, TlsMode, make_certificate, make_server_context
from tieredstore.cli.profiles import load_profiles, profile_path
from tieredstore.clock import SYSTEM_CLOCK, ManualClock
from tieredstore.config import (
    StoreConfig,
    config_from_properties,
    read_broker_conf,
    require_root,
)
from tieredstore.disk.file_operations import measure_used_ratio
from tieredstore.disk.user_folders import make_temporary_folder
from tieredstore.errors import Invalid
from tieredstore.jobs.exporting.following import parse_interval
from tieredstore.scan.times import MOST_SPAN_MS, parse_span

YEARS_200 = "73050d"


@pytest.fixture
def homeless(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without HOME or a passwd entry, as in a container with a numeric user."""

    def find_nobody(number: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", find_nobody)


@pytest.fixture
def no_temporary_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    def find_none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", find_none)


@pytest.mark.usefixtures("homeless")
def test_l33_without_a_home_folder_what_needs_none_works(tmp_path: Path) -> None:
    tier = small_tier(tmp_path)
    assert tieredstore("ls", "--tier", tier.url).code == 0
    assert tieredstore("config", "show").code == 0
    assert load_profiles().profiles == {}
    to = f"--to={tmp_path / 'out'}"
    work = f"--work={tmp_path / 'work'}"
    made = tieredstore("export", "--tier", tier.url, "--format", "parquet", to, work, "--quiet")
    assert made.code == 0, made.err


@pytest.mark.usefixtures("homeless")
def test_l33_without_a_home_folder_what_needs_one_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"Set HOME or XDG_CONFIG_HOME"):
        profile_path()
    tier = small_tier(tmp_path)
    to = f"--to={tmp_path / 'out'}"
    refused = tieredstore("export", "--tier", tier.url, "--format", "parquet", to)
    assert refused.code == 2
    assert "XDG_STATE_HOME" in refused.err
    with pytest.raises(Invalid, match="storePathRootDir"):
        require_root(StoreConfig())
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=b\nlistenPort=0\n")
    broker = tieredstore("broker", "-c", str(conf))
    assert broker.code == 2
    assert "storePathRootDir" in broker.err


def test_l33_a_home_that_is_empty_counts_as_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "")
    assert Path(StoreConfig().store_path_root_dir).is_absolute()


@pytest.mark.usefixtures("no_temporary_folder")
def test_l33_without_a_temporary_folder_a_broker_has_its_certificate() -> None:
    make_server_context(Tls(make_certificate(), TlsMode.PERMISSIVE))


@pytest.mark.usefixtures("no_temporary_folder")
def test_l33_without_a_temporary_folder_what_needs_one_names_the_variable() -> None:
    with pytest.raises(Invalid, match="set TMPDIR"), make_temporary_folder("x"):
        pass


def test_h30_a_byte_order_mark_in_a_configuration_does_not_count(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_bytes(b"\xef\xbb\xbfbrokerName=a\r\nstorePathRootDir=/x\r\n")
    assert read_broker_conf(conf) == {"brokerName": "a", "storePathRootDir": "/x"}


@pytest.mark.parametrize("line", ["flushDiskType=SYNC_FLUSH ", "fileReservedTime=48\t"])
def test_h30_blanks_behind_a_value_are_refused_by_name(tmp_path: Path, line: str) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"brokerName=a\n{line}\n")
    with pytest.raises(Invalid, match=rf"broker\.conf: {line.partition('=')[0]}"):
        config_from_properties(read_broker_conf(conf), origin=str(conf))


def test_h30_blanks_behind_a_folder_or_a_name_are_refused_by_name(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    for line in ("storePathRootDir=/data/store ", "brokerName=broker-a\t", "brokerName=a  \r"):
        conf.write_text(f"flushDiskType=SYNC_FLUSH\n{line}\n")
        key = line.partition("=")[0]
        with pytest.raises(Invalid, match=rf"broker\.conf:2: {key}: blanks at the end"):
            read_broker_conf(conf)
    conf.write_text("storePathRootDir=/data/store\\u0020\nbrokerName=a\n")
    assert read_broker_conf(conf)["storePathRootDir"] == "/data/store "


@pytest.mark.parametrize("parse", [parse_span, parse_interval])
def test_h31_a_duration_has_bounds_wherever_it_is_given(parse: object) -> None:
    assert callable(parse)
    assert parse("36525d", "--x") == MOST_SPAN_MS
    for given in (YEARS_200, "999999999999999w", timedelta(days=200 * 365), "1", "-1s", ""):
        with pytest.raises(Invalid, match="--x: expected a time"):
            parse(given, "--x")


def test_h31_a_wait_of_any_length_is_no_error() -> None:
    event = threading.Event()
    threading.Timer(0.05, event.set).start()
    assert SYSTEM_CLOCK.wait(event, 10**18)


def test_l35_a_file_system_without_sizes_is_not_full() -> None:
    assert measure_used_ratio(Path("/proc")) == 0.0


def test_an_address_that_no_broker_has_is_nothing_to_forget(
    caplog: pytest.LogCaptureFixture,
) -> None:
    brokers = RegisteredBrokers(ManualClock())
    brokers.unregister("b", "9.9.9.9:9")
    said = Registration(
        cluster="c", name="b", address="1.1.1.1:1", broker_id=0, version=DataVersion(), topics={}
    )
    brokers.register(said, NotingSession("b"))
    with caplog.at_level("INFO"):
        brokers.unregister("b", "9.9.9.9:9")
        assert "has gone" not in caplog.text
        brokers.unregister("b", "1.1.1.1:1")
        assert "has gone" in caplog.text
