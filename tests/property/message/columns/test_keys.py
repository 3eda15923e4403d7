"""The columnar code and the scalar code split the keys of a batch in the same way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.kit.record_forms import record_positions
from tieredstore.message.columns import keys as key_columns
from tieredstore.message.columns.keys import keys_of_batch
from tieredstore.message.columns.records import RecordColumns, index_keys, record_columns
from tieredstore.message.encoding import Message, encode_record

names = st.sampled_from(["KEYS", "UNIQ_KEY", "XKEYS", "KEYS2", "TAGS", "A_UNIQ_KEY", "", "\0"])
values = st.one_of(
    st.sampled_from(["", " ", "a", "a b", "a  a b", "u", " a", "\t", "KEYS\x01x", "é", "a\x01"]),
    st.text(alphabet="ab UNIQ_KEYS\x01", max_size=12),
)
properties = st.lists(st.tuples(names, values), max_size=5).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
)
cut = st.integers(0, 3)


@pytest.fixture(autouse=True)
def columns_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_columns, "SCALAR_LIMIT", 1)


def batch(all_properties: list[bytes]) -> tuple[bytes, RecordColumns]:
    data = b"".join(
        encode_record(Message("T", b"body", properties=found), offset, 0, 1)
        for offset, found in enumerate(all_properties)
    )
    return data, record_columns(data, record_positions(data))


def check(all_properties: list[bytes]) -> None:
    data, found = batch(all_properties)
    wanted_rows, wanted = index_keys(data, found)
    rows, keys = keys_of_batch(data, found)
    assert keys == wanted
    assert rows.dtype == np.int64
    assert rows.tolist() == wanted_rows.tolist()


@given(st.lists(st.tuples(properties, cut).map(lambda p: p[0][: len(p[0]) - p[1]]), max_size=8))
def test_any_batch_has_the_same_keys(all_properties: list[bytes]) -> None:
    check(all_properties)


@given(
    st.lists(
        st.tuples(st.text("abc", max_size=3), st.lists(st.text("abc", max_size=2), max_size=4)),
        min_size=1,
        max_size=12,
    )
)
def test_ordinary_batches_have_the_same_keys(messages: list[tuple[str, list[str]]]) -> None:
    check(
        [
            f"KEYS\x01{' '.join(keys).strip()}\x02UNIQ_KEY\x01{uniq}\x02".encode()
            for uniq, keys in messages
        ]
    )
