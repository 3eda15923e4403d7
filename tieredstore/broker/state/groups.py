"""`SubscriptionGroupManager`: consumer groups and their settings, in
`config/subscriptionGroup.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec
from msgspec import field

from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.broker.state.topics import check_queue_nums
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.errors import Invalid

_MAX_GROUP_LENGTH: Final = 120
_ILLEGAL: Final = re.compile(r"[^%|a-zA-Z0-9_-]")
_BROADCAST_GROUPS: Final = ("CID_ONSAPI_OWNER", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_PULL")
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER",
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_SYS_RMQ_TRANS",
    "CID_RMQ_SYS_TRANS",
    *_BROADCAST_GROUPS,
)
"""Groups that are there without anybody making them."""
_SYSTEM_PREFIX: Final = "CID_RMQ_SYS_"


class SubscriptionGroupConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """A consumer group, as Java's SubscriptionGroupConfig. retry_max_times: deliveries after the
    first, before the dead letters."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, Any] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[dict[str, Any]] | None = None
    attributes: dict[str, str] = {}


class _Table(msgspec.Struct, kw_only=True, rename="camel"):
    subscription_group_table: dict[str, SubscriptionGroupConfig]
    forbidden_table: dict[str, dict[str, int]] = {}
    data_version: DataVersion | None = None


class SubscriptionGroupManager(ConfigManager):
    """The table of groups. `add_system_groups` is called after `load`."""

    def __init__(
        self, config_folder: Path, settings: BrokerSettings, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        super().__init__(config_folder / "subscriptionGroup.json", clock)
        self._settings = settings
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}

    def find_group(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group; an unknown one is made where that is configured, else None, as for a
        name that no group may have."""
        found = self._groups.get(group)
        if found is not None or not self._settings.auto_create_subscription_group:
            return found
        try:
            check_group_name(group)
        except Invalid:
            return None
        config = SubscriptionGroupConfig(group_name=group)
        self.update_group(config)
        return config

    def list_groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """Return the table, by group; it is not to be changed."""
        return MappingProxyType(self._groups)

    def update_group(self, config: SubscriptionGroupConfig) -> None:
        """Make or replace a group. Raises Invalid for a number of retry queues that no topic may
        have."""
        check_queue_nums(f"group {config.group_name}: retry topic", config.retry_queue_nums)
        if self._groups.get(config.group_name) != config:
            self._groups[config.group_name] = config
            self.mark_changed()

    def delete_group(self, group: str) -> bool:
        """Delete a group from the table; tells whether it was there."""
        self._forbidden.pop(group, None)
        if self._groups.pop(group, None) is None:
            return False
        self.mark_changed()
        return True

    def is_forbidden(self, group: str, topic: str, permission: int) -> bool:
        """Tell whether a group may not do with a topic what the bits of a permission say."""
        return bool(self._forbidden.get(group, {}).get(topic, 0) & permission)

    def set_forbidden(self, group: str, topic: str, permission: int, *, is_forbidden: bool) -> None:
        """Let a group do something with a topic, or not any more."""
        topics = self._forbidden.setdefault(group, {})
        before = topics.get(topic, 0)
        bits = before | permission if is_forbidden else before & ~permission
        if bits:
            topics[topic] = bits
        else:
            topics.pop(topic, None)
        if not topics:
            del self._forbidden[group]
        if bits != before:
            self.mark_changed()

    def add_system_groups(self) -> None:
        """Make the groups that a Java broker makes at its start, those that are not there."""
        for group in SYSTEM_GROUPS:
            if group not in self._groups:
                self.update_group(SubscriptionGroupConfig(group_name=group))

    def encode(self) -> bytes:
        table = _Table(
            subscription_group_table=self._groups,
            forbidden_table=self._forbidden,
            data_version=self.data_version,
        )
        return msgspec.json.format(msgspec.json.encode(table), indent=1)

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        self._groups = dict(table.subscription_group_table)
        self._forbidden = dict(table.forbidden_table)
        self.data_version = table.data_version or DataVersion()


def is_system_group(group: str) -> bool:
    """Tell whether a group is one of the broker's own."""
    return group in SYSTEM_GROUPS or group.startswith(_SYSTEM_PREFIX)


def check_group_name(group: str) -> None:
    """Raise Invalid for a name that no group may have, by Java's rules."""
    if not group.strip():
        raise Invalid("The specified group is blank.")
    if _ILLEGAL.search(group):
        raise Invalid(
            f"The specified group {group!r} contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$"
        )
    if len(group) > _MAX_GROUP_LENGTH:
        raise Invalid(f"The specified group is longer than group max length {_MAX_GROUP_LENGTH}.")
