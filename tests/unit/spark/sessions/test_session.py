"""Tests of the errors raised when a session cannot start."""

from __future__ import annotations

import sys

import pytest

from tieredstore.errors import Invalid
from tieredstore.spark import session


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(Invalid) as raised:
        session()
    expected = "Spark needs pyspark, which is not installed: pip install 'tieredstore[spark]'"
    assert str(raised.value) == expected
