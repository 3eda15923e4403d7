"""This project reads Java's local store in the public-a fixture. Every query of the manifest is
checked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit import public_a as kit
from tests.kit.oracle import Oracle
from tieredstore.local.message_store import DefaultMessageStore

MOST_OF_ONE_QUERY = 64
"""Maximum number of messages that a local key query returns, in Java and here (maxMsgsNumBatch)."""


@pytest.fixture(scope="module")
def oracle(public_a_manifest: dict[str, Any]) -> Oracle:
    return Oracle(public_a_manifest)


@pytest.fixture(scope="module")
def store(
    public_a: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[DefaultMessageStore]:
    root = tmp_path_factory.mktemp("local")
    shutil.copytree(public_a / "store", root / "store")
    for path in (root / "store").rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    store = DefaultMessageStore(kit.config_at(public_a, root))
    store.load()
    store.start()
    yield store
    store.shutdown()


def test_every_local_get_is_answered_right(
    store: DefaultMessageStore, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    rows = [r for r in public_a_manifest["queries"]["getMessage"] if r["store"] == "local"]
    assert len(rows) == 240
    assert kit.wrong_gets(rows, oracle, store.get_message, low={}, overshoot=False) == []


def test_every_local_time_query_is_answered_right(
    store: DefaultMessageStore, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    rows = public_a_manifest["queries"]["offsetByTime"]
    assert kit.wrong_times(rows, oracle, store.get_offset_in_queue_by_time, low={}) == []


def test_every_local_key_query_is_answered_right(
    store: DefaultMessageStore, oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    rows = public_a_manifest["queries"]["byKey"]
    wrong = kit.wrong_queries(
        rows, oracle, store.query_message, low={}, most=MOST_OF_ONE_QUERY, is_ordered=False
    )
    assert wrong == []


def test_difference_e20_where_javas_recorded_local_answers_are_wrong(
    oracle: Oracle, public_a_manifest: dict[str, Any]
) -> None:
    """All wrong answers of Java's local store have a known reason. The test counts the wrong
    answers by the number of the difference in `docs/differences.md`."""
    found = {
        "get": kit.java_wrong_gets(public_a_manifest, oracle, "local"),
        "time": kit.java_wrong_times(public_a_manifest, oracle, "local"),
        "key": kit.java_wrong_queries(public_a_manifest, oracle, "local", most=MOST_OF_ONE_QUERY),
    }
    assert found == {"get": {}, "time": {}, "key": {"E20": 13}}
