"""ProducerManager: which producers are connected, by group."""

from __future__ import annotations

from collections.abc import Mapping

from tieredstore.broker.clients.session import SILENCE_LIMIT_MS, ClientSession
from tieredstore.clock import SYSTEM_CLOCK, Clock


class ProducerManager:
    """Producer groups and their sessions, as heartbeats say. Used on the loop only."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._groups: dict[str, dict[ClientSession, int]] = {}  # when a heartbeat came last
        self._groups_of_session: dict[ClientSession, set[str]] = {}
        self._turns: dict[str, int] = {}

    def register(self, group: str, session: ClientSession) -> None:
        """Note that a session has sent a heartbeat as a producer of a group."""
        self._groups.setdefault(group, {})[session] = self._clock.monotonic_ms()
        self._groups_of_session.setdefault(session, set()).add(group)

    def unregister(self, group: str, session: ClientSession) -> None:
        """Forget a session in one group."""
        sessions = self._groups.get(group)
        if sessions is None or sessions.pop(session, None) is None:
            return
        groups = self._groups_of_session[session]
        groups.discard(group)
        if not groups:
            del self._groups_of_session[session]
        if not sessions:
            del self._groups[group]
            self._turns.pop(group, None)

    def remove_session(self, session: ClientSession) -> None:
        """Forget a session that was closed."""
        for group in list(self._groups_of_session.get(session, ())):
            self.unregister(group, session)

    def remove_silent(self) -> set[ClientSession]:
        """Forget the sessions that have been silent for too long; returns them."""
        limit_ms = self._clock.monotonic_ms() - SILENCE_LIMIT_MS
        silent: set[ClientSession] = set()
        for group, sessions in list(self._groups.items()):
            for session in [found for found, heard_ms in sessions.items() if heard_ms < limit_ms]:
                self.unregister(group, session)
                silent.add(session)
        return silent

    def find_session(self, group: str) -> ClientSession | None:
        """Find a producer of a group, each in turn; None when none is connected."""
        sessions = self._groups.get(group)
        if not sessions:
            return None
        turn = self._turns.get(group, 0)
        self._turns[group] = turn + 1
        return list(sessions)[turn % len(sessions)]

    def find_client(self, client_id: str) -> ClientSession | None:
        """Find the session of a producer by its client id."""
        for sessions in self._groups.values():
            for session in sessions:
                if session.client_id == client_id:
                    return session
        return None

    def list_groups(self) -> Mapping[str, list[ClientSession]]:
        """List the groups and the sessions of each."""
        return {group: list(sessions) for group, sessions in self._groups.items()}
