"""Tests of parsing tier URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tieredstore.errors import Invalid
from tieredstore.tier_url import TierUrl, as_url, parse_tier_url, show_url


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("file:///a/b", TierUrl("file", "", "/a/b", {})),
        ("file:///a%20b/é", TierUrl("file", "", "/a b/é", {})),
        ("file:///what?#1", TierUrl("file", "", "/what?#1", {})),
        ("s3://bucket", TierUrl("s3", "bucket", "", {})),
        ("s3://b/p/q/", TierUrl("s3", "b", "/p/q/", {})),
        (
            "s3://b/p?endpoint=http://h:1/x&region=r&empty=",
            TierUrl("s3", "b", "/p", {"endpoint": "http://h:1/x", "region": "r", "empty": ""}),
        ),
        ("s3://b/a%2Fb%3F?e=a%26b", TierUrl("s3", "b", "/a/b?", {"e": "a&b"})),
    ],
)
def test_a_url_has_parts(text: str, expected: TierUrl) -> None:
    assert parse_tier_url(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/a/b",
        "s3:/b",
        "://x",
        "1s://x",
        "s3://u:p@b/x",
        "s3://b?x",
        "s3://b?a=1&a=2",
        "s3://b#f",
        "s3://[b/x",
    ],
)
def test_what_is_no_url_of_a_tier_is_refused(text: str) -> None:
    with pytest.raises(Invalid):
        parse_tier_url(text)


def test_a_path_becomes_the_url_of_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_url("a b") == as_url(Path("a b")) == f"file://{tmp_path}/a%20b"
    assert as_url("./s3:b") == f"file://{tmp_path}/s3:b"
    for text in ("file:///a", "s3://b?x=1", "s3:b", "memory:", ""):
        assert as_url(text) == text


def test_a_shown_url_has_neither_query_nor_user() -> None:
    assert str(parse_tier_url("s3://b/p?endpoint=hush")) == "s3://b/p"
    assert show_url("s3://u:hush@b/p?x=hush") == "s3://…@b/p"
    assert show_url("s3://b/p#hush") == "s3://b/p"
    assert show_url("file:///a?b") == "file:///a?b"
