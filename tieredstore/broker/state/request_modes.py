"""RequestModeManager: the mode of each group, pull or pop, in `config/messageRequestMode.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from tieredstore.broker.state.config_manager import ConfigManager
from tieredstore.clock import SYSTEM_CLOCK, Clock

Mode = Literal["PULL", "POP"]
Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]


class RequestMode(msgspec.Struct, rename="camel", frozen=True, kw_only=True):
    """Mode in which a group consumes a topic. `pop_share_queue_num`: number of other members whose
    queues a member also pops. With 0 or less, every member pops all queues."""

    topic: str
    consumer_group: str
    mode: Mode = "PULL"
    pop_share_queue_num: Int32 = 0


class _Table(msgspec.Struct, rename="camel"):
    message_request_mode_map: dict[str, dict[str, RequestMode]] = {}


class RequestModeManager(ConfigManager):
    """Modes set by operators, by topic and group, in Java's file format."""

    def __init__(self, config_folder: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(config_folder / "messageRequestMode.json", clock)
        self._modes: dict[str, dict[str, RequestMode]] = {}

    def find_mode(self, topic: str, group: str) -> RequestMode | None:
        """Return the mode of a group in a topic, or None if no mode was set."""
        return self._modes.get(topic, {}).get(group)

    def set_mode(self, mode: RequestMode) -> None:
        """Set the mode of a group in a topic."""
        self._modes.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self.mark_changed()

    def remove_topic(self, topic: str) -> None:
        """Remove the modes of a deleted topic. Idempotent."""
        if self._modes.pop(topic, None) is not None:
            self.mark_changed()

    def remove_group(self, group: str) -> None:
        """Remove the modes of a deleted group. Idempotent."""
        for topic, groups in list(self._modes.items()):
            if groups.pop(group, None) is not None:
                self.mark_changed()
            if not groups:
                del self._modes[topic]

    def list_modes(self) -> Mapping[str, Mapping[str, RequestMode]]:
        """Return all modes by topic and group. Callers must not change this table."""
        return self._modes

    def list_fields(self) -> dict[str, object]:
        return {"messageRequestModeMap": self._modes}

    def decode(self, data: bytes) -> None:
        self._modes = msgspec.json.decode(data, type=_Table).message_request_mode_map
