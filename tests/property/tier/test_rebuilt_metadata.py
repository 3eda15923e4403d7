"""Metadata is lost and rebuilt between any two failures. No message is lost or duplicated."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.tier.flat import BROKER, KEY, TableMetadata, bodies
from tests.kit.tier.hostile import Fate, World, body_of, list_bodies
from tieredstore.errors import TieredStoreError
from tieredstore.jobs.metadata.found import Found
from tieredstore.jobs.metadata.index import topic_ids
from tieredstore.jobs.metadata.queues import find_queue
from tieredstore.scan.findings import Severity
from tieredstore.scan.listing import load_catalogue
from tieredstore.testing.faults import SimulatedCrash

_FATES = st.sampled_from([Fate.WELL] * 4 + list(Fate))
_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["1", "2", "3", "5", "9", "restart", "maintain", "lost"]),
        st.lists(_FATES, max_size=12),
    ),
    min_size=1,
    max_size=8,
)


def lose(world: World) -> None:
    """End the process and delete its metadata. Only the tier is left."""
    world.dispatcher = None
    world.client.is_calm = True
    world.client.land(1 << 60)
    provider = world.provider()
    queues = [find_queue(provider, queue) for queue in load_catalogue(provider).queues]
    damage = [
        finding
        for queue in queues
        for finding in queue.findings
        if finding.severity is Severity.DAMAGE
    ]
    assert damage == []
    ids = topic_ids(sorted({queue.topic for queue in queues}), ())
    world.metadata = TableMetadata()
    Found(BROKER, queues, (), ids, world.clock.now_ms()).fill(world.metadata)
    world.client.is_calm = False


def run(actions: Sequence[tuple[str, list[Fate]]]) -> None:
    world = World()
    world.put(1)
    world.start()
    for action, fates in actions:
        world.client.fates = list(fates)
        try:
            if action == "lost":
                lose(world)
            else:
                world.act(action)
        except TieredStoreError:
            pass
        except SimulatedCrash:
            world.dispatcher = None
    lose(world)
    world.client.is_calm = True
    world.clock.advance(3_600_000)
    world.start()
    for _ in range(2):
        assert world.dispatcher is not None
        outcomes = world.dispatcher.scan(force=True)
    assert [outcome.error for outcome in outcomes if outcome.error] == []
    wanted = [(offset, body_of(offset)) for offset in range(world.count)]
    file = world.store.get(*KEY)
    assert file is not None
    assert bodies(file) == wanted
    assert file.holes == []
    assert list_bodies(world) == wanted


@settings(deadline=None, max_examples=150, suppress_health_check=list(HealthCheck))
@given(_ACTIONS)
def test_no_message_is_lost_or_doubled(actions: list[tuple[str, list[Fate]]]) -> None:
    run(actions)
