"""Accounts in `plain_acl.yml` become users with policies."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from tieredstore.broker.auth.migration import migrate_plain_acl
from tieredstore.broker.auth.policies import Action, want_group, want_topic
from tieredstore.broker.auth.users import AclManager, UserChange, UserManager, UserType
from tieredstore.errors import Invalid

FILE = """
globalWhiteRemoteAddresses:
  - 10.10.103.*
accounts:
  - accessKey: RocketMQ
    secretKey: "12345678"
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
      - topicC=SUB
    groupPerms:
      - groupA=DENY
      - groupB=PUB|SUB
  - accessKey: rocketmq2
    secretKey: "87654321"
    admin: true
"""


def migrate(folder: Path) -> tuple[UserManager, AclManager]:
    users, acls = UserManager(folder), AclManager(folder)
    users.create_user(UserChange(username="there", password="p"))
    asyncio.run(migrate_plain_acl(users, acls))
    return users, acls


@pytest.fixture(autouse=True)
def _no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROCKETMQ_HOME", raising=False)


def test_accounts_become_users_with_policies(tmp_path: Path) -> None:
    (tmp_path / "plain_acl.yml").write_text(FILE)
    users, acls = migrate(tmp_path)
    found = users.find_user("RocketMQ")
    assert found is not None
    assert (found.password, found.user_type) == ("12345678", UserType.NORMAL)
    admin = users.find_user("rocketmq2")
    assert admin is not None
    assert admin.user_type is UserType.SUPER
    for want, expected in (
        (want_topic("topicA", Action.PUB), False),
        (want_topic("topicB", Action.PUB), True),
        (want_topic("topicC", Action.PUB), False),
        (want_topic("topicC", Action.SUB), True),
        (want_topic("other", Action.SUB), False),
        (want_group("groupA", Action.SUB), False),
        (want_group("groupB", Action.SUB), True),
        (want_group("other", Action.SUB), True),
    ):
        assert acls.allows("RocketMQ", want, "10.0.0.1") is expected, want


def test_files_of_the_home_and_its_folder_are_read_and_users_that_are_there_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    (home / "conf" / "acl").mkdir(parents=True)
    (home / "conf" / "plain_acl.yml").write_text(FILE)
    (home / "conf" / "acl" / "more.yml").write_text(
        "accounts: [{accessKey: there, secretKey: other}, {accessKey: third, secretKey: secret}]"
    )
    monkeypatch.setenv("ROCKETMQ_HOME", str(home))
    users, _ = migrate(tmp_path)
    assert sorted(users.list_users()) == ["RocketMQ", "rocketmq2", "there", "third"]
    there = users.find_user("there")
    assert there is not None
    assert there.password == "p"


def test_a_missing_file_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    users, _ = migrate(tmp_path)
    assert list(users.list_users()) == ["there"]
    assert "plain_acl.yml is not there" in caplog.text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("accounts: [", "expected YAML, found something else at line 1"),
        ("accounts: 5", "expected a list of accounts"),
        ("accounts: [{accessKey: a}]", "account 'a': password can not be blank"),
        (
            "accounts: [{accessKey: a, secretKey: top-secret, topicPerms: [t=ALL]}]",
            "Topic:t: expected one of PUB, SUB",
        ),
    ],
)
def test_s01_a_file_that_is_wrong_is_refused_without_its_secrets(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / "plain_acl.yml").write_text(text)
    with pytest.raises(Invalid, match=message) as caught:
        migrate(tmp_path)
    assert "secret" not in str(caught.value)
