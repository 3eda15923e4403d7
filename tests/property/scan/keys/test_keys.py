"""Scans with `keys=` are compared with a list. The index may cover any range of a queue's
messages."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

import tieredstore
from tests.kit.tier_builder import START_MS, TierBuilder, message
from tieredstore.scan.keys import plan as keys_plan

KEYS = ("a", "b", "c")


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_message_with_a_key_is_found_once(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 24), "messages")
    keys = data.draw(
        st.lists(st.lists(st.sampled_from(KEYS), unique=True), min_size=count, max_size=count)
    )
    hours = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count), "store times")
    first, until = sorted(data.draw(st.tuples(st.integers(0, count), st.integers(0, count))))
    wanted = data.draw(st.lists(st.sampled_from(KEYS), min_size=1, unique=True), "wanted")
    since = data.draw(st.none() | st.integers(0, 9), "since")
    with tempfile.TemporaryDirectory() as folder:
        builder = TierBuilder(Path(folder), messages_per_segment=data.draw(st.integers(1, 9)))
        builder._times = iter([START_MS + hour * 3_600_000 for hour in hours])
        stored = builder.queue(
            "t", 0, [message("t", 0, n, keys=of_one) for n, of_one in enumerate(keys)]
        )
        if first < until:
            builder.built.stored["t", 0] = stored[first:until]
            builder.index()
        before = keys_plan.SMALL_QUEUE_BYTES, keys_plan._GAP_BYTES
        keys_plan.SMALL_QUEUE_BYTES = 0
        keys_plan._GAP_BYTES = data.draw(st.sampled_from([0, 200, 1 << 20]), "gap")
        try:
            scan = tieredstore.open(builder.built.url).scan(
                "t",
                keys=wanted,
                columns=["queue_offset"],
                since=None if since is None else START_MS + since * 3_600_000,
            )
            found = scan.to_arrow()["queue_offset"].to_pylist()
        finally:
            keys_plan.SMALL_QUEUE_BYTES, keys_plan._GAP_BYTES = before
    assert found == [
        n
        for n in range(count)
        if not set(wanted).isdisjoint(keys[n]) and (since is None or hours[n] >= since)
    ]
