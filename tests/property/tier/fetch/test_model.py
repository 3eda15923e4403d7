"""Gets are compared with a list, for any sizes of blocks and cache, and for any order of appends,
expiry and reads."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.kit.tier.fetch import FIRST_TIME_MS, TOPIC, AtOnce, Tier
from tieredstore.contracts.message_store import BoundaryType, GetMessageStatus
from tieredstore.message.tag_filter import TagFilter

TAGS = ("TagA", "TagB", "TagC")
STEP_MS = 10


class GetsAgainstAList(RuleBasedStateMachine):
    """Gets from a tier are compared with a list. `present` is the model: the ascending queue
    offsets that have a message."""

    @initialize(
        first=st.integers(0, 50),
        segment_bytes=st.integers(200, 5000),
        units=st.integers(1, 40),
        block_count=st.integers(1, 64),
        block_bytes=st.integers(1, 20_000),
        cache_bytes=st.integers(1, 400_000),
        is_cached=st.booleans(),
        is_read_ahead=st.booleans(),
    )
    def begin(
        self,
        first: int,
        segment_bytes: int,
        units: int,
        block_count: int,
        block_bytes: int,
        cache_bytes: int,
        is_cached: bool,
        is_read_ahead: bool,
    ) -> None:
        self.path = Path(tempfile.mkdtemp())
        self.tier = Tier(
            self.path,
            commit_log_max_size_bytes=segment_bytes,
            consume_queue_max_size_bytes=20 * units,
            read_ahead_message_count_threshold=block_count,
            read_ahead_message_size_threshold_bytes=block_bytes,
            read_ahead_cache_size_bytes=cache_bytes,
            read_ahead_cache_enable=is_cached,
            max_transfer_bytes_in_memory=2000,
        )
        if is_read_ahead:
            self.tier.new_fetcher(ahead=AtOnce())
        self.tier.add(1, first=first, tags=TAGS, step_ms=STEP_MS)
        self.present = [first]
        self.low, self.high = first, first + 1

    @rule(count=st.integers(1, 60))
    def add(self, count: int) -> None:
        self.tier.add(count, tags=TAGS, step_ms=STEP_MS)
        self.present += range(self.high, self.high + count)
        self.high += count

    @rule(count=st.integers(1, 30))
    def leave_a_hole(self, count: int) -> None:
        self.tier.file().skip_to(self.high + count)
        self.high += count
        self.tier.add(1, tags=TAGS, step_ms=STEP_MS)
        if not self.present:  # everything had expired: the queue begins behind the hole
            self.low = self.high
        self.present.append(self.high)
        self.high += 1

    @rule(share=st.floats(0, 1))
    def expire(self, share: float) -> None:
        file = self.tier.file()
        offset = self.low + int((self.high - self.low) * share)
        file.expire(FIRST_TIME_MS + offset * STEP_MS)
        self.low = file.consume_queue_min_offset
        assert self.low <= max(offset, self.low)
        self.present = [n for n in self.present if n >= self.low]

    @rule(delta_ms=st.integers(0, 20_000))
    def let_time_pass(self, delta_ms: int) -> None:
        self.tier.clock.advance(delta_ms)

    @rule(
        share=st.floats(-0.1, 1.1),
        max_count=st.integers(1, 70),
        tags=st.none() | st.sampled_from(["TagA", "TagA || TagC", "TagX"]),
        is_async=st.booleans(),
    )
    def get(self, share: float, max_count: int, tags: str | None, is_async: bool) -> None:
        offset = self.low + int((self.high - self.low) * share)
        arguments = ("g", TOPIC, 0, offset, max_count, TagFilter.parse(tags) if tags else None)
        fetcher = self.tier.fetcher
        if is_async:
            result = asyncio.run(fetcher.get_message_async(*arguments))
        else:
            result = fetcher.get_message(*arguments)
        assert (result.min_offset, result.max_offset) == (self.low, self.high)
        found = [message.queue_offset for message in result.messages]
        following = result.next_begin_offset
        if offset < self.low:
            assert (result.status, following) == (GetMessageStatus.OFFSET_TOO_SMALL, self.low)
        elif offset == self.high:
            assert (result.status, following) == (GetMessageStatus.OFFSET_OVERFLOW_ONE, self.high)
        elif offset > self.high:
            assert (result.status, following) == (GetMessageStatus.OFFSET_OVERFLOW_BADLY, self.high)
        else:
            wanted = [n for n in self.present if tags is None or TAGS[n % 3] in tags]
            passed = [n for n in wanted if offset <= n < following]
            assert found == passed
            assert len(found) <= max_count
            assert offset < following <= self.high
            assert (result.status is GetMessageStatus.FOUND) == bool(found)
            for message in result.messages:
                assert message.uniq_key == f"u{message.queue_offset}"

    @rule(
        share=st.floats(0, 1),
        max_count=st.integers(1, 20),
        pulls=st.integers(2, 12),
    )
    def read_on(self, share: float, max_count: int, pulls: int) -> None:
        """Pull repeatedly, as a consumer does. Each message must come exactly once."""
        begin = offset = self.low + int((self.high - self.low) * share)
        found: list[int] = []
        for _ in range(pulls):
            if offset >= self.high:
                break
            result = self.tier.get(offset, max_count)
            found += [message.queue_offset for message in result.messages]
            assert result.next_begin_offset > offset
            offset = result.next_begin_offset
        assert found == [n for n in self.present if begin <= n < offset]

    @precondition(lambda self: self.present)
    @rule(share=st.floats(-0.1, 1.1))
    def search_by_time(self, share: float) -> None:
        offset = self.low + int((self.high - self.low) * share)
        time_ms = FIRST_TIME_MS + offset * STEP_MS
        later = [n for n in self.present if n >= offset]
        earlier = [n for n in self.present if n <= offset]
        search = self.tier.fetcher.offset_by_time
        lower = search(TOPIC, 0, time_ms, BoundaryType.LOWER)
        upper = search(TOPIC, 0, time_ms, BoundaryType.UPPER)
        assert lower == (later[0] if later else self.high)
        assert upper == (earlier[-1] if earlier else self.low)

    def teardown(self) -> None:
        if hasattr(self, "path"):
            shutil.rmtree(self.path)


GetsAgainstAList.TestCase.settings = settings(
    max_examples=15, stateful_step_count=25, deadline=None
)
TestGetsAgainstAList = GetsAgainstAList.TestCase
