"""Messages are dispatched to an object store that fails in every way. Each message is in the tier
exactly once. After any faults, a last run without faults must upload all messages in order. A
reader with the metadata and a reader with only a listing both find them. The tier never has a
message that was not sent."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.kit.tier.flat import KEY, bodies
from tests.kit.tier.hostile import Fate, World, body_of, list_bodies
from tieredstore.errors import TieredStoreError
from tieredstore.testing.faults import SimulatedCrash

_FATES = st.sampled_from([Fate.WELL] * 4 + list(Fate))
_ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["1", "2", "3", "5", "9", "restart", "maintain", "wait"]),
        st.lists(_FATES, max_size=12),
    ),
    min_size=1,
    max_size=8,
)


def run(actions: Sequence[tuple[str, list[Fate]]]) -> None:
    world = World()
    world.put(1)
    world.start()
    for action, fates in actions:
        world.client.fates = list(fates)
        try:
            world.act(action)
        except TieredStoreError:
            pass
        except SimulatedCrash:
            world.dispatcher = None
    world.client.is_calm = True
    world.client.land(1 << 60)
    world.clock.advance(3_600_000)
    if world.dispatcher is None:
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
    world.chunks.run_maintenance()
    world.clock.advance(3_600_000)
    world.chunks.run_maintenance()
    world.start()
    opened = world.store.get(*KEY)
    assert opened is not None
    assert bodies(opened) == wanted
    assert list_bodies(world) == wanted


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(_ACTIONS)
def test_every_message_is_in_the_tier_exactly_once(
    actions: list[tuple[str, list[Fate]]],
) -> None:
    run(actions)
