"""Our hashes equal Java's (`docs/formats/ids-and-hashes.md`)."""

from __future__ import annotations

import numpy as np
import pytest

from tieredstore.message import hashes

INT_MIN_KEY = "!ybriwe"
"""A key whose index text `T#!ybriwe` has the hash -2^31."""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TopicA#k1", -1903240649),
        ("TopicTest#MessageKey", 638347386),
        ("T#" + INT_MIN_KEY, -(2**31)),
        ("東京", 0x6771 * 31 + 0x4EAC),
        ("\U0001f600", 55357 * 31 + 56832),  # two UTF-16 units
        ("\ud800", 0xD800),
    ],
)
def test_string_hash(text: str, expected: int) -> None:
    assert hashes.java_string_hash(text) == expected
    assert hashes.java_string_hashes([text] * 20).tolist() == [expected] * 20


def test_long_texts_hash_as_the_definition_says() -> None:
    for length in (255, 256, 257, 1000, 200_000):
        text = ("x\u6771" * length)[:length]
        value = 0
        for unit in text:
            value = (31 * value + ord(unit)) % 2**32
        expected = value - 2**32 if value >= 2**31 else value
        assert hashes.java_string_hash(text) == expected
        assert hashes.java_string_hashes([text, "a"] * 20).tolist() == [expected, 97] * 20


def test_texts_longer_than_the_tables_hash_with_their_topic() -> None:
    keys = ["k", "y" * 131_071, "z" * 131_072, "", "x" * 300_000] * 5
    expected = [hashes.tiered_key_hash("T", key) for key in keys]
    assert hashes.tiered_key_hashes("T", keys).tolist() == expected


def test_no_texts_give_no_hashes() -> None:
    assert hashes.java_string_hashes([]).tolist() == []
    assert hashes.tiered_key_hashes("T", []).dtype == np.int32


def test_index_hash_is_the_absolute_value_and_zero_for_the_smallest() -> None:
    assert hashes.local_key_hash("TopicA", "k1") == 1903240649
    assert hashes.tiered_key_hash("TopicA", "k1") == 1903240649
    values = np.array([0, 5, -5, 2**31 - 1, -(2**31) + 1, -(2**31)], dtype=np.int32)
    expected = [0, 5, 5, 2**31 - 1, 2**31 - 1, 0]
    assert hashes.index_hashes(values).tolist() == expected
    assert [hashes.index_hash(value) for value in values.tolist()] == expected


def test_defect_d13_the_smallest_hash_is_indexed_and_found() -> None:
    assert hashes.tiered_key_hash("T", INT_MIN_KEY) == 0
    assert hashes.tiered_key_hashes("T", [INT_MIN_KEY] * 20).tolist() == [0] * 20
    # The rule of later Java versions gives the same slot, so they find it as well.
    assert hashes.tiered_key_hash_candidates("T", INT_MIN_KEY) == (0,)


def test_candidates_hold_the_form_of_later_versions() -> None:
    assert hashes.tiered_key_hash_candidates("TopicTest", "MessageKey") == (638347386,)
    assert hashes.tiered_key_hash_candidates("TopicA", "k1") == (
        1903240649,
        -1903240649 & 0x7FFFFFFF,
    )


def test_tags_code_is_the_hash_of_the_whole_value() -> None:
    assert hashes.tags_code("TagA") == 2598919
    assert hashes.tags_code("TagA || TagB") == hashes.java_string_hash("TagA || TagB")
    assert hashes.tags_code(None) == 0
    assert hashes.tags_code("") == 0


def test_s81_no_cache_keeps_a_long_text() -> None:
    """Long strings are not cached, because a client may query a topic name with millions of
    characters."""
    for size, kept in ((255, 1), (256, 0)):
        text = "x" * size
        before = hashes._short_prefix_hash.cache_info(), hashes._short_tags_code.cache_info()
        assert hashes.topic_prefix_hash(text) == hashes.java_string_hash(text + "#") & 0xFFFFFFFF
        assert hashes.tags_code(text) == hashes.java_string_hash(text)
        after = hashes._short_prefix_hash.cache_info(), hashes._short_tags_code.cache_info()
        assert [b.misses - a.misses for a, b in zip(before, after, strict=True)] == [kept, kept]
