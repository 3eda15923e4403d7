"""After any history of lite topics, consumers get each message once, and no deleted one."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kit.lite_tier import LiteTier, queue_of
from tieredstore.contracts.message_store import GetMessageStatus
from tieredstore.message.lite import find_light_offset

LITE = st.tuples(st.sampled_from(["P", "P2"]), st.sampled_from("ab"))
SIZES = st.sampled_from([1, 300, 1500])
STEPS = st.one_of(
    st.tuples(st.just("put"), st.lists(st.tuples(LITE, SIZES), min_size=1, max_size=5)),
    st.tuples(st.just("put"), st.lists(st.tuples(LITE, SIZES), min_size=1, max_size=5)),
    st.tuples(st.sampled_from(["upload", "run", "clean", "reopen", "crash", "later"])),
    st.tuples(st.just("delete"), LITE),
    st.tuples(st.just("delete parent"), st.sampled_from(["P", "P2"])),
    st.tuples(st.just("read"), st.integers(0, 4), st.integers(1, 9)),
)
Message = tuple[int, bytes]


class World:
    """A store, and the messages that its lite topics have."""

    def __init__(self, root: Path, **keys: Any) -> None:
        self.it = LiteTier(root, "P2", **keys)
        self.found: dict[tuple[str, str], list[Message]] = {}
        self._count = 0

    def put(self, parent: str, lite: str, size: int) -> None:
        self._count += 1
        body = b"%d " % self._count + bytes(size)
        self.it.put_lite(lite, body, parent=parent, queue_id=self._count % 3)
        end = self.it.store.get_max_offset_in_queue(queue_of(lite, parent), 0)
        messages = self.found.setdefault((parent, lite), [])
        assert not messages or messages[-1][0] == end - 2
        messages.append((end - 1, body))

    def run(self, step: tuple[Any, ...]) -> None:
        it = self.it
        match step:
            case ("put", messages):
                for (parent, lite), size in messages:
                    self.put(parent, lite, size)
            case ("upload",):
                it.upload()
            case ("run",):
                it.upload_runs()
            case ("clean",):
                it.fill()
                it.upload()
                it.clean()
            case ("reopen",):
                it.reopen()
            case ("crash",):
                with mock.patch.object(it.lite, "_write"):
                    it.close()
                it.open()
            case ("later",):
                it.clock.advance(100_000)
                it.lite.run_once()
            case ("delete", (parent, lite)) if (parent, lite) in self.found:
                it.store.delete_topics({queue_of(lite, parent)})
                del self.found[parent, lite]
            case ("delete parent", parent):
                gone = [key for key in self.found if key[0] == parent]
                it.store.delete_topics({parent, *(queue_of(key[1], parent) for key in gone)})
                for key in gone:
                    del self.found[key]
            case ("read", skipped, count):
                self.check(skipped, count)

    def check(self, skipped: int = 0, count: int = 32) -> None:
        for (parent, lite), messages in self.found.items():
            start = 0 if not skipped else max(messages[-1][0] + 1 - skipped, 0)
            wanted = [one for one in messages if one[0] >= start]
            assert self.read(parent, lite, start, count) == wanted

    def read(self, parent: str, lite: str, offset: int, count: int) -> list[Message]:
        queue, found, retries = queue_of(lite, parent), list[Message](), 0
        while True:
            result = self.it.get(lite, offset, count, parent)
            if result.status is GetMessageStatus.OFFSET_FOUND_NULL:
                retries += 1
                assert retries < 4, result.fault
                self.it.lite.run_once()  # no run has the message yet
                continue
            for message in result.messages:
                at = find_light_offset(queue, message)
                assert at is not None
                found.append((at, bytes(message.body)))
            if result.next_begin_offset <= offset:
                return found
            offset = result.next_begin_offset


@settings(max_examples=25)
@given(st.lists(STEPS, min_size=5, max_size=25), st.booleans())
def test_lite_topics_have_their_messages_after_any_history(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any], has_small_segments: bool
) -> None:
    keys = {"tieredStoreCommitLogMaxSize": 3000} if has_small_segments else {}
    world = World(tmp_path_factory.mktemp("lite"), **keys)
    try:
        for step in steps:
            world.run(step)
        world.check()
        world.it.reopen()
        world.check()
    finally:
        world.it.close()
