"""Policies: which resources a user may do what with, and which policy decides."""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tieredstore.errors import Invalid
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX


class Action(enum.Enum):
    """What is done with a resource. ALL: in a policy, any of them."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceType(enum.Enum):
    """What it is done with. ANY: in a policy, with any of them."""

    ANY = "Any"
    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Want(NamedTuple):
    """What a request wants: to do one of the actions with a resource."""

    resource_type: ResourceType
    name: str
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{self.resource_type.value}:{self.name}"


def want_topic(name: str, *actions: Action) -> Want:
    """Want something with a topic; a retry or dead-letter topic belongs to its group."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            group = name.removeprefix(prefix)
            return Want(ResourceType.GROUP, group, frozenset((*actions, Action.SUB)))
    return Want(ResourceType.TOPIC, name, frozenset(actions))


def want_group(name: str, *actions: Action) -> Want:
    """Want something with a consumer group."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        name = name.removeprefix(prefix)
    return Want(ResourceType.GROUP, name, frozenset(actions))


class PolicyEntry(msgspec.Struct, kw_only=True, rename="camel"):
    """One rule (Java's PolicyEntryInfo): `*`, or `Topic:name`, `Group:prefix*`, `Cluster:*`; the
    actions; the addresses it holds for, all without any; Allow or Deny."""

    resource: str
    actions: list[str]
    source_ips: list[str] | None = None
    decision: str = "Deny"


class Policy(msgspec.Struct, kw_only=True, rename="camel"):
    """Rules. Those of a Default policy count where no Custom rule fits."""

    policy_type: str | None = "Custom"
    entries: list[PolicyEntry]


class Acl(msgspec.Struct, kw_only=True, rename="camel"):
    """The policies of a subject, `User:name`."""

    subject: str = ""
    policies: list[Policy] = []


class Rule:
    """A rule that was checked. Raises Invalid for what is none."""

    __slots__ = ("_actions", "_name", "_networks", "_pattern", "_type", "allows")

    def __init__(self, entry: PolicyEntry) -> None:
        self._type, self._name, self._pattern = _parse_resource(entry.resource)
        self._actions = frozenset(_parse_action(action) for action in entry.actions)
        if not self._actions:
            raise Invalid(f"{entry.resource}: The actions is empty.")
        self._networks = [_parse_network(text) for text in entry.source_ips or ()]
        if entry.decision not in {"Allow", "Deny"}:
            raise Invalid(
                f"{entry.resource}: decision: expected Allow or Deny, found {entry.decision!r}"
            )
        self.allows = entry.decision == "Allow"

    @property
    def rank(self) -> tuple[int, int, int, int]:
        """Of the rules that fit the one with the smallest rank decides: the closest one, of two
        that are as close the one that denies."""
        return (
            self._type is ResourceType.ANY,
            self._pattern,
            -len(self._name),
            self.allows,
        )

    def fits(self, want: Want, source_ip: str) -> bool:
        """Tell whether the rule says something about a request."""
        if self._type not in {ResourceType.ANY, want.resource_type}:
            return False
        if self._pattern == _LITERAL and want.name != self._name:
            return False
        if self._pattern == _PREFIXED and not want.name.startswith(self._name):
            return False
        if Action.ALL not in self._actions and not self._actions & want.actions:
            return False
        return not self._networks or _is_within(source_ip, self._networks)


_LITERAL, _PREFIXED, _ALL = range(3)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_policies(policies: Iterable[Policy]) -> dict[str, list[Rule]]:
    """Check policies; returns their rules by the type of the policy. Raises Invalid."""
    rules: dict[str, list[Rule]] = {"Custom": [], "Default": []}
    for policy in policies:
        kind = policy.policy_type or "Custom"
        if kind not in rules:
            raise Invalid(f"policy type: expected Custom or Default, found {kind[:40]!r}")
        if not policy.entries:
            raise Invalid("The policy entries is empty.")
        rules[kind] += map(Rule, policy.entries)
    return rules


def decide(rules: dict[str, list[Rule]], want: Want, source_ip: str) -> bool:
    """Tell whether a request is allowed: by the custom rule that is closest, without one by the
    default rule that is; without any it is not."""
    for kind in ("Custom", "Default"):
        fitting = [rule for rule in rules.get(kind, ()) if rule.fits(want, source_ip)]
        if fitting:
            return min(fitting, key=lambda rule: rule.rank).allows
    return False


def _parse_resource(text: str) -> tuple[ResourceType, str, int]:
    if text == "*":
        return ResourceType.ANY, "", _ALL
    kind, separator, name = text.partition(":")
    types = {known.value.lower(): known for known in ResourceType if known is not ResourceType.ANY}
    found = types.get(kind.lower())
    if found is None or not separator or not name:
        raise Invalid(
            "resource: expected *, or Topic, Group or Cluster with a name after a colon, "
            f"found {text[:80]!r}"
        )
    if name == "*":
        return found, "", _ALL
    if name.endswith("*"):
        return found, name[:-1], _PREFIXED
    return found, name, _LITERAL


def _parse_action(text: str) -> Action:
    for action in Action:
        if action.value.lower() == text.strip().lower():
            return action
    expected = ", ".join(action.value for action in Action)
    raise Invalid(f"action: expected one of {expected}, found {text[:40]!r}")


def _parse_network(text: str) -> _Network:
    try:
        return ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise Invalid(f"source ip: expected an address or a CIDR, found {text[:60]!r}") from None


def _is_within(source_ip: str, networks: Iterable[_Network]) -> bool:
    try:
        address = ipaddress.ip_address(source_ip)
    except ValueError:
        return False
    return any(address in network for network in networks)
