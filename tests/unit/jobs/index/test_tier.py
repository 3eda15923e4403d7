"""Tests of how a job chooses the broker whose index it processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.tier_builder import small_tier
from tieredstore.errors import Invalid
from tieredstore.jobs.index.tier import open_index_tier
from tieredstore.scan.location import locate


def test_a_broker_of_which_the_tier_has_no_queue_is_refused(tmp_path: Path) -> None:
    url = small_tier(tmp_path).url
    with (
        pytest.raises(Invalid, match=r"has no queue of broker 'broker-z' in .*`rebuild metadata`"),
        open_index_tier(locate(url, broker="broker-z")),
    ):
        pass
    with open_index_tier(locate(url, broker="broker-a")) as tier:
        assert [queue.path for queue in tier.queues()]
