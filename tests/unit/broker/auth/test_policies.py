"""Tests of the precedence of access rules."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tieredstore.broker.auth.policies import (
    Action,
    Policy,
    PolicyEntry,
    ResourceType,
    Want,
    decide,
    parse_policies,
    want_group,
    want_topic,
)
from tieredstore.broker.auth.users import AclManager
from tieredstore.errors import Invalid

PUB = want_topic("orders", Action.PUB)


def allowed(want: Want, *entries: tuple[str, str, str], default: bool = False, **more: str) -> bool:
    kind = "Default" if default else "Custom"
    policy = Policy(
        policy_type=kind,
        entries=[
            PolicyEntry(resource=resource, actions=actions.split(), decision=decision)
            for resource, actions, decision in entries
        ],
    )
    return decide(parse_policies([policy]), want, more.get("source_ip", "10.0.0.1"))


@pytest.mark.parametrize(
    ("resource", "fits"),
    [
        ("Topic:orders", True),
        ("topic:orders", True),
        ("Topic:order", False),
        ("Topic:ord*", True),
        ("Topic:x*", False),
        ("Topic:*", True),
        ("*", True),
        ("Group:orders", False),
        ("Group:*", False),
        ("Cluster:*", False),
    ],
)
def test_a_rule_fits_its_resources(resource: str, fits: bool) -> None:
    assert allowed(PUB, (resource, "Pub", "Allow")) is fits


def test_nothing_is_allowed_without_a_rule() -> None:
    assert not decide({}, PUB, "10.0.0.1")
    assert not allowed(PUB, ("Topic:orders", "Sub", "Allow"))


def test_one_of_the_actions_is_enough_and_all_are_all() -> None:
    want = want_topic("orders", Action.SUB, Action.GET)
    assert allowed(want, ("Topic:orders", "Get", "Allow"))
    assert allowed(want, ("Topic:orders", "All", "Allow"))
    assert not allowed(want, ("Topic:orders", "Pub", "Allow"))


def test_the_closest_rule_decides_and_of_two_the_one_that_denies() -> None:
    assert not allowed(PUB, ("Topic:*", "All", "Allow"), ("Topic:orders", "All", "Deny"))
    assert allowed(PUB, ("Topic:*", "All", "Deny"), ("Topic:orders", "All", "Allow"))
    assert allowed(PUB, ("Topic:o*", "All", "Deny"), ("Topic:ord*", "All", "Allow"))
    assert allowed(PUB, ("*", "All", "Deny"), ("Topic:*", "All", "Allow"))
    for first, second in (("Allow", "Deny"), ("Deny", "Allow")):
        assert not allowed(PUB, ("Topic:orders", "Pub", first), ("Topic:orders", "All", second))


def test_default_rules_count_where_no_custom_rule_fits() -> None:
    policies = [
        Policy(
            policy_type="Default",
            entries=[PolicyEntry(resource="Topic:*", actions=["All"], decision="Allow")],
        ),
        Policy(entries=[PolicyEntry(resource="Topic:orders", actions=["Pub"], decision="Deny")]),
    ]
    rules = parse_policies(policies)
    assert not decide(rules, PUB, "")
    assert decide(rules, want_topic("others", Action.PUB), "")


def test_a_rule_may_hold_for_some_addresses() -> None:
    entry = PolicyEntry(
        resource="Topic:orders",
        actions=["Pub"],
        source_ips=["10.0.0.0/24", "192.168.1.5", "fd00::/8"],
        decision="Allow",
    )
    rules = parse_policies([Policy(entries=[entry])])
    for address, fits in (
        ("10.0.0.7", True),
        ("10.0.1.7", False),
        ("192.168.1.5", True),
        ("fd00::1", True),
        ("", False),
    ):
        assert decide(rules, PUB, address) is fits


def test_s61_an_address_of_ipv4_in_ipv6_and_one_that_nobody_knows() -> None:
    def decides(decision: str, source_ip: str, network: str = "10.0.0.0/8") -> bool:
        entry = PolicyEntry(
            resource="Topic:orders", actions=["Pub"], source_ips=[network], decision=decision
        )
        every = PolicyEntry(resource="*", actions=["All"], decision="Allow")
        entries = [entry] if decision == "Allow" else [entry, every]
        return decide(parse_policies([Policy(entries=entries)]), PUB, source_ip)

    for source_ip in ("10.1.2.3", "::ffff:10.1.2.3"):
        for network in ("10.0.0.0/8", "::ffff:10.0.0.0/104"):
            assert decides("Allow", source_ip, network)
            assert not decides("Deny", source_ip, network)
    for source_ip in ("11.1.2.3", "::ffff:11.1.2.3", "::1"):
        for network in ("10.0.0.0/8", "::ffff:10.0.0.0/104", "fd00::/8"):
            assert not decides("Allow", source_ip, network)
            assert decides("Deny", source_ip, network)
    for source_ip in ("", "somewhere"):
        assert not decides("Allow", source_ip)
        assert not decides("Deny", source_ip)


def test_topics_of_a_group_belong_to_the_group() -> None:
    for topic in ("%RETRY%G", "%DLQ%G"):
        want = want_topic(topic, Action.GET)
        assert (want.resource_type, want.name) == (ResourceType.GROUP, "G")
        assert Action.SUB in want.actions
    assert want_group("%RETRY%G", Action.SUB).name == "G"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource": "orders"}, "expected \\*, or Topic, Group or Cluster"),
        ({"resource": "Any:x"}, "expected \\*, or Topic, Group or Cluster"),
        ({"resource": "Topic:"}, "expected \\*, or Topic, Group or Cluster"),
        ({"actions": []}, "actions is empty"),
        ({"actions": ["Any"]}, "action: expected one of"),
        ({"decision": "Maybe"}, "expected Allow or Deny, found 'Maybe'"),
        ({"source_ips": ["x"]}, "expected an address or a CIDR, found 'x'"),
    ],
)
def test_what_is_no_rule_is_refused(changes: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"resource": "Topic:a", "actions": ["Pub"], "decision": "Allow"}
    with pytest.raises(Invalid, match=message):
        parse_policies([Policy(entries=[PolicyEntry(**(values | changes))])])  # type: ignore[arg-type]


def custom(resource: str, actions: str, decision: str = "Allow", kind: str = "Custom") -> Policy:
    entry = PolicyEntry(resource=resource, actions=actions.split(), decision=decision)
    return Policy(policy_type=kind, entries=[entry])


def test_s60_a_right_that_is_written_in_another_way_is_narrowed_and_taken_away(
    tmp_path: Path,
) -> None:
    acls = AclManager(tmp_path)
    sub = want_topic("orders", Action.SUB)
    acls.update_acl("User:eve", [custom("topic:orders", "Pub Sub")])
    assert acls.allows("eve", PUB, "10.0.0.1")
    acls.update_acl("User:eve", [custom("Topic:orders", "Sub")])
    assert acls.allows("eve", sub, "10.0.0.1")
    assert not acls.allows("eve", PUB, "10.0.0.1")
    for resource, kind in (("TOPIC:orders", None), ("Topic:orders", "custom")):
        assert acls.delete_acl("User:eve", kind, resource)
        assert not acls.allows("eve", sub, "10.0.0.1")
        acls.update_acl("User:eve", [custom("topic:orders", "Sub")])
    with pytest.raises(Invalid, match="policy type"):
        acls.delete_acl("User:eve", "Customs", "Topic:orders")
    with pytest.raises(Invalid, match="resource"):
        acls.delete_acl("User:eve", None, "orders")


def test_s60_what_a_file_says_in_two_ways_counts_and_goes_together(tmp_path: Path) -> None:
    policies = [
        custom("topic:orders", "Pub Sub"),
        custom("Topic:orders", "Pub", "Deny"),
        custom("*", "All", kind="Default"),
    ]
    acl = {"subject": "User:eve", "policies": policies}
    acls = AclManager(tmp_path)
    acls.decode(msgspec.json.encode({"acls": {"User:eve": acl}}))
    acls.update_acl("User:eve", [custom("Topic:bills", "Pub")])
    assert not acls.allows("eve", PUB, "10.0.0.1")  # no rule was lost
    acls.delete_acl("User:eve", None, "Topic:orders")
    assert acls.allows("eve", PUB, "10.0.0.1")  # by the default rule
    assert len(acls.list_acls()["User:eve"].policies) == 2
