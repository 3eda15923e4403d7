"""LiteQueues never forgets a lite topic with ready messages, and limits the memory that clients can
occupy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.local_stores import plain, put_all
from tests.kit.loops import on_loop
from tests.kit.receiving import Receiving
from tieredstore.broker.clients.session import Subscription
from tieredstore.broker.lite.subscriptions import LiteClient, LiteSubscriptions, OffsetOption
from tieredstore.broker.receive.events import Changed, Given
from tieredstore.broker.receive.lite import LiteQueues
from tieredstore.broker.receive.requests import ReceiveRequest
from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.groups import SubscriptionGroupConfig
from tieredstore.errors import Busy
from tieredstore.message.lite import LiteTopic

CLIENT = LiteClient("L", "C")
REQUEST = ReceiveRequest(
    group="L", topic="P", subscription=Subscription.parse("P", "*"), client_id="C", is_lite=True
)


class LiteLab:
    """Subscriptions and ready lite topics of group L, which is bound to parent topic P."""

    def __init__(self, on: Receiving, **attributes: str) -> None:
        self.on = on
        on.groups.update_group(
            SubscriptionGroupConfig(
                group_name="L", attributes={"lite.bind.topic": "P", **attributes}
            )
        )
        settings = BrokerSettings(max_lite_subscription_count=100)
        self.subscriptions = LiteSubscriptions(settings, on.groups, on.clock)
        self.queues = LiteQueues(on.state, on.store, self.subscriptions, on.clock, lambda key: None)

    def put(self, name: str, parent: str = "P") -> None:
        """Put a message into a light queue and notify LiteQueues of its arrival."""
        queue = LiteTopic(parent, name).queue
        put_all(self.on.store, [plain(queue, 0, 0)])
        self.queues.note_arrived(queue)

    def list_ready(self) -> list[str]:
        return [progress.topic for progress in self.queues.list_ready(REQUEST)]


async def start(folder: Path) -> Receiving:
    on = Receiving(folder)
    await on.start()
    return on


@on_loop
async def test_p87_two_receives_of_a_client_lose_no_ready_lite_topic(tmp_path: Path) -> None:
    on = await start(tmp_path)
    lab = LiteLab(on)
    lab.subscriptions.add(CLIENT, "P", ["a", "b"], print)
    lab.put("a")
    first = lab.queues.list_ready(REQUEST)
    assert next(first).topic == "%LMQ%$P$a"
    assert lab.list_ready() == []  # the second receive, while the first one reads
    lab.put("b")
    assert list(first) == []
    assert lab.list_ready() == ["%LMQ%$P$b"]
    await on.close()


@on_loop
async def test_p87_an_error_loses_no_ready_lite_topic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on = await start(tmp_path)
    lab = LiteLab(on)
    lab.subscriptions.add(CLIENT, "P", ["a"], print)
    lab.put("a")

    def fail(*arguments: object, **more: object) -> None:
        raise Busy("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(on.state, "get_queue", fail)
        with pytest.raises(Busy):
            lab.list_ready()
    assert lab.list_ready() == ["%LMQ%$P$a"]
    await on.close()


@on_loop
async def test_s83_a_receive_of_a_parent_gets_its_lite_topics_only(tmp_path: Path) -> None:
    on = await start(tmp_path)
    lab = LiteLab(on, **{"lite.sub.wildcard": "true"})
    lab.subscriptions.replace(CLIENT, "SECRET", [], print)
    lab.put("x", parent="SECRET")
    assert lab.list_ready() == []
    lab.subscriptions.replace(CLIENT, "P", [], print)
    lab.put("y")
    assert lab.list_ready() == ["%LMQ%$P$y"]
    await on.close()


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        (OffsetOption("OFFSET", 10**26), 1),
        (OffsetOption("OFFSET", -5), 0),
        (OffsetOption("POLICY", 2), 1),
        (OffsetOption("POLICY", 1), 0),
    ],
)
@on_loop
async def test_s81_offset_options_are_offsets_of_the_queue(
    tmp_path: Path, option: OffsetOption, expected: int
) -> None:
    on = await start(tmp_path)
    lab = LiteLab(on)
    lab.put("a")
    lab.subscriptions.add(CLIENT, "P", ["a", "nowhere"], print, option)
    assert on.offsets.query_offset("L", "%LMQ%$P$a", 0) == expected
    assert on.offsets.query_offset("L", "%LMQ%$P$nowhere", 0) is None
    await on.close()


def subscribe_to_nothing(lab: LiteLab, number: int) -> None:
    lab.subscriptions.replace(LiteClient("L", f"{number}"), "P", [], print)


def subscribe_to_one(lab: LiteLab, number: int) -> None:
    lab.subscriptions.add(LiteClient("L", f"{number}"), "P", ["a"], print)


@pytest.mark.parametrize("subscribe", [subscribe_to_nothing, subscribe_to_one])
@on_loop
async def test_s81_clients_count_even_without_names(
    tmp_path: Path, subscribe: Callable[[LiteLab, int], None]
) -> None:
    on = await start(tmp_path)
    lab = LiteLab(on)
    for number in range(100):
        subscribe(lab, number)
    with pytest.raises(Refused) as raised:
        subscribe(lab, 100)
    assert raised.value.reason is Reason.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
    subscribe(lab, 99)  # a known client renews
    await on.close()


@on_loop
async def test_s81_changes_of_an_invisible_time_leave_no_old_locks(tmp_path: Path) -> None:
    on = await start(tmp_path)
    lab = LiteLab(on)
    lab.put("a")
    progress = on.state.get_queue("L", "%LMQ%$P$a", 0, is_new=True)
    later_ms = on.clock.now_ms() + 1_000_000
    on.state.record(progress, Given(progress.number, 1, later_ms, 1, [0], [], [""], "", 0, ""))
    for number in range(2, 2_000):
        on.state.record(progress, Changed(progress.number, 0, number, later_ms + number))
        lab.queues.note(progress)
    assert len(lab.queues._locked) < 200
    lab.queues.stop()
    await on.close()


@pytest.mark.parametrize("is_wildcard", [True, False])
@on_loop
async def test_a_client_notes_few_lite_topics_and_gets_all(
    tmp_path: Path, is_wildcard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.broker.receive.lite.MAX_LOOKS", 7)
    on = await start(tmp_path)
    more = {"lite.sub.wildcard": "true"} if is_wildcard else {}
    lab = LiteLab(on, **{"lite.sub.client.max.event.cnt": "10", **more})
    names = [f"t{number}" for number in range(60)]
    for name in names[:30]:
        lab.put(name)
    lab.subscriptions.replace(CLIENT, "P", names, print)
    for name in names[30:]:
        lab.put(name)
    ready = lab.queues._ready[CLIENT]
    assert len(ready.queues) <= 10
    found: set[str] = set()
    for _ in range(60):
        for progress in lab.queues.list_ready(REQUEST):
            found.add(progress.topic)
            end = on.store.get_max_offset_in_queue(progress.topic, 0)
            on.state.offsets.commit_offset("L", progress.topic, 0, end)
    assert found == {LiteTopic("P", name).queue for name in names}
    assert not lab.queues.has_ready("L", "C")
    lab.put("t5")
    assert lab.list_ready() == [LiteTopic("P", "t5").queue]
    await on.close()


@on_loop
async def test_a_long_search_pauses_and_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tieredstore.broker.receive.lite.MAX_LOOKS", 7)
    on = await start(tmp_path)
    lab = LiteLab(on, **{"lite.sub.wildcard": "true"})
    for number in range(10):
        lab.put(f"t{number}")
        on.state.offsets.commit_offset("L", LiteTopic("P", f"t{number}").queue, 0, 1)
    lab.subscriptions.replace(CLIENT, "P", (), print)
    assert lab.queues.has_ready("L", "C")
    assert lab.list_ready() == []
    assert not lab.queues.has_ready("L", "C")  # no receive reads again before the pause is over
    pause = lab.queues._ready[CLIENT].pause
    assert pause is not None
    await asyncio.sleep(max(pause.when() - asyncio.get_running_loop().time(), 0) + 0.01)
    assert lab.queues.has_ready("L", "C")
    assert lab.list_ready() == []
    assert not lab.queues.has_ready("L", "C")
    assert lab.queues._ready[CLIENT].after is None
    lab.subscriptions.end(CLIENT)
    lab.queues.mark_all(CLIENT)  # no client any more
    assert not lab.queues._ready
    await on.close()


@pytest.mark.parametrize("is_wildcard", [True, False])
@on_loop
async def test_p87_lite_topics_with_a_lasting_backlog_take_turns(
    tmp_path: Path, is_wildcard: bool
) -> None:
    on = await start(tmp_path)
    more = {"lite.sub.wildcard": "true"} if is_wildcard else {}
    lab = LiteLab(on, **{"lite.sub.client.max.event.cnt": "10", **more})
    names = [f"t{number:02d}" for number in range(25)]
    for name in names:
        lab.put(name)
    lab.subscriptions.replace(CLIENT, "P", [*names, "a", "late"], print)
    found = list[str]()
    for number in range(150):
        if number == 50:
            lab.put("late")
        elif number > 50:  # arrivals fill every free place
            for name in names[:12]:
                lab.queues.note_arrived(LiteTopic("P", name).queue)
        progress = next(lab.queues.list_ready(REQUEST))
        found.append(progress.topic.removeprefix("%LMQ%$P$"))
        lab.queues.note(progress)  # acknowledged, and the queue has more messages
    assert len(lab.queues._ready[CLIENT].queues) <= 10
    for begin in range(0, 101, 25):
        assert set(names) <= set(found[begin : begin + 50]), begin
    assert "late" in found[50:100]
    await on.close()


@pytest.mark.parametrize(
    ("attributes", "most"),
    [
        ({}, 3),
        ({}, 20),
        ({"lite.sub.client.max.event.cnt": "10"}, 10),
        ({"lite.sub.client.max.event.cnt": str(1 << 31)}, 3),
    ],
)
@on_loop
async def test_the_broker_limits_the_lite_topics_that_a_client_notes(
    tmp_path: Path, attributes: dict[str, str], most: int
) -> None:
    on = await start(tmp_path)
    lab = LiteLab(on, **attributes)
    on.groups._settings.max_client_event_count = 3 if attributes else most
    names = [f"t{number}" for number in range(30)]
    lab.subscriptions.replace(CLIENT, "P", names, print)
    for name in names:
        lab.put(name)
    assert len(lab.queues._ready[CLIENT].queues) == most
    found = set[str]()
    for _ in range(20):
        for progress in lab.queues.list_ready(REQUEST):
            found.add(progress.topic)
            on.state.offsets.commit_offset("L", progress.topic, 0, 1)
    assert len(found) == 30
    await on.close()
