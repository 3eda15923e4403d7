"""Any bytes of a tier may change. Gets then raise no error, and omit only the damaged messages."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.tier.fetch import Tier
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.contracts.segment import FileSegmentType
from tieredstore.tier.reading import run

LOG, QUEUE = FileSegmentType.COMMIT_LOG, FileSegmentType.CONSUME_QUEUE
COUNT = 24


@pytest.fixture(scope="module")
def tier(tmp_path_factory: pytest.TempPathFactory) -> Tier:
    tier = Tier(tmp_path_factory.mktemp("damaged"))
    for _ in range(3):
        tier.add(COUNT // 3, body=b"body")
    return tier


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), is_cached=st.booleans(), pull=st.integers(1, 40))
def test_defect_d09_damage_costs_the_damaged_messages_only(
    tier: Tier, data: st.DataObject, is_cached: bool, pull: int
) -> None:
    contents = {kind: tier.provider.content(kind) for kind in (LOG, QUEUE)}
    intact = {kind: bytes(content) for kind, content in contents.items()}
    units = run(tier.file().read_units(0, COUNT))
    places = [(int(unit["physical_offset"]), int(unit["size"])) for unit in units]
    damaged = set()
    try:
        for _ in range(data.draw(st.integers(1, 4))):
            kind = data.draw(st.sampled_from([LOG, QUEUE]))
            at = data.draw(st.integers(0, len(intact[kind]) - 1))
            contents[kind][at] ^= data.draw(st.integers(1, 255))
            if kind is QUEUE:
                damaged.add(at // 20)
            else:
                damaged |= {n for n, (start, size) in enumerate(places) if 0 <= at - start < size}
        tier.new_fetcher(read_ahead_cache_enable=is_cached)
        found, offset = [], 0
        while offset < COUNT:
            result = tier.get(offset, pull)
            assert result.status in (GetMessageStatus.FOUND, GetMessageStatus.NO_MATCHED_MESSAGE)
            assert result.next_begin_offset > offset
            for message in result.messages:
                assert offset <= message.queue_offset < result.next_begin_offset
                found.append(message.queue_offset)
            offset = result.next_begin_offset
        assert found == sorted(set(found))
        assert set(range(COUNT)) - damaged <= set(found)
    finally:
        for kind, content in contents.items():
            content[:] = intact[kind]
