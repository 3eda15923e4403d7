"""After any history of the tier, scans return the rows of a plain list."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tieredstore
from tests.kit.histories import (
    COLUMNS,
    QueuePlan,
    build,
    filters,
    histories,
    rows_of,
)
from tieredstore.errors import Corrupt


def arguments(chosen: dict[str, Any]) -> dict[str, Any]:
    """Return the filters as arguments of `scan`."""
    names = {"since_ms": "since", "until_ms": "until"}
    return {names.get(name, name): value for name, value in chosen.items()}


@given(st.data(), histories(), st.booleans())
def test_a_scan_gives_the_rows_of_a_plain_list(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    plans: list[QueuePlan],
    with_state: bool,
) -> None:
    history = build(tmp_path_factory.mktemp("history"), plans)
    chosen = data.draw(filters(plans))
    tier = tieredstore.open(history.url, state=history.state if with_state else None)
    wanted = history.rows(**chosen)
    options = arguments(chosen)
    skipped = tier.scan(columns=COLUMNS, on_finding=lambda _: None, **options)
    assert rows_of(skipped.batches()) == wanted
    try:
        found = rows_of(tier.scan(columns=COLUMNS, **options).batches())
    except Corrupt:
        assert history.is_damaged
    else:
        assert found == wanted
