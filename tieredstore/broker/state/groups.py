"""Consumer groups with their settings, and the attributes of topics and groups."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import field

from tieredstore.broker.refused import Reason, Refused
from tieredstore.broker.settings import BrokerSettings
from tieredstore.broker.state.config_manager import ConfigManager, DataVersion
from tieredstore.broker.state.topics import check_queue_nums
from tieredstore.clock import SYSTEM_CLOCK, Clock
from tieredstore.config import StorageLevel
from tieredstore.errors import Invalid
from tieredstore.message.names import LMQ_PREFIX, RETRY_PREFIX, find_name_fault
from tieredstore.message.properties import parse_integer

_QUEUE_TYPES: Final = frozenset({"SimpleCQ"})
_CLEANUP_POLICIES: Final = frozenset({"DELETE"})
_MESSAGE_TYPES: Final = frozenset(
    {"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE"}
)
_FROM_WHERE: Final = frozenset({"CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET"})
_INT64_MAX: Final = 2**63 - 1
_log = logging.getLogger(__name__)


def _one_of(values: frozenset[str]) -> Callable[[str], bool]:
    return values.__contains__


def _is_boolean(value: str) -> bool:
    return value.lower() in ("true", "false")


def _between(lowest: int, highest: int) -> Callable[[str], bool]:
    def accepts(value: str) -> bool:
        number = parse_integer(value.encode())
        return number is not None and lowest <= number <= highest

    return accepts


LITE_EXPIRATION: Final = "lite.topic.expiration"
"""Attribute of a topic: minutes without a message until a lite topic is deleted. -1: never."""
TOPIC_ATTRIBUTES: Final[Mapping[str, Callable[[str], bool]]] = {
    "queue.type": _one_of(_QUEUE_TYPES),
    "cleanup.policy": _one_of(_CLEANUP_POLICIES),
    "message.type": _one_of(_MESSAGE_TYPES),
    "reserve.time": _between(-1, _INT64_MAX),
    LITE_EXPIRATION: _between(-1, 30 * 24 * 60),
    "tiered.storage.level": _one_of(frozenset(StorageLevel.__members__)),
}
"""Attributes of a topic, with a function that checks whether the store supports a value. Batch
queues and compaction are not supported."""

PRIORITY_FACTOR: Final = "priority.factor"
"""Attribute of a group: percentage of its receives that follow message priorities."""
LITE_BIND_TOPIC: Final = "lite.bind.topic"
"""Attribute of a group: the parent topic whose lite topics the group consumes."""
LITE_MODEL: Final = "lite.sub.model"
LITE_RESETS_EXCLUSIVE: Final = "lite.sub.reset.offset.exclusive"
LITE_RESETS_UNSUBSCRIBED: Final = "lite.sub.reset.offset.unsubscribe"
LITE_QUOTA: Final = "lite.sub.client.quota"
LITE_EVENTS: Final = "lite.sub.client.max.event.cnt"
LITE_WILDCARD: Final = "lite.sub.wildcard"
GROUP_ATTRIBUTES: Final[Mapping[str, Callable[[str], bool]]] = {
    "consumeFromWhere": _one_of(_FROM_WHERE),
    PRIORITY_FACTOR: _between(0, 100),
    LITE_BIND_TOPIC: bool,
    LITE_MODEL: _one_of(frozenset({"Shared", "Exclusive"})),
    LITE_RESETS_EXCLUSIVE: _is_boolean,
    LITE_RESETS_UNSUBSCRIBED: _is_boolean,
    LITE_QUOTA: _between(-1, _INT64_MAX),
    LITE_EVENTS: _between(10, _INT64_MAX),
    LITE_WILDCARD: bool,
}
"""Attributes of a group, with a function that validates a value. `consumeFromWhere` is specific to
this project and sets where gRPC consumers start."""

FIXED_ATTRIBUTES: Final = frozenset({"queue.type", "cleanup.policy"})
"""Attributes of a topic that cannot change after its creation."""


def parse_attributes(text: str) -> dict[str, str]:
    """Parse the attribute changes `+key=value,-key` of a request. An empty string changes nothing.
    Raises Invalid."""
    changes: dict[str, str] = {}
    for word in filter(None, text.split(",")):
        key, equals, value = word.partition("=")
        if key.startswith("+") == bool(equals) and key[:1] in ("+", "-") and len(key) > 1:
            if key not in changes:
                changes[key] = value
                continue
            raise Invalid(f"attributes: expected each key once, found {key!r} again")
        raise Invalid(f"attributes: expected +key=value or -key, found {word!r}")
    return changes


def change_attributes(
    current: Mapping[str, str] | None,
    changes: Mapping[str, str],
    possible: Mapping[str, Callable[[str], bool]] = TOPIC_ATTRIBUTES,
) -> dict[str, str]:
    """Apply attribute changes to a topic or group, and return the resulting attributes. `current`:
    None for a new topic or group. `changes`: values by `+key` or `-key`, as returned by
    `parse_attributes`. `possible`: validators by attribute. Raises Invalid for an unknown or fixed
    attribute, and for an invalid value."""
    changed = dict(current or {})
    for sign, key in ((word[:1], word[1:]) for word in changes):
        accepts = possible.get(key)
        if accepts is None or sign not in ("+", "-"):
            known = ", ".join(f"+{name}" for name in possible)
            raise Invalid(f"attributes: unsupported key {sign + key!r}, expected one of {known}")
        value = changes[sign + key]
        if sign == "+" and not accepts(value):
            raise Invalid(f"attributes: {key}={value!r} is not supported")
        if current is None and sign == "-":
            raise Invalid(
                f"attributes: a new topic or group has no attribute to remove, found -{key}"
            )
        is_same = current is not None and current.get(key) == value and sign == "+"
        if current is not None and key in FIXED_ATTRIBUTES and not is_same:
            raise Invalid(f"attributes: {key} cannot be changed")
        if sign == "+":
            changed[key] = value
        else:
            changed.pop(key, None)
    return changed


MAX_GROUPS: Final = 50_000
"""Maximum number of groups for automatic creation. Operators can create more."""
_MAX_GROUP_LENGTH: Final = 120
_ILLEGAL: Final = re.compile(r"[^%|a-zA-Z0-9_-]")
_BROADCAST_GROUPS: Final = ("CID_ONSAPI_OWNER", "CID_ONSAPI_PERMISSION", "CID_ONSAPI_PULL")
_TRANSACTION_GROUPS: Final = ("CID_SYS_RMQ_TRANS", "CID_RMQ_SYS_TRANS")
# fmt: off
SYSTEM_GROUPS: Final = (
    "TOOLS_CONSUMER", "FILTERSRV_CONSUMER", "SELF_TEST_C_GROUP", *_TRANSACTION_GROUPS,
    *_BROADCAST_GROUPS,
)
# fmt: on
"""Groups that always exist, even if no client created them."""
_OWN_PREFIX: Final = "CID_RMQ_SYS_"


class SubscriptionGroupConfig(msgspec.Struct, kw_only=True, rename="camel"):
    """Consumer group (Java's SubscriptionGroupConfig). `retry_max_times`: number of redeliveries
    before a message becomes a dead letter."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    group_retry_policy: dict[str, object] = field(default_factory=lambda: {"type": "CUSTOMIZED"})
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: int = 0
    consume_timeout_minute: int = 15
    subscription_data_set: list[dict[str, object]] | None = None
    attributes: dict[str, str] = {}

    @property
    def lite_parent(self) -> str | None:
        """Topic whose lite topics the group consumes, or None for an ordinary group."""
        return self.attributes.get(LITE_BIND_TOPIC)

    @property
    def is_lite_exclusive(self) -> bool:
        """True if a lite topic has at most one client of the group."""
        return self.attributes.get(LITE_MODEL) == "Exclusive"

    @property
    def is_lite_wildcard(self) -> bool:
        """True if the group gets all lite topics of its parent. As in Java, only the presence of
        the attribute matters, not its value."""
        return LITE_WILDCARD in self.attributes

    @property
    def lite_quota(self) -> int:
        """Maximum number of lite topics per client. Clients check this limit."""
        return int(self.attributes.get(LITE_QUOTA, 2000))

    def resets_lite(self, attribute: str) -> bool:
        """Return whether an attribute of the group is true. `attribute`: names a case in which the
        group reads a lite topic again from its first message."""
        return self.attributes.get(attribute, "").lower() == "true"


class _Table(msgspec.Struct, kw_only=True, rename="camel"):
    subscription_group_table: dict[str, SubscriptionGroupConfig]
    forbidden_table: dict[str, dict[str, int]] = {}
    data_version: DataVersion | None = None


class SubscriptionGroupManager(ConfigManager):
    """Table of groups. Call `add_system_groups` after `load`. `has_lmq`: True if light queues are
    enabled (`enableLmq`)."""

    def __init__(
        self,
        config_folder: Path,
        settings: BrokerSettings,
        clock: Clock = SYSTEM_CLOCK,
        *,
        has_lmq: bool = False,
    ) -> None:
        super().__init__(config_folder / "subscriptionGroup.json", clock)
        self._settings = settings
        self._has_lmq = has_lmq
        self._groups: dict[str, SubscriptionGroupConfig] = {}
        self._forbidden: dict[str, dict[str, int]] = {}

    def find_group(self, group: str, *, creates: bool = True) -> SubscriptionGroupConfig | None:
        """Return a group. An unknown group is created if the settings allow that and fewer than
        MAX_GROUPS exist (or returned without being created, if not `creates`). Otherwise, and for
        an invalid name, None is returned."""
        found = self._groups.get(group)
        if found is None and self._has_lmq and group.startswith(LMQ_PREFIX):
            # In no table, as in Java's broker.
            return SubscriptionGroupConfig(group_name=group) if _fits_in_topics(group) else None
        if found is not None or not self._settings.auto_create_subscription_group:
            return found
        if len(self._groups) >= MAX_GROUPS:
            return None
        try:
            check_group_name(group)
        except Invalid:
            return None
        config = SubscriptionGroupConfig(group_name=group)
        if creates:
            self.update_group(config)
        if len(self._groups) >= MAX_GROUPS:
            _log.error("there are %d groups: clients create no further ones", MAX_GROUPS)
        return config

    def is_retry_topic(self, topic: str) -> bool:
        """Return whether a topic is the retry topic of an existing group."""
        return topic.startswith(RETRY_PREFIX) and topic.removeprefix(RETRY_PREFIX) in self._groups

    def list_groups(self) -> Mapping[str, SubscriptionGroupConfig]:
        """Return all groups by name. Callers must not change this table."""
        return MappingProxyType(self._groups)

    def find_max_lite_events(self, group: str) -> int:
        """Return the maximum number of lite topics tracked for a client of a group. As in Java, the
        broker's limit applies if the group's attribute is not a positive 32-bit integer."""
        config = self._groups.get(group)
        found = 0 if config is None else int(config.attributes.get(LITE_EVENTS, 0))
        return found if 0 < found < 1 << 31 else self._settings.max_client_event_count

    def update_group(self, config: SubscriptionGroupConfig) -> None:
        """Create or replace a group. Raises Invalid for an invalid number of retry queues."""
        check_queue_nums(f"group {config.group_name}: retry topic", config.retry_queue_nums)
        if self._groups.get(config.group_name) != config:
            self._groups[config.group_name] = config
            self.mark_changed()

    def delete_group(self, group: str) -> bool:
        """Delete a group from the table. Returns whether the group existed."""
        self._forbidden.pop(group, None)
        if self._groups.pop(group, None) is None:
            return False
        self.mark_changed()
        return True

    def is_forbidden(self, group: str, topic: str, permission: int) -> bool:
        """Return whether a group lacks a permission on a topic."""
        return bool(self._forbidden.get(group, {}).get(topic, 0) & permission)

    def set_forbidden(self, group: str, topic: str, permission: int, *, is_forbidden: bool) -> None:
        """Set whether a group may use a topic."""
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
        """Create the groups that a Java broker creates at startup, if missing."""
        for group in SYSTEM_GROUPS:
            if group not in self._groups:
                self.update_group(SubscriptionGroupConfig(group_name=group))

    def list_fields(self) -> dict[str, object]:
        return {
            "subscriptionGroupTable": iter(self._groups.copy().items()),
            "forbiddenTable": self._forbidden,
            "dataVersion": self.data_version,
        }

    def decode(self, data: bytes) -> None:
        table = msgspec.json.decode(data, type=_Table)
        self._groups = dict(table.subscription_group_table)
        self._forbidden = dict(table.forbidden_table)
        self.data_version = table.data_version or DataVersion()


def is_own_group(group: str) -> bool:
    """Return whether a group tracks the broker's own progress. Clients cannot consume with it."""
    return group.startswith(_OWN_PREFIX) or group in _TRANSACTION_GROUPS


def check_group_of_client(group: str) -> None:
    """Raise Refused for a group whose offsets only the broker may set."""
    if is_own_group(group):
        raise Refused(
            Reason.NO_PERMISSION,
            f"group {group}: the broker keeps its own progress there, no client sets its offsets",
        )


def _fits_in_topics(group: str) -> bool:
    """Return whether the group's retry and dead-letter topics have valid names. The rules for group
    names are not applied, because groups of light queues, such as those of MQTT clients, may use
    other characters."""
    return find_name_fault(group) is None and len(group.encode()) <= _MAX_GROUP_LENGTH


def check_group_name(group: str) -> None:
    """Raise Invalid if a group name breaks Java's rules."""
    if not group.strip():
        raise Invalid("The specified group is blank.")
    if _ILLEGAL.search(group):
        raise Invalid(
            f"The specified group {group!r} contains illegal characters, allowing only "
            "^[%|a-zA-Z0-9_-]+$"
        )
    if len(group) > _MAX_GROUP_LENGTH:
        raise Invalid(f"The specified group is longer than group max length {_MAX_GROUP_LENGTH}.")
