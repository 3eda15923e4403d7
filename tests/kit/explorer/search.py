"""Breadth-first search over every order in which the requests of all processes can take effect.

A state consists of the store's content, the replies to each process and the requests in flight.
Histories that lead to the same state continue in the same way, so only one of them is followed.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from tests.kit.explorer.process import Party, Program, Situation, explored_threads
from tests.kit.explorer.programs import READY, WAIT, Setting, reader
from tests.kit.explorer.promises import Broken, Ledger, Seen
from tests.kit.explorer.wire import Disk, Reply, Request, Store

START_MS = 1_700_000_000_000


@dataclass(frozen=True)
class Scenario:
    """Participants, in the order in which they begin. `faults` limits the failing requests of one
    history. A failing request gets lost, arrives late or twice, or loses its reply. `page_keys` is
    the page size of listings. `lasting` matches keys that are never deleted, which shortens the
    search. Deleting such a key fails the search. An empty pattern matches all keys, and then no
    process may sleep."""

    parties: Mapping[str, Program]
    faults: int = 1
    page_keys: int = 1_000
    lasting: str | None = "/[.]writer/[0-9]+$"

    def lasts(self, key: str) -> bool:
        """Return whether the object with this key is never deleted."""
        return self.lasting is not None and re.search(self.lasting, key) is not None


class State(NamedTuple):
    """One state of the search. `held`: replies in flight, each with its process and task number.
    `late`: requests that may still take effect, although no process waits for them."""

    disk: Disk
    situations: tuple[Situation, ...]
    held: frozenset[tuple[int, int, Reply]]
    late: tuple[Request, ...]
    faults: int
    ledger: Ledger


class Step(NamedTuple):
    """One step of a history in readable form."""

    who: str
    what: str
    outcome: str
    notes: tuple[Hashable, ...] = ()


@dataclass(frozen=True)
class Result:
    """Result of a search. `broken`: the first broken promise. `steps`: one of the shortest
    histories that break it. `is_whole`: whether all states were visited before `max_states` was
    reached."""

    broken: str | None
    steps: tuple[Step, ...]
    state_count: int
    step_count: int
    run_count: int
    seconds: float
    is_whole: bool
    said: frozenset[str]

    def __str__(self) -> str:
        lines = [
            f"{self.state_count} states, {self.step_count} steps, {self.run_count} runs of real "
            f"code, {self.seconds:.1f} s" + ("" if self.is_whole else ", not all")
        ]
        if self.broken is not None:
            width = max((len(step.who) for step in self.steps), default=0)
            for number, step in enumerate(self.steps, 1):
                lines.append(f"{number:3} {step.who:{width}}  {step.what}: {step.outcome}")
                lines += [f"    {'':{width}}    {note}" for note in step.notes]
            lines.append(f"BROKEN: {self.broken}")
        return "\n".join(lines)


def explore(scenario: Scenario, *, max_states: int = 1_000_000) -> Result:
    """Search until a promise is broken, all states are visited, or `max_states` is reached."""
    with explored_threads():
        return _Search(scenario, max_states).run()


class _Search:
    def __init__(self, scenario: Scenario, max_states: int) -> None:
        self._scenario = scenario
        self._max_states = max_states
        self._store = Store(scenario.page_keys)
        self._parties = [
            Party(name, program, START_MS) for name, program in scenario.parties.items()
        ]
        looker = reader(Setting(page_keys=scenario.page_keys))
        self._looker = Party("a reader", looker, START_MS)
        self._views: dict[frozenset[tuple[str, int]], tuple[Seen, ...]] = {}
        self._sound: set[tuple[frozenset[tuple[str, int]], Ledger]] = set()
        self._ledgers: dict[tuple[Ledger, tuple[Hashable, ...]], Ledger | Broken] = {}
        self._from: dict[State, tuple[State, Step] | None] = {}
        self._step_count = 0
        self._said: set[str] = set()

    def run(self) -> Result:
        begin_s = time.monotonic()
        start, broken = self._begin()
        self._from[start] = None
        queue = deque([start])
        last: tuple[State, Step] | None = None
        while queue and not broken and len(self._from) < self._max_states:
            state = queue.popleft()
            for step, following in self._steps(state):
                self._step_count += 1
                if isinstance(following, Broken):
                    broken, last = following, (state, step)
                    break
                if following not in self._from:
                    self._from[following] = state, step
                    wrong = self._look(following)
                    if wrong is not None:
                        broken, last = wrong, (state, step)
                        break
                    queue.append(following)
        steps = []
        while last is not None:
            steps.append(last[1])
            last = self._from[last[0]]
        return Result(
            broken.what if broken else None,
            tuple(steps[::-1]),
            len(self._from),
            self._step_count,
            self._looker.run_count + sum(party.run_count for party in self._parties),
            time.monotonic() - begin_s,
            not queue,
            frozenset(self._said),
        )

    def _begin(self) -> tuple[State, Broken | None]:
        """Run the first part of each process, one after the other."""
        state = State(
            Disk(frozenset(), START_MS), (), frozenset(), (), self._scenario.faults, Ledger()
        )
        for party in self._parties:
            disk, situation, notes = self._make_ready(party, state.disk)
            ledger = self._after(state.ledger, notes)
            if isinstance(ledger, Broken):
                return state, ledger
            situations = (*state.situations, situation)
            state = state._replace(disk=disk, situations=situations, ledger=ledger)
        return state, self._look(state)

    def _make_ready(self, party: Party, disk: Disk) -> tuple[Disk, Situation, tuple[Hashable, ...]]:
        """Run the first part of a process, until it sends READY."""
        beginning = disk, party.beginning, party.beginning.notes
        situation, notes = party.beginning, [*party.beginning.notes]
        while situation.waiting:
            task, request = next(iter(situation.waiting.items()))
            is_ready = request == READY
            if is_ready:
                reply = Reply(None, disk.now_ms)
            else:
                disk, reply = self._store.answer(disk, request)
            situation = party.answer(situation, task, reply)
            notes += situation.notes
            if is_ready:
                return disk, situation, tuple(notes)
        return beginning

    def _steps(self, state: State) -> Iterator[tuple[Step, State | Broken]]:
        """Yield the possible next steps. If a process waits only for an object that never changes,
        yield only its step, because the order relative to other steps does not matter."""
        for index, situation in enumerate(state.situations):
            if len(situation.waiting) == 1 and self._is_settled(state, index, situation):
                yield from self._steps_of(state, index)
                return
        for index in range(len(state.situations)):
            yield from self._steps_of(state, index)
        for request in dict.fromkeys(state.late):
            disk, reply = self._store.answer(state.disk, request)
            others = list(state.late)
            others.remove(request)
            step = Step("late", _tell(request), _tell_reply(request, reply))
            yield step, state._replace(disk=disk, late=tuple(others))

    def _is_settled(self, state: State, index: int, situation: Situation) -> bool:
        ((task, request),) = situation.waiting.items()
        if request.verb == WAIT:
            return _is_reached(state, request.key)
        if request.verb not in {"GET", "HEAD", "PUT"} or not self._scenario.lasts(request.key):
            return False
        disk, reply = self._store.answer(state.disk, request)
        if disk != state.disk or reply.value is None:
            return False
        return not self._parties[index].answer(situation, task, reply).notes

    def _steps_of(self, state: State, index: int) -> Iterator[tuple[Step, State | Broken]]:
        situation = state.situations[index]
        name = self._parties[index].name
        held = {task: reply for party, task, reply in state.held if party == index}
        for task, request in situation.waiting.items():
            if request.verb == WAIT:
                if _is_reached(state, request.key):
                    yield self._hear(
                        state, index, task, request, Reply(None, state.disk.now_ms), ""
                    )
                continue
            if task in held:
                left = state._replace(held=state.held - {(index, task, held[task])})
                yield self._hear(left, index, task, request, held[task], "hears")
                continue
            self._check_lasting(request)
            disk, reply = self._store.answer(state.disk, request)
            here = state._replace(disk=disk)
            if len(situation.waiting) > 1:
                step = Step(_name_task(name, task), _tell(request), "takes effect")
                yield step, here._replace(held=state.held | {(index, task, reply)})
            else:
                yield self._hear(here, index, task, request, reply, "")
            if state.faults and request.verb != "SLEEP":
                yield from self._faults(state, here, index, task, request, reply)

    def _check_lasting(self, request: Request) -> None:
        if request.verb == "DELETE":
            assert not any(self._scenario.lasts(str(key)) for key in request.detail), request
        if request.verb == "SLEEP":
            assert request.detail == (0,) or self._scenario.lasting is None, request

    def _faults(
        self, state: State, here: State, index: int, task: int, request: Request, reply: Reply
    ) -> Iterator[tuple[Step, State | Broken]]:
        """Yield the states that result from each possible fault of a request. `state` is the state
        before the request, `here` the state after it took effect."""
        lost = Reply(None, state.disk.now_ms, is_lost=True)
        less = state.faults - 1
        if not request.changes:
            yield self._hear(state._replace(faults=less), index, task, request, lost, "lost")
            return
        late = tuple(sorted((*state.late, request)))
        there = here._replace(faults=less)
        yield self._hear(there, index, task, request, lost, "takes effect, its reply is lost")
        away = state._replace(faults=less, late=late)
        yield self._hear(away, index, task, request, lost, "no reply, it is still on its way")
        again = here._replace(faults=less, late=late)
        yield self._hear(
            again, index, task, request, reply, "sent twice, one is on its way, the other"
        )

    def _hear(
        self, state: State, index: int, task: int, request: Request, reply: Reply, how: str
    ) -> tuple[Step, State | Broken]:
        party = self._parties[index]
        situation = party.answer(state.situations[index], task, reply)
        outcome = how if reply.is_lost else f"{how} {_tell_reply(request, reply)}".strip()
        who = _name_task(party.name, task)
        step = Step(who, _tell(request), outcome, situation.notes)
        self._said.update(f"{who}: {note}" for note in situation.notes)
        ledger = self._after(state.ledger, situation.notes)
        if isinstance(ledger, Broken):
            return step, ledger
        situations = list(state.situations)
        situations[index] = situation
        return step, state._replace(situations=tuple(situations), ledger=ledger)

    def _after(self, ledger: Ledger, notes: tuple[Hashable, ...]) -> Ledger | Broken:
        if not notes:
            return ledger
        found = self._ledgers.get((ledger, notes))
        if found is None:
            found = ledger
            for note in notes:
                found = found.after(note)
                if isinstance(found, Broken):
                    break
            self._ledgers[ledger, notes] = found
        return found

    def _look(self, state: State) -> Broken | None:
        """Return the promise that is broken if a reader reads everything now, or None."""
        ledger = state.ledger._replace(sessions=frozenset())
        key = state.disk.objects, ledger
        if key in self._sound:
            return None
        view = self._views.get(state.disk.objects)
        if view is None:
            view = self._views[state.disk.objects] = tuple(self._read(state.disk))
        broken = ledger.check(view, ledger.owed_pieces, ledger.gone)
        if broken is None:
            self._sound.add(key)
        return broken

    def _read(self, disk: Disk) -> Iterator[Seen]:
        situation = self._looker.beginning
        while situation.waiting:
            ((task, request),) = situation.waiting.items()
            disk, reply = self._store.answer(disk, request)
            situation = self._looker.answer(situation, task, reply)
            yield from (note for note in situation.notes if isinstance(note, Seen))


def _is_reached(state: State, milestone: str) -> bool:
    return any(milestone in situation.reached for situation in state.situations)


def _name_task(party: str, task: int) -> str:
    return f"{party}, beside" if task else party


def _tell(request: Request) -> str:
    if request.verb == "PUT":
        return f"PUT {_short(request.key)} {_short(repr(request.detail[0]))[:60]}"
    if request.verb == "DELETE":
        first, *others = (_short(str(key)) for key in request.detail)
        return f"DELETE {', '.join([first, *map(_name, others)])}"
    if request.verb == "SLEEP":
        return f"SLEEP {request.detail[0]} ms"
    return f"{request.verb} {_short(request.key)}"


def _tell_reply(request: Request, reply: Reply) -> str:
    if request.verb == "PUT":
        return "made" if reply.value else "taken"
    if request.verb == "LIST":
        assert isinstance(reply.value, tuple)
        return " ".join(_name(_short(found.key)) for found in reply.value) or "nothing"
    if request.verb not in {"GET", "HEAD"}:
        return "done"
    return _short(str(reply.value))[:60] if reply.value is not None else "not there"


def _short(key: str) -> str:
    """Shorten a key for printing: drop hashes and leading zeros."""
    return re.sub(r"0{4,}(?=[0-9])", "", re.sub(r"[0-9a-f]{8}(_\w+/|(?=[0-9]{20}))", "", key))


def _name(key: str) -> str:
    return "/".join(key.split("/")[-2:])
