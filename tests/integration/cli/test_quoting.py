"""Folders may have any name. A URL is percent-decoded once, and a path is used unchanged."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest

import tieredstore
from tests.kit.command_line import tieredstore as run
from tests.kit.tier_builder import BuiltTier, small_tier
from tieredstore.spark.options import parse_options
from tieredstore.tier_url import file_url, parse_tier_url, show_url

NAMES = ["per%20cent", "ha#sh", "a b", "qu?x=1&y", "ü €", "100%", "a+b", "q'\"x"]


@pytest.fixture(params=NAMES)
def built(request: pytest.FixtureRequest, tmp_path: Path) -> BuiltTier:
    folder = tmp_path / request.param
    folder.mkdir()
    return small_tier(folder)


def test_a_tier_is_found_by_url_and_by_path(built: BuiltTier) -> None:
    folder = built.root / "tier"
    url = file_url(folder)
    assert parse_tier_url(url).path == str(folder)
    assert built.provider.url == url
    assert tieredstore.open(url).scan("orders").count_rows() == 16
    assert tieredstore.open(f"file://{quote(str(folder))}").scan("orders").count_rows() == 16
    options = {"path": str(folder), "subscribe": "orders"}
    for path in (str(folder), url, url.replace("file://", "file:")):
        location = parse_options({**options, "path": path}).tier()
        assert location.config.tier_file_path == str(folder)
    assert tieredstore.open(str(folder)).scan("orders").count_rows() == 16  # as it stands
    assert show_url(str(folder)) == str(folder)


def test_targets_of_jobs_have_the_names_that_were_given(built: BuiltTier) -> None:
    root, url = built.root, file_url(built.root / "tier")
    export = ["export", "--tier", url, "--topics", "*", "--format", "parquet", "--workers", "1"]
    for target in (str(root / "path %41"), file_url(root / "url %41")):
        assert run(*export, "--to", target).code == 0
    copy = file_url(root / "copy %41")
    found = run("copy", "--from", url, "--to", copy, "--to-state", str(root / "s"))
    assert found.code == 0
    assert tieredstore.open(copy).scan("orders").count_rows() == 16
    names = {path.name for path in root.iterdir()}
    assert {"path %41", "url %41", "copy %41"} <= names
    assert not [name for name in names if name.endswith(" A")]


def test_a_delta_table_is_refused_only_where_delta_rs_would_look_elsewhere(
    built: BuiltTier,
) -> None:
    url = file_url(built.root / "tier")
    target = built.root / "delta"
    export = ["export", "--tier", url, "--topics", "orders", "--format", "delta", "--workers", "1"]
    for to in (str(target), file_url(target)):
        found = run(*export, "--to", to)
        if "%20" in str(target):
            assert found.code != 0
            assert "delta-rs decodes the %XX" in found.err
            assert not target.exists()
        else:
            assert found.code == 0
            assert list(target.rglob("*.parquet"))
    assert {path.name for path in built.root.iterdir()} <= {"tier", "state", "delta"}


def test_names_that_are_not_utf_8_have_urls_too(tmp_path: Path) -> None:
    folder = tmp_path / b"latin-\xfc".decode(errors="surrogateescape")
    assert file_url(folder).endswith("/latin-%FC")
    assert parse_tier_url(file_url(folder)).path == str(folder)


def test_a_url_is_itself_again() -> None:
    for url in ("s3://bucket/a%20b/%25", "gs://b/%C3%BC"):
        assert parse_tier_url(url).quoted == url
