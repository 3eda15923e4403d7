"""For any properties, the columnar code and the scalar code find the same keys."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tieredstore.local.index import keys as index_keys
from tieredstore.local.index.keys import TopicPrefixes, index_entries, index_keys_of
from tieredstore.message.hashes import local_key_hash, tags_code
from tieredstore.message.properties import find_text

TOPICS = ("T", "Topic-2", "%RETRY%g", "thème")
NAMES = st.sampled_from(
    ["KEYS", "TAGS", "UNIQ_KEY", "KEY", "KEYSX", "XTAGS", "UNIQ_KEYS", "WAIT", "UNIQ", ""]
)
TEXT = st.text(alphabet="ab Z\t09-é\U0001f600=", max_size=12)
PAIRS = st.lists(st.tuples(NAMES, TEXT), max_size=6)
ENDS = st.sampled_from([b"\x02", b""])
RAW = st.binary(max_size=30).map(lambda data: bytes(byte & 0x7F for byte in data))


def _encode(pairs: list[tuple[str, str]], end: bytes) -> bytes:
    return b"\x02".join(f"{name}\x01{value}".encode() for name, value in pairs) + end


PROPERTIES = st.one_of(st.builds(_encode, PAIRS, ENDS), RAW)


@given(
    rows=st.lists(st.tuples(st.integers(0, len(TOPICS) - 1), PROPERTIES), min_size=1, max_size=60),
    repeat=st.integers(1, 3),
)
def test_columns_and_loop_agree(rows: list[tuple[int, bytes]], repeat: int) -> None:
    rows = (rows * repeat * 40)[: max(40, len(rows) * repeat)]
    prefixes = TopicPrefixes()
    for number, topic in enumerate(TOPICS):
        prefixes.put(number, topic)
    numbers = np.array([number for number, _ in rows], dtype=np.int64)
    properties = [data for _, data in rows]
    found = index_entries(prefixes, numbers, properties)
    codes, pairs = [], []
    for row, (number, data) in enumerate(rows):
        codes.append(tags_code(find_text(data, b"TAGS")))
        pairs += [(row, local_key_hash(TOPICS[number], key)) for key in index_keys_of(data)]
    assert found.tags_codes.tolist() == codes
    assert list(zip(found.rows.tolist(), found.hashes.tolist(), strict=True)) == pairs


def test_many_blocks_are_one_answer() -> None:
    prefixes = TopicPrefixes()
    prefixes.put(0, "T")
    properties = [b"UNIQ_KEY\x01%032d\x02KEYS\x01a%d b\x02" % (i, i) for i in range(12_000)]
    assert sum(map(len, properties)) > index_keys._BLOCK_BYTES
    found = index_entries(prefixes, np.zeros(12_000, dtype=np.int64), properties)
    assert found.rows.tolist() == [row for row in range(12_000) for _ in range(3)]
    for row in (0, 1, 5000, 11_999):
        keys = index_keys_of(properties[row])
        hashes = found.hashes[3 * row : 3 * row + 3].tolist()
        assert hashes == [local_key_hash("T", key) for key in keys]
