"""Hypothesis strategies for the property tests of the message formats."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable

from hypothesis import strategies as st

from tieredstore.errors import Corrupt
from tieredstore.message.encoding import Message
from tieredstore.message.hosts import encode_host
from tieredstore.message.properties import encode_properties

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NO_SURROGATES = st.characters(exclude_categories=["Cs"])
TEXT = st.text(NO_SURROGATES, max_size=20)
NAME = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8
)
VALUE = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x02"), min_size=1, max_size=20
)
PROPERTIES = st.dictionaries(NAME | st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY"]), VALUE)
HOST = st.builds(
    encode_host,
    (st.ip_addresses(v=4) | st.ip_addresses(v=6)).map(
        lambda address: str(ipaddress.ip_address(int(address)) if address.version == 4 else address)
    ),
    st.integers(0, 2**31 - 1),
)
TOPIC = TEXT | st.text("t", min_size=120, max_size=140)

MESSAGE = st.builds(
    Message,
    topic=TOPIC,
    body=st.binary(max_size=200),
    queue_id=I32,
    properties=PROPERTIES.map(encode_properties) | st.binary(max_size=50),
    flag=I32,
    sys_flag=I32,
    born_timestamp_ms=I64,
    born_host=HOST,
    reconsume_times=I32,
    prepared_transaction_offset=I64,
)


def corrupt_or_none(call: Callable[[], object]) -> Corrupt | None:
    """Return the Corrupt error of a call, or None if it succeeds. Any other error fails the
    test."""
    try:
        call()
    except Corrupt as error:
        return error
    return None
