"""Policies (the permissions of users on resources) and their evaluation."""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from tieredstore.errors import Invalid
from tieredstore.message.names import DLQ_PREFIX, RETRY_PREFIX
from tieredstore.message.properties import INNER_MULTI_DISPATCH, find_text


class Action(enum.Enum):
    """Action on a resource. In a policy, ALL means any action."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


class ResourceType(enum.Enum):
    """Kind of resource. In a policy, ANY means any kind."""

    ANY = "Any"
    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Want(NamedTuple):
    """Permission that a request needs: any of the actions on a resource."""

    resource_type: ResourceType
    name: str
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{self.resource_type.value}:{self.name}"


_OF_CONSUMERS: Final = frozenset({Action.PUB, Action.SUB, Action.GET})
"""Permissions of a consumer on the retry and dead-letter topics of its group. A consumer cannot
create, change or delete these topics."""


def want_topic(name: str, *actions: Action) -> Want:
    """Return the permission that a request on a topic needs. A retry or dead-letter topic belongs
    to its group. A user that may consume with the group may also send to the topic and read it, but
    nothing else."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if name.startswith(prefix):
            wanted = frozenset(actions)
            if wanted & _OF_CONSUMERS:
                wanted |= {Action.SUB}
            return Want(ResourceType.GROUP, name.removeprefix(prefix), wanted)
    return Want(ResourceType.TOPIC, name, frozenset(actions))


def want_group(name: str, *actions: Action) -> Want:
    """Return the permission that a request on a consumer group needs."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        name = name.removeprefix(prefix)
    return Want(ResourceType.GROUP, name, frozenset(actions))


def want_light_queues(properties: bytes) -> Iterator[Want]:
    """Yield the permissions needed to send a message to the light queues named in its
    properties."""
    names = find_text(properties, INNER_MULTI_DISPATCH.encode())
    for name in names.split(",") if names else ():
        yield want_topic(name, Action.PUB)


class PolicyEntry(msgspec.Struct, kw_only=True, rename="camel"):
    """Rule of a policy (Java's PolicyEntryInfo). `resource`: `*`, `Topic:name`, `Group:prefix*` or
    `Cluster:*`. `source_ips`: allowed source addresses, or None for all. `decision`: Allow or
    Deny."""

    resource: str
    actions: list[str]
    source_ips: list[str] | None = None
    decision: str = "Deny"


class Policy(msgspec.Struct, kw_only=True, rename="camel"):
    """Rules of one type. Default rules apply only if no Custom rule matches."""

    policy_type: str | None = "Custom"
    entries: list[PolicyEntry]


class Acl(msgspec.Struct, kw_only=True, rename="camel"):
    """All policies of a subject, `User:name`."""

    subject: str = ""
    policies: list[Policy] = []


class Rule:
    """Parsed and validated rule. The constructor raises Invalid for an invalid entry."""

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
        """Rank of the rule. Of the matching rules, the one with the smallest rank decides. More
        specific rules come first, and among equally specific rules those that deny."""
        return (self._type is ResourceType.ANY, self._pattern, -len(self._name), self.allows)

    def fits(self, want: Want, source_ip: str) -> bool:
        if self._type not in {ResourceType.ANY, want.resource_type}:
            return False
        if self._pattern == _LITERAL and want.name != self._name:
            return False
        if self._pattern == _PREFIXED and not want.name.startswith(self._name):
            return False
        if Action.ALL not in self._actions and not self._actions & want.actions:
            return False
        if not self._networks:
            return True
        address = _parse_address(source_ip)
        if address is None:  # the address is unknown: no reason to allow it
            return not self.allows
        return any(address in network for network in self._networks)


_POLICY_TYPES: Final = ("Custom", "Default")
_LITERAL, _PREFIXED, _ALL = range(3)
_Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_policies(policies: Iterable[Policy]) -> dict[str, list[Rule]]:
    """Parse policies and return their rules by policy type. Raises Invalid."""
    rules: dict[str, list[Rule]] = {kind: [] for kind in _POLICY_TYPES}
    for policy in policies:
        kind = parse_policy_type(policy.policy_type)
        if not policy.entries:
            raise Invalid("The policy entries is empty.")
        rules[kind] += map(Rule, policy.entries)
    return rules


def parse_policy_type(text: str | None) -> str:
    """Parse the name of a policy type. An empty string means Custom. Raises Invalid."""
    for kind in _POLICY_TYPES:
        if kind.lower() == (text or "Custom").strip().lower():
            return kind
    raise Invalid(f"policy type: expected Custom or Default, found {(text or '')[:40]!r}")


def list_entries(policies: Iterable[Policy]) -> dict[str, list[PolicyEntry]]:
    """Return the entries of policies by policy type, with normalised resources: `topic:a` and
    `Topic:a` are the same. Raises Invalid."""
    entries: dict[str, list[PolicyEntry]] = {kind: [] for kind in _POLICY_TYPES}
    for policy in policies:
        entries[parse_policy_type(policy.policy_type)] += (
            msgspec.structs.replace(entry, resource=show_resource(entry.resource))
            for entry in policy.entries
        )
    return entries


def decide(rules: dict[str, list[Rule]], want: Want, source_ip: str) -> bool:
    """Return whether a request is allowed. The most specific Custom rule decides. If no Custom rule
    matches, the most specific Default rule decides. A request that matches no rule is refused."""
    for kind in ("Custom", "Default"):
        fitting = [rule for rule in rules.get(kind, ()) if rule.fits(want, source_ip)]
        if fitting:
            return min(fitting, key=lambda rule: rule.rank).allows
    return False


def show_resource(text: str) -> str:
    """Normalise the name of a resource to `Topic:name`. Raises Invalid."""
    kind, name, pattern = _parse_resource(text)
    if kind is ResourceType.ANY:
        return "*"
    return f"{kind.value}:{name}{'' if pattern == _LITERAL else '*'}"


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
        network = ipaddress.ip_network(text.strip(), strict=False)
    except ValueError:
        raise Invalid(f"source ip: expected an address or a CIDR, found {text[:60]!r}") from None
    first = _parse_address(str(network.network_address))
    if isinstance(network, ipaddress.IPv6Network) and isinstance(first, ipaddress.IPv4Address):
        return ipaddress.IPv4Network((first, network.prefixlen - 96))
    return network


def _parse_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    # IPv4 connections to an IPv6 port.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address
