"""`tieredstore topic list` queries a broker without topics."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.kit.command_line import tieredstore
from tieredstore.cli.options.broker import Place


@contextmanager
def talk_to_nothing(_: Place) -> Iterator[SimpleNamespace]:
    yield SimpleNamespace(list_topics=list)


@pytest.mark.parametrize(("form", "shown"), [("table", ""), ("ndjson", ""), ("json", "[]")])
def test_that_there_is_none_is_said_beside_the_output(
    monkeypatch: pytest.MonkeyPatch, form: str, shown: str
) -> None:
    monkeypatch.setattr("tieredstore.cli.verbs.brokers.talk_to", talk_to_nothing)
    ran = tieredstore("topic", "list", "--at", "h:1", "--output", form)
    assert (ran.code, ran.err) == (0, "tieredstore: the broker at h:1 has no topic\n")
    assert "".join(ran.out.split()) == shown.strip()
