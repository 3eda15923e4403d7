"""Topics of a tiered store are written, uploaded, deleted and recreated in any order, with restarts
and crashes (fault L15). The store is compared with a simple model."""

from __future__ import annotations

import shutil
import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    rule,
    run_state_machine_as_test,
)

from tests.kit.tiered_local import TieredLocal

TOPICS = ("A", "B")
FOREVER = (0, 2**63 - 1)


class TieredDeletionModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.world = TieredLocal(Path(self.folder.name) / "w", tieredStorageLevel="FORCE")
        self.begins: dict[str, int] = defaultdict(int)
        self.lives: dict[str, list[bytes]] = {topic: [] for topic in TOPICS}
        self.uploaded: dict[str, int] = dict.fromkeys(TOPICS, 0)
        self.number = 0

    def teardown(self) -> None:
        self.world.close()
        self.folder.cleanup()

    @rule(topic=st.sampled_from(TOPICS), count=st.integers(1, 15), size=st.integers(0, 3000))
    def put(self, topic: str, count: int, size: int) -> None:
        bodies = [b"%d." % (self.number + n) + b"x" * size for n in range(count)]
        self.number += count
        offsets = self.world.put(topic, *bodies, key=f"{topic}{self.begins[topic]}")
        end = self.begins[topic] + len(self.lives[topic])
        assert offsets == [*range(end, end + count)]
        self.lives[topic] += bodies

    @rule()
    def upload(self) -> None:
        self.world.upload()
        self.uploaded = {topic: len(life) for topic, life in self.lives.items()}

    @rule(topics=st.sets(st.sampled_from(TOPICS), min_size=1), both=st.booleans())
    def delete(self, topics: set[str], both: bool) -> None:
        """Delete topics from the local store and from the tier. Without `both`, the process ends
        before it deletes them from the tier."""
        there = [topic for topic in topics if self.lives[topic]]
        if both:
            assert self.world.store.delete_topics(topics) == len(there)
        else:
            assert self.world.local.delete_topics(topics) == len(there)
            self.world.reopen()
        for topic in topics:
            self.begins[topic] += len(self.lives[topic])
            self.lives[topic], self.uploaded[topic] = [], 0

    @rule()
    def expire(self) -> None:
        self.world.store.expiry.run_once()

    @rule()
    def restart(self) -> None:
        self.world.reopen()

    @rule()
    def crash(self) -> None:
        root = self.world.root
        self.world.store.dispatcher.stop()
        self.world.store.expiry.stop()
        self.world.store.index.stop(force=False)
        shutil.copytree(root / "store", root / "killed", ignore=shutil.ignore_patterns("lock"))
        shutil.copytree(root / "tier", root / "killed-tier")
        self.world.close()
        for name, killed in (("store", "killed"), ("tier", "killed-tier")):
            shutil.rmtree(root / name)
            shutil.move(root / killed, root / name)
        self.world.open()

    @invariant()
    def both_sides_hold_the_present_lives_only(self) -> None:
        world = self.world
        metadata = world.store.flat_files.metadata
        for topic, life in self.lives.items():
            begin, uploaded = self.begins[topic], self.uploaded[topic]
            whole = [*enumerate(life, begin)]
            assert world.read(topic, store=world.local) == whole
            # The tier is asked alone. It may have more than the last upload, since scans continue.
            tiered = world.read(topic)
            assert tiered == whole[: len(tiered)]
            assert len(tiered) >= uploaded
            assert life or metadata.topic(topic) is None
            assert world.store.get_max_offset_in_queue(topic, 0) in (0, -1, begin + len(life))
            for other in range(begin):
                assert world.store.query_message(topic, f"{topic}{other}", 9, *FOREVER) == []
            found = world.store.query_message(topic, f"{topic}{begin}", 99, *FOREVER)
            assert {message.queue_offset for message in found} <= {offset for offset, _ in whole}


def test_l15_a_tier_over_topics_deleted_and_made_again_in_any_order() -> None:
    steps = settings(max_examples=15, stateful_step_count=20, deadline=None)
    run_state_machine_as_test(TieredDeletionModel, settings=steps)
